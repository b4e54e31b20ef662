"""What a hostile guest or peer does to bytes that would have been right."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.fuzz.watch import BASE
from tests.fuzz.world import Host, Mutation
from tests.packets import changed
from vhca.wire.ib import MalformedPacket, decode, encode, split
from vhca.wire.packet import RC, UC, UD, XRC, Grh, Packet

WILD_WORDS = (0, 1, 2, 0x7F, 0xFF, 0x100, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
WILD_ADDRESSES = (0, 8, 0x1000, BASE - 8, (1 << 32) - 16, 1 << 40, (1 << 64) - 4096, (1 << 64) - 1)
WILD_SIZES = (0, 1, 3, 255, 256, 257, 4095, 4096, 4097, 65536, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
SERVICES = (RC, UC, UD, XRC, 0x40, 0xE0)


def wild_word(random: Random) -> int:
    return random.choice(WILD_WORDS) if random.random() < 0.5 else random.getrandbits(32)


def wild_address(random: Random) -> int:
    return random.choice(WILD_ADDRESSES) if random.random() < 0.8 else random.getrandbits(64)


def command_mutation(random: Random, fixed_bytes: int) -> Mutation:
    """Change one to three things in a command of which the first `fixed_bytes` are no list."""

    def change(data: bytearray) -> None:
        fixed = min(fixed_bytes, len(data))
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            kind = random.randrange(10)
            used = [at for at in range(8, fixed & ~3, 4) if any(data[at : at + 4])]
            at = random.choice(used) if used and random.random() < 0.7 else random.randrange(2, max(3, fixed // 4)) * 4
            if kind <= 3 and at + 4 <= len(data):
                data[at : at + 4] = wild_word(random).to_bytes(4, "big")
            elif kind <= 5 and at + 4 <= len(data):
                word = int.from_bytes(data[at : at + 4], "big") ^ 1 << random.randrange(32)
                data[at : at + 4] = word.to_bytes(4, "big")
            elif kind == 6 and len(data) >= fixed + 8:
                entry = fixed + random.randrange((len(data) - fixed) // 8) * 8
                data[entry : entry + 8] = wild_address(random).to_bytes(8, "big")
            elif kind == 7:
                del data[random.randrange(8, len(data) + 1) :]
            elif kind == 8:
                data += random.randbytes(random.randrange(64))
            else:
                data[2:4] = random.choice((0, 1, 2, 3, 0xFFFF, random.getrandbits(16))).to_bytes(2, "big")

    return change


def spoil_entry(random: Random, host: Host, entry: bytearray) -> None:
    """Break the transport of a command: type, lengths, pointers, tokens, block numbers."""
    kind = random.randrange(7)
    pointer = random.choice((0, 1, 0x200, host.in_box + 8, host.scratch, *WILD_ADDRESSES))
    if kind == 0:
        entry[0] = random.choice((0, 1, 6, 0xFF))
    elif kind == 1:
        entry[4:8] = random.choice((0, 7, 0xFFFFFFFF, 1 << 24, (1 << 24) + 1)).to_bytes(4, "big")
    elif kind == 2:
        entry[8:16] = pointer.to_bytes(8, "big")
    elif kind == 3:
        entry[0x30:0x38] = pointer.to_bytes(8, "big")
    elif kind == 4:
        entry[0x38:0x3C] = random.choice((0, 7, 0xFFFFFFFF, 1 << 24)).to_bytes(4, "big")
    elif kind == 5:
        entry[0x3C] ^= 1 << random.randrange(8)
    else:
        box = random.choice((host.in_box, host.out_box)) + random.randrange(2) * 1024
        at = random.choice((0x230, 0x237, 0x238, 0x23B, 0x23D))
        old = host.memory.peek(box + at, 1)[0]
        host.memory.poke(box + at, bytes((old ^ 1 << random.randrange(8),)))


def spoil_bytes(random: Random, data: bytes) -> bytes:
    """A few bits or dwords of a WQE or MAD changed."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(out))
        if random.random() < 0.5:
            out[at] ^= 1 << random.randrange(8)
        else:
            at &= ~3
            out[at : at + 4] = wild_word(random).to_bytes(4, "big")[: len(out) - at]
    return bytes(out)


