"""Device memory as source, target and receive buffer of messages, and as the operand of atomics."""

from firmware.model.objects import LOCAL_READ, LOCAL_WRITE, MODE_KLM, MODE_MEMIC, REMOTE_ATOMIC
from tests.scenario.world import ALL_RIGHTS, Card, packed_klms, pair, rights_fields
from tests.support.content import some_bytes
from vhca.wire.connectx.cmd import AllocMemicIn, AllocMemicOut, Op
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.wqe import WqeOpcode

LENGTH = 8192


def device_key(card: Card, rights: int = ALL_RIGHTS, **fields: int) -> int:
    """A key for device memory of its own."""
    info = card.hca.info
    view = AllocMemicIn(
        range_start_addr=info.device_memory_start, range_size=info.device_memory_bytes, memic_size=LENGTH
    )
    out = card.run(Op.ALLOC_MEMIC, view, out_size=AllocMemicOut.SIZE)
    start = AllocMemicOut.from_bytes(out).memic_start_addr
    return card.create_key(MODE_MEMIC, b"", start_addr=start, len=LENGTH, **{**rights_fields(rights), **fields})


def place(card: Card, key: int, at: int) -> int:
    """Where a byte of a key's region is in the BAR."""
    return card.mkey(key).device_offset + at


def content(card: Card, key: int, at: int, size: int) -> bytes:
    return card.device_memory.read(place(card, key, at), size)


def fill(card: Card, key: int, at: int, data: bytes) -> None:
    """As the host does, through the BAR."""
    card.bar0.write(place(card, key, at), data)


def test_write_into_and_out_of_device_memory() -> None:
    world, a, _ = pair()
    key_a, key_b = device_key(world.a), device_key(world.b)
    data = some_bytes(LENGTH)
    fill(world.a, key_a, 0, data)
    a.write(0, LENGTH, 0, key_b, key=key_a)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0]
    assert content(world.b, key_b, 0, LENGTH) == data
    target = a.buffer(100)
    a.read(target, 100, 50, key_b)
    world.settle()
    assert a.peek(target, 100) == data[50:150]


def test_receive_into_device_memory() -> None:
    world, a, b = pair()
    key = device_key(world.b)
    b.post_recv(64, 256, key)
    a.send(a.buffer(b"hello, card"), 11)
    world.settle()
    assert [c.syndrome for c in b.recv_cq.poll()] == [0]
    assert content(world.b, key, 64, 11) == b"hello, card"


def test_atomics() -> None:
    world, a, _ = pair()
    key = device_key(world.b)
    fill(world.b, key, 8, (41).to_bytes(8, "little"))
    target = a.buffer(8)
    a.atomic(WqeOpcode.ATOMIC_FA, target, 8, key, 1)
    world.settle()
    assert int.from_bytes(a.peek(target, 8), "little") == 41
    assert int.from_bytes(content(world.b, key, 8, 8), "little") == 42


def test_bounds_and_rights_hold() -> None:
    world, a, _ = pair()
    a.write(a.buffer(64), 64, LENGTH - 32, device_key(world.b))
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_ACCESS_ERR]
    world, a, _ = pair()
    a.write(a.buffer(64), 64, 0, device_key(world.b, LOCAL_READ | LOCAL_WRITE | REMOTE_ATOMIC))
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_ACCESS_ERR]


def test_an_indirect_key_joins_host_and_device_memory() -> None:
    world, a, b = pair()
    inner = device_key(world.b)
    host = b.buffer(64)
    outer = world.b.create_key(MODE_KLM, packed_klms((64, world.b.key, host), (64, inner, 128)), len=128)
    data = some_bytes(128)
    a.write(a.buffer(data), 128, 0, outer)
    world.settle()
    assert b.peek(host, 64) == data[:64]
    assert content(world.b, inner, 128, 64) == data[64:]
