"""Reliable connection: one scenario per rule."""

import os

import pytest

from tests.scenario.world import pair
from vhca.wire.connectx.cqe import CqeOpcode

SIZES = [0, 1, 64, 1023, 1024, 1025, 4096, 65536, 262144, 262145, 600_001]


@pytest.mark.parametrize("size", SIZES)
def test_write_reaches_remote_memory(size: int) -> None:
    world, a, b = pair()
    content = os.urandom(size)
    source, target = a.buffer(content), b.buffer(size)
    index = a.write(source, size, target, b.card.key)
    world.settle()
    assert b.peek(target, size) == content
    done = a.send_cq.poll()
    assert [(c.kind, c.counter, c.syndrome) for c in done] == [(CqeOpcode.REQ, index, 0)], world.show()
    assert b.recv_cq.poll() == []


@pytest.mark.parametrize("size", SIZES)
def test_send_fills_the_receive(size: int) -> None:
    world, a, b = pair()
    content = os.urandom(size)
    source, target = a.buffer(content), b.buffer(size)
    counter = b.post_recv(target, size)
    a.send(source, size, imm=0xCAFEBABE, se=1)
    world.settle()
    assert b.peek(target, size) == content
    (done,) = b.recv_cq.poll()
    assert (done.kind, done.counter, done.size, done.extra) == (CqeOpcode.RESP_SEND_IMM, counter, size, 0xCAFEBABE)
    assert done.solicited
    assert [c.syndrome for c in a.send_cq.poll()] == [0]


@pytest.mark.parametrize("size", SIZES)
def test_read_brings_remote_memory(size: int) -> None:
    world, a, b = pair()
    content = os.urandom(size)
    source, target = b.buffer(content), a.buffer(size)
    a.read(target, size, source, b.card.key)
    world.settle()
    assert a.peek(target, size) == content
    (done,) = a.send_cq.poll()
    assert (done.syndrome, done.size) == (0, size), world.show()