# No card sends bursts of more packets than this: a claim of eight million is for the receiver to refuse.
MOST_ON_A_WIRE = 1 << 11


def spoil_packet(random: Random, packet: Packet, keys: list[int], qpns: list[int]) -> list[Packet]:
    """What arrives instead of a packet: lost, doubled, cut up, damaged, or with fields of the attacker's choice."""
    dice = random.random()
    if dice < 0.15:
        return []
    if dice < 0.25:
        return [packet, replace(packet)]
    if dice < 0.45:
        return _on_the_wire(random, packet)
    return [changed(packet, **_fields(random, packet, keys, qpns))]


def _on_the_wire(random: Random, packet: Packet) -> list[Packet]:
    """Bytes flipped on a real wire, with a CRC that was made to fit again."""
    if packet.count > MOST_ON_A_WIRE:
        return [packet]
    try:
        parts = split(packet)
    except ValueError:
        return [packet]
    out = []
    for part in parts[:32]:
        try:
            raw = encode(part)
        except (ValueError, TypeError):
            continue
        if random.random() < 0.5:
            raw = spoil_bytes(random, raw)
        try:
            arrived = decode(raw)
        except MalformedPacket:
            continue
        arrived.good = random.random() < 0.9
        out.append(arrived)
    return out


def _fields(random: Random, packet: Packet, keys: list[int], qpns: list[int]) -> dict[str, Any]:
    size = random.choice((0, 1, 40, 255, 256, 257, 1024, 4096, 4097, 9000))
    choices: dict[str, Any] = {
        "dlid": random.choice((0, 1, 2, 3, 0xBFFF, 0xC000, 0xC001, 0xFFFF)),
        "slid": random.choice((0, 1, 2, 3, 0xFFFF)),
        "service": random.choice(SERVICES),
        "op": random.randrange(9),
        "dest_qp": random.choice((0, 1, 0xFFFFFF, *qpns)),
        "psn": (packet.psn + random.choice((-300, -2, -1, 1, 2, 300, 1 << 23))) & 0xFFFFFF,
        "payload": random.randbytes(size),
        "count": random.choice((0, 1, 2, 3, 17, 1 << 23)),
        "start": random.random() < 0.5,
        "end": random.random() < 0.5,
        "mtu": random.choice((0, 256, 512, 1024, 4096, 1 << 20)),
        "vl": random.choice((0, 15)),
        "grh": random.choice((None, Grh(bytes(16), bytes(16)), Grh(b"\xff" * 16, b"\xff\x12" + bytes(14)))),
        "pkey": random.choice((0, 0x7FFF, 0xFFFF, 0x8001)),
        "solicited": random.random() < 0.5,
        "ack_req": random.random() < 0.5,
        "va": random.choice((packet.va + random.choice((-4096, -1, 1, 7, 4096)), wild_address(random))) & (1 << 64) - 1,
        "rkey": random.choice((*keys, wild_word(random))),
        "dma_length": random.choice(WILD_SIZES),
        "swap_add": random.getrandbits(64),
        "compare": random.choice((0, random.getrandbits(64))),
        "immediate": random.choice((None, random.getrandbits(32))),
        "invalidate_rkey": random.choice((None, *keys)),
        "syndrome": random.choice((0, 0x1F, 0x20, 0x3F, 0x60, 0x61, 0x62, 0x63, random.getrandbits(8))),
        "msn": random.getrandbits(24),
        "original": random.getrandbits(64),
        "qkey": random.choice((0x1111, 0x80010000, random.getrandbits(32))),
        "src_qp": random.getrandbits(24),
        "xrc_srqn": random.choice((0, 1, 2, 3, 4, random.getrandbits(24))),
        "good": random.random() < 0.5,
    }
    return {name: choices[name] for name in random.sample(sorted(choices), random.choice((1, 1, 2, 3, 6)))}
