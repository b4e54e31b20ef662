"""Compressed completions: a queue that asks for them, read as a program does that knows how."""

import struct
from dataclasses import replace
from random import Random

import pytest

from firmware.model.counters import Count
from firmware.queues import MOST_IN_SESSION, SESSION_NS
from tests.scenario.queues import decode
from tests.scenario.world import ST_UD, Completion, CompletionQueue, End, World
from tests.support.commands import CommandFailed
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.cqe import CqeFormat, CqeOpcode, CqeSyndrome, MiniFormat


class Reader:
    """Reads a compressing queue; takes over the ownership of entries that the card leaves out."""

    def __init__(self, cq: CompletionQueue) -> None:
        self.cq = cq
        self.consumer = 0
        self.sessions: list[int] = []

    def _is_mine(self, index: int) -> bool:
        raw = self.cq.raw(index)
        return raw[63] >> 4 != CqeOpcode.INVALID and raw[63] & 1 == index >> self.cq.log_size & 1

    def poll(self) -> list[Completion]:
        out = []
        cq = self.cq
        while self._is_mine(self.consumer):
            raw = cq.raw(self.consumer)
            title = decode(raw)
            if raw[63] >> 2 & 3 != CqeFormat.COMPRESSED:
                out.append(title)
                self._advance(1)
                continue
            arrays = [cq.raw(self.consumer + (at or 1)) for at in range(0, title.size, 8)]
            sizes = [size for _, size in struct.iter_unpack(">II", b"".join(arrays))][: title.size]
            out += [replace(title, counter=title.counter + at & 0xFFFF, size=size) for at, size in enumerate(sizes)]
            self.sessions.append(title.size)
            self._advance(title.size)
        return out

    def _advance(self, count: int) -> None:
        cq = self.cq
        for index in range(self.consumer, self.consumer + count):
            slot = index & (1 << cq.log_size) - 1
            # As a driver does: the entry is one of the pass before.
            owner = index >> cq.log_size & 1
            cq.card.memory.write(cq.addr + slot * 64 + 63, bytes((CqeOpcode.INVALID << 4 | owner,)))
        self.consumer += count
        cq.card.memory.write(cq.dbr, (self.consumer & 0xFFFFFF).to_bytes(4, "big"))


class Stage:
    """One queue pair sends datagrams to another, whose receives complete in a compressing queue."""

    def __init__(self, log_size: int = 7, form: int = MiniFormat.HASH, cqe_bytes: int = 64) -> None:
        self.world = World()
        self.sender = End(self.world.a, ST_UD)
        self.cq = CompletionQueue(self.world.b, log_size, cqe_bytes, cqe_comp_en=1, mini_cqe_res_format=form)
        self.receiver = End(self.world.b, ST_UD, cq=self.cq)
        self.sender.connect(self.receiver)
        self.receiver.connect(self.sender)
        self.reader = Reader(self.cq)
        self.source = self.sender.buffer(1024)
        self.place = self.receiver.buffer(2048)

    def send(self, *sizes: int, imm: int | None = None, se: int = 0) -> None:
        for number, size in enumerate(sizes):
            self.receiver.post_recv(self.place, 2048)
            last = number == len(sizes) - 1
            self.sender.datagram(self.source, size, self.world.b.port.lid, self.receiver.qpn, imm=imm, se=se, ring=last)
        self.world.settle()
        assert len(self.sender.send_cq.poll()) == len(sizes)

    def wait(self) -> None:
        self.world.pass_time(SESSION_NS)

    @property
    def sessions(self) -> int:
        return self.world.b.hca.count[Count.COMPRESSED_SESSIONS]


@pytest.mark.parametrize("form", list(MiniFormat))
def test_receives_that_are_alike_are_written_as_one(form: int) -> None:
    stage = Stage(form=form)
    sizes = [100 + number for number in range(19)]
    stage.send(*sizes)
    assert stage.reader.poll() == []
    stage.wait()
    got = stage.reader.poll()
    assert [(done.counter, done.size) for done in got] == [(at, 40 + size) for at, size in enumerate(sizes)]
    assert all((done.kind, done.source_qpn) == (CqeOpcode.RESP_SEND, stage.sender.qpn) for done in got)
    assert stage.reader.sessions == [19]
    assert stage.sessions == 1


