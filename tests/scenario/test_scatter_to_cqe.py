"""Small data in the completion itself: receives, READs and atomics, with entries of 64 and 128 bytes."""

import pytest

from firmware.transport.completion import SCATTER_32, SCATTER_64
from tests.scenario.world import ERR, RTS, ST_RC, ST_UC, CompletionQueue, End, World
from vhca.wire.connectx.cqe import CqeFormat, CqeSyndrome
from vhca.wire.connectx.wqe import WqeOpcode

HELLO = b"hello"


def ends(service: int, cqe_bytes: int, room: int) -> tuple[World, End, End]:
    world = World()
    mode = {32: SCATTER_32, 64: SCATTER_64}[room]
    a, b = (End(card, service, cq=CompletionQueue(card, cqe_bytes=cqe_bytes), cs_res=mode, cs_req=mode * 0x11)
            for card in (world.a, world.b))  # fmt: skip
    a.connect(b)
    b.connect(a)
    return world, a, b


def fmt(entry: bytes) -> int:
    return entry[-1] >> 2 & 3


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
@pytest.mark.parametrize(("cqe_bytes", "room"), [(64, 32), (128, 64), (128, 32)])
def test_a_small_message_is_in_its_completion(service: int, cqe_bytes: int, room: int) -> None:
    world, a, b = ends(service, cqe_bytes, room)
    for size in (room, 5, 0, room + 1):
        content = bytes(range(1, size + 1))
        target = b.buffer(b"\xee" * 128)
        b.post_recv(target, 128)
        a.send(a.buffer(content), size, imm=0x12345678)
        world.settle()
        (completion,) = b.recv_cq.poll()
        assert (completion.syndrome, completion.size, completion.extra) == (0, size, 0x12345678)
        entry = b.recv_cq.raw(b.recv_cq.consumer - 1)
        if 0 < size <= room:
            assert fmt(entry) == (CqeFormat.INLINE_64 if room == 64 else CqeFormat.INLINE_32)
            assert entry[(0 if room == 64 else cqe_bytes - 64) :][:size] == content
            assert b.peek(target, 128) == b"\xee" * 128
        else:
            assert fmt(entry) == CqeFormat.NO_INLINE
            assert b.peek(target, 128) == content + b"\xee" * (128 - size)


def test_the_buffer_is_checked_all_the_same() -> None:
    world, a, b = ends(ST_RC, 64, 32)
    b.post_recv(b.buffer(64), 4)
    a.send(a.buffer(HELLO), 5)
    world.settle()
    assert [c.syndrome for c in b.recv_cq.poll()] == [CqeSyndrome.LOCAL_LENGTH_ERR]
    world, a, b = ends(ST_RC, 64, 32)
    b.post_recv(b.buffer(64), 64, key=0x7700)
    a.send(a.buffer(HELLO), 5)
    world.settle()
    assert [c.syndrome for c in b.recv_cq.poll()] == [CqeSyndrome.LOCAL_PROT_ERR]
    assert b.qp.state == ERR


def test_write_with_immediate_writes() -> None:
    world, a, b = ends(ST_RC, 64, 32)
    target = b.buffer(64)
    b.post_recv()
    a.rdma(WqeOpcode.RDMA_WRITE_IMM, a.buffer(HELLO), 5, target, world.b.key, imm=1)
    world.settle()
    assert [c.size for c in b.recv_cq.poll()] == [5]
    assert b.peek(target, 5) == HELLO
    assert fmt(b.recv_cq.raw(0)) == CqeFormat.NO_INLINE


@pytest.mark.parametrize(("cqe_bytes", "room", "place"), [(64, 32, 0), (128, 64, 0), (128, 32, 64)])
def test_reads_and_atomics_answer_in_the_completion(cqe_bytes: int, room: int, place: int) -> None:
    world, a, b = ends(ST_RC, cqe_bytes, room)
    target = a.buffer(b"\xee" * 128)
    source = b.buffer(b"0123456789abcdef" + bytes(100))
    a.read(target, 16, source, world.b.key)
    a.atomic(WqeOpcode.ATOMIC_FA, target, source, world.b.key, 1)
    a.read(target, 16, source, world.b.key, ce=0)
    a.read(target + 16, room + 1, source, world.b.key)
    a.read(target, room, source + 16, world.b.key)
    world.settle()
    assert [(c.syndrome, c.size) for c in a.send_cq.poll()] == [(0, 16), (0, 8), (0, room + 1), (0, room)]
    assert a.send_cq.raw(0)[place : place + 16] == b"0123456789abcdef"
    assert a.send_cq.raw(1)[place : place + 8] == b"01234567"
    assert [fmt(a.send_cq.raw(index)) for index in range(4)] == [room // 32, room // 32, 0, room // 32]
    # Without a completion there is no place but memory.
    assert a.peek(target, 16) == b"1123456789abcdef"
    assert a.peek(target + 16, room + 1) == b.peek(source, room + 1)
    assert a.qp.state == RTS


@pytest.mark.parametrize("what", ["read", "atomic"])
def test_a_bad_target_fails_the_request(what: str) -> None:
    world, a, b = ends(ST_RC, 64, 32)
    place, key = b.buffer(64), world.b.key
    if what == "read":
        a.read(a.buffer(64), 16, place, key, key=0x7700)
    else:
        remote = bytes.fromhex(f"{place:016x}{key:08x}") + bytes(20)
        a.post(WqeOpcode.ATOMIC_FA, remote + a.sge(a.buffer(8), 8, 0x7700))
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.LOCAL_PROT_ERR]


def test_padded_entries_are_written_whole() -> None:
    world = World()
    cq = CompletionQueue(world.a, cqe_bytes=128, padded=True)
    a, b = End(world.a, cq=cq), End(world.b)
    a.connect(b)
    b.connect(a)
    world.a.memory.write(cq.addr, b"\xaa" * 64)
    a.write(a.buffer(8), 8, b.buffer(8), world.b.key)
    world.settle()
    assert [c.syndrome for c in cq.poll()] == [0]
    assert cq.raw(0)[:64] == bytes(64)
