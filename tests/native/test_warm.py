"""What a train reads is asked for before the queue pair is looked for, and only where others were in between."""

import pytest

from firmware.model.counters import Count
from firmware.native.cards import NativeCard
from firmware.native.declarations import LINE, NOTED, RUNS, TRAIN_BYTES
from firmware.native.library import loaded
from firmware.transport.conversation import Conversation
from tests.scenario.world import CompletionQueue, End, World

pytestmark = pytest.mark.skipif(not loaded().there, reason=f"no engine in C: {loaded().reason}")


def connections(world: World, count: int) -> list[tuple[End, End]]:
    queues = [CompletionQueue(card, log_size=6) for card in (world.a, world.b)]
    made = []
    for _ in range(count):
        near, far = End(world.a, cq=queues[0]), End(world.b, cq=queues[1])
        near.connect(far)
        far.connect(near)
        made.append((near, far))
    return made


def write(world: World, near: End, far: End) -> None:
    near.write(near.buffer(64), 64, far.buffer(64), far.card.key)
    world.settle()
    assert all(completion.good for completion in near.send_cq.poll())


def test_the_cache_is_asked_for_another_queue_pair_than_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.lay_rails()
    (one, one_far), (two, two_far) = connections(world, 2)
    asked: list[int] = []
    warm = NativeCard.warm

    def noted(card: NativeCard, qpn: int) -> None:
        asked.append(qpn)
        warm(card, qpn)

    monkeypatch.setattr(NativeCard, "warm", noted)
    for near, far in ((one, one_far), (one, one_far), (two, two_far), (one, one_far)):
        write(world, near, far)
    assert asked == [one.qpn, two.qpn, one.qpn]
    assert world.a.hca.count[Count.TRAIN_MESSAGES] == 4


def test_what_is_noted_covers_both_ends_and_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: dict[tuple[NativeCard, int], list[int]] = {}
    monkeypatch.setattr(NativeCard, "note", lambda card, qpn, runs: rows.update({(card, qpn): runs}))
    world = World()
    world.lay_rails()
    ((near, far),) = connections(world, 1)
    write(world, near, far)
    assert world.a.hca.native is not None
    row = rows[world.a.hca.native, near.qpn]
    assert len(row) == RUNS
    lines = {run - run % LINE + line * LINE for run in row if run for line in range(run % LINE + 1)}
    talk = near.qp.conversation
    assert isinstance(talk, Conversation)
    start = int(loaded().ffi.cast("uintptr_t", talk.pointer))
    wanted = [(start, TRAIN_BYTES)]
    wanted += [
        (id(item), type(item).__basicsize__)
        for item in (near.qp, near.qp.requester, near.qp.sq, talk, far.qp, far.qp.responder)
    ]
    assert all(line & -LINE in lines for at, size in wanted for line in (*range(at, at + size, LINE), at + size - 1))


def test_what_has_gone_is_asked_for_without_harm() -> None:
    world = World()
    world.lay_rails()
    ((near, far),) = connections(world, 1)
    write(world, near, far)
    qpn = near.qpn
    card = world.a.hca.native
    assert card is not None
    for end in (near, far):
        end.destroy()
    assert world.a.hca.qps.get(qpn) is None
    card.warm(qpn)
    # One of which nothing is noted, and one whose number ends as that of the other does.
    card.warm(qpn + 1)
    card.warm(qpn + NOTED)
    unknown = world.a.hca.count[Count.SQ_DOORBELL_UNKNOWN]
    near.ring()
    world.settle()
    assert world.a.hca.count[Count.SQ_DOORBELL_UNKNOWN] == unknown + 1
    ((near, far),) = connections(world, 1)
    write(world, near, far)
    assert world.a.hca.count[Count.TRAIN_MESSAGES] == 2