def test_one_alone_is_a_completion_like_any_other() -> None:
    stage = Stage()
    stage.send(7)
    stage.wait()
    (done,) = stage.cq.poll()
    assert done.size == 47
    assert stage.sessions == 0


def test_what_is_not_alike_ends_the_session_and_stays_in_order() -> None:
    stage = Stage()
    stage.send(1, 2)
    stage.send(3, imm=9)
    stage.send(4, 5, 6)
    stage.send(7, se=1)
    stage.wait()
    got = stage.reader.poll()
    assert [done.size - 40 for done in got] == [1, 2, 3, 4, 5, 6, 7]
    assert [done.counter for done in got] == list(range(7))
    assert stage.reader.sessions == [2, 3]


def test_a_session_has_a_largest_length() -> None:
    stage = Stage()
    for size in (5, 6, 7):
        stage.send(*[size] * 30)
    got = stage.reader.poll()
    assert len(got) == MOST_IN_SESSION
    stage.wait()
    got += stage.reader.poll()
    assert [done.size - 40 for done in got] == [5] * 30 + [6] * 30 + [7] * 30


@pytest.mark.parametrize("seed", range(10))
def test_sessions_go_around_the_end_of_the_ring(seed: int) -> None:
    random = Random(seed)
    stage = Stage(log_size=4)
    sent, got = [], []
    for _ in range(30):
        sizes = [random.randrange(1000) or 1 for _ in range(random.randrange(1, 16))]
        stage.send(*sizes)
        stage.wait()
        sent += sizes
        got += [done.size - 40 for done in stage.reader.poll()]
    assert got == sent
    assert len(stage.reader.sessions) > 5


def test_an_arm_ends_the_session_and_is_told_of_it() -> None:
    stage = Stage()
    stage.send(1, 2, 3)
    stage.cq.arm()
    assert len(stage.reader.poll()) == 3
    assert len(stage.world.b.new_events()) == 1


def test_an_armed_queue_gets_its_event_behind_the_session() -> None:
    stage = Stage()
    stage.cq.arm()
    stage.send(1, 2, 3)
    assert stage.world.b.new_events() == []
    stage.wait()
    assert len(stage.world.b.new_events()) == 1
    assert len(stage.reader.poll()) == 3


def test_a_full_queue_overruns_as_ever() -> None:
    stage = Stage(log_size=4)
    stage.send(*[8] * 20)
    stage.wait()
    assert stage.cq.cq.failed
    assert len(stage.reader.poll()) == 16


def test_errors_come_behind_what_was_kept() -> None:
    stage = Stage()
    stage.send(1, 2)
    stage.receiver.post_recv(stage.place, 2048)
    assert stage.receiver.apply(Op.QP_2ERR) == 0
    stage.world.settle()
    got = stage.reader.poll()
    assert [done.syndrome for done in got] == [0, 0, CqeSyndrome.WR_FLUSH_ERR]


def test_entries_of_128_bytes_stand_for_themselves() -> None:
    stage = Stage(cqe_bytes=128)
    stage.send(1, 2, 3)
    assert [done.size for done in stage.cq.poll()] == [41, 42, 43]


def test_a_queue_that_ends_takes_its_session_along() -> None:
    stage = Stage()
    stage.send(1, 2)
    stage.receiver.destroy()
    stage.world.b.destroy(Op.DESTROY_CQ, stage.cq.cqn)
    stage.wait()
    assert stage.world.b.hca.cqs.get(stage.cq.cqn) is None


@pytest.mark.parametrize(
    "fields",
    [{"mini_cqe_res_format": 2}, {"cqe_compression_layout": 1}, {"cc": 1}],
)
def test_other_forms_are_refused(fields: dict[str, int]) -> None:
    world = World()
    with pytest.raises(CommandFailed, match=f"status {int(Status.BAD_PARAM):#x}"):
        CompletionQueue(world.a, 7, 64, False, **{"cqe_comp_en": 1, **fields})
