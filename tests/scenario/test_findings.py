"""What a host does wrong with its objects is found, with what became of them; what it does right is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from firmware.model import graveyard, history
from tests.scenario.registration import free_key, register, umr
from tests.scenario.world import ERR, Card, End, World, pair
from tests.support.commands import CommandFailed
from vhca.hw.events import Reset
from vhca.hw.findings import FINDING_RULES, Finding, FindingKind, ObjectLife, Strictness
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.wqe import MkeyMask, WqeOpcode

NORMAL, PEDANTIC = Strictness.NORMAL, Strictness.PEDANTIC


def kept(*cards: Card, level: Strictness = NORMAL) -> None:
    for card in cards:
        card.firmware.keep_lives(level)


def found(card: Card) -> list[FindingKind]:
    return [finding.kind for finding in card.firmware.findings(card.name)]


def only(card: Card) -> Finding:
    (finding,) = card.firmware.findings(card.name)
    return finding


def lives(card: Card, kind: str | None = None) -> list[ObjectLife]:
    told = [card.firmware.life(*place) for place in card.firmware.known() if kind in (None, place[0])]
    assert None not in told
    return [life for life in told if life is not None]


def what(life: ObjectLife | None) -> list[str]:
    assert life is not None
    return [event.what for event in life.events]


def refused(card: Card, op: Op, number: int, status: Status) -> None:
    with pytest.raises(CommandFailed) as error:
        card.destroy(op, number)
    assert error.value.status == status


def test_a_correct_life_has_no_finding_even_for_pedants() -> None:
    world, a, b = pair()
    kept(world.a, world.b, level=PEDANTIC)
    c, d = End(world.a), End(world.b)
    c.connect(d)
    d.connect(c)
    key = world.b.register(b.buffer(64), 64)
    c.write(c.buffer(b"x" * 64), 64, world.b.mkey(key).start, key)
    world.settle()
    assert not c.send_cq.poll()[0].syndrome
    for end in (c, d):
        end.destroy()
        end.card.destroy(Op.DESTROY_CQ, end.send_cq.cqn)
        end.card.destroy(Op.DESTROY_CQ, end.recv_cq.cqn)
    world.b.destroy_key(key)
    assert found(world.a) == found(world.b) == []
    assert a.qp.state == b.qp.state


def test_who_made_an_object_and_when_and_what_became_of_it() -> None:
    world = World()
    card = world.a
    kept(card)
    world.now_ns += 5_000
    uid = cmd.CreateUctxOut.from_bytes(card.run(Op.CREATE_UCTX, cmd.CreateUctxIn())).uid
    world.now_ns += 5_000
    pd = cmd.AllocPdOut.from_bytes(card.run(Op.ALLOC_PD, cmd.BareIn(uid=uid))).pd
    world.now_ns += 5_000
    card.run(Op.DEALLOC_PD, cmd.DeallocPdIn(uid=uid, pd=pd))
    (life,) = [life for life in lives(card, "pd") if life.number == pd]
    assert (life.uid, life.alive) == (uid, False)
    assert [(event.what, event.by, event.uid) for event in life.events] == [
        ("created", "ALLOC_PD", uid),
        ("destroyed", "DEALLOC_PD", uid),
    ]
    assert life.events[1].time_ns - life.events[0].time_ns == 5_000
    assert life.events[1].words == pd.to_bytes(4, "big") + bytes(4)
    assert f"of user context {uid}" in str(life.events[0])


def test_what_was_there_before_is_known_as_such() -> None:
    world, a, _ = pair()
    kept(world.a)
    (life,) = [life for life in lives(world.a, "qp") if life.number == a.qpn]
    assert (life.alive, what(life)) == (True, ["there"])
    a.destroy()
    refused(world.a, Op.DESTROY_QP, a.qpn, Status.BAD_RES)
    assert found(world.a) == [FindingKind.DOUBLE_DESTROY]


def test_double_destroy() -> None:
    world = World()
    kept(world.a)
    pd = world.a.alloc_pd()
    world.a.destroy(Op.DEALLOC_PD, pd)
    for _ in range(2):
        refused(world.a, Op.DEALLOC_PD, pd, Status.BAD_RES)
    finding = only(world.a)
    assert (finding.kind, finding.object_kind, finding.number) == (FindingKind.DOUBLE_DESTROY, "pd", pd)
    assert (finding.card, finding.times) == (world.a.name, 2)
    assert what(finding.life) == ["created", "destroyed"]
    assert "destroyed at" in finding.text
    assert "2 times" in finding.told()
    assert "created by ALLOC_PD" in finding.told()


def test_use_after_destroy() -> None:
    world, a, _ = pair()
    kept(world.a)
    a.destroy()
    assert a.apply(Op.QP_2ERR) == Status.BAD_RES
    finding = only(world.a)
    assert (finding.kind, finding.object_kind, finding.number) == (FindingKind.USE_AFTER_DESTROY, "qp", a.qpn)
    assert "QP_2ERR" in finding.text


def test_a_number_that_is_given_out_again_is_not_the_old_object() -> None:
    world = World()
    card = world.a
    kept(card, level=PEDANTIC)
    pd = card.alloc_pd()
    card.destroy(Op.DEALLOC_PD, pd)
    table = card.hca.pds
    # Past the door: no test makes millions of objects until numbers come back.
    table._next = table.first + table.capacity
    while (again := card.alloc_pd()) != pd:
        pass
    card.destroy(Op.DEALLOC_PD, again)
    assert found(card) == []


def test_destroy_of_what_others_use() -> None:
    world, a, _ = pair()
    kept(world.a)
    refused(world.a, Op.DESTROY_CQ, a.send_cq.cqn, Status.BAD_RES_STATE)
    finding = only(world.a)
    assert (finding.kind, finding.object_kind, finding.number) == (
        FindingKind.DESTROY_WHILE_USED,
        "cq",
        a.send_cq.cqn,
    )


def test_a_program_that_ends_may_try_in_any_order_but_not_for_pedants() -> None:
    world = World()
    card = world.a
    kept(card)
    for level, expected in ((NORMAL, []), (PEDANTIC, [FindingKind.PROGRAM_DESTROY_WHILE_USED])):
        kept(card, level=level)
        uid = cmd.CreateUctxOut.from_bytes(card.run(Op.CREATE_UCTX, cmd.CreateUctxIn())).uid
        pd = cmd.AllocPdOut.from_bytes(card.run(Op.ALLOC_PD, cmd.BareIn(uid=uid))).pd
        # Past the door: what a program's key needs (a user memory object) is not what this is about.
        card.hca.pds.get(pd).refs += 1  # type: ignore[union-attr]
        assert card.submit(Op.DEALLOC_PD, cmd.DeallocPdIn(uid=uid, pd=pd))[0] == Status.BAD_RES_STATE
        assert found(card) == expected


@pytest.mark.parametrize("remote", [False, True])
def test_a_key_after_its_destruction(remote: bool) -> None:
    world, a, b = pair()
    kept(world.a, world.b)
    end = b if remote else a
    key = end.card.register(end.buffer(64), 64)
    start = end.card.mkey(key).start
    end.card.destroy_key(key)
    if remote:
        a.write(a.buffer(64), 64, start, key)
    else:
        a.write(start, 64, b.buffer(64), b.card.key, key=key)
    world.settle()
    finding = only(end.card)
    assert (finding.kind, finding.object_kind, finding.number) == (
        FindingKind.KEY_AFTER_INVALIDATION,
        "mkey",
        key >> 8,
    )
    assert "by DESTROY_MKEY" in finding.text
    assert f"{'the peer of ' * remote}QP {end.qpn:#x}" in finding.text
    assert found(a.card if remote else b.card) == []


def test_a_key_after_local_invalidation() -> None:
    world, a, b = pair()
    kept(world.b)
    mkey = free_key(world.b)
    pages = [b.card.alloc(4096) for _ in range(4)]
    register(b, mkey, pages)
    world.settle()
    key, start = mkey.handle << 8 | mkey.variant, mkey.start
    umr(b, mkey, mask=1 << MkeyMask.FREE, free=1)
    world.settle()
    assert found(world.b) == []
    a.write(a.buffer(64), 64, start, key)
    world.settle()
    finding = only(world.b)
    assert finding.kind == FindingKind.KEY_AFTER_INVALIDATION
    assert f"LOCAL_INV of QP {b.qpn:#x}" in finding.text
    assert what(finding.life) == ["created", "registered with variant 0x11", "invalidated"]


def test_the_old_variant_of_a_key_that_was_registered_again() -> None:
    world, a, b = pair()
    kept(world.b)
    mkey = free_key(world.b)
    pages = [b.card.alloc(4096) for _ in range(4)]
    register(b, mkey, pages)
    world.settle()
    old, start = mkey.handle << 8 | mkey.variant, mkey.start
    umr(b, mkey, mask=1 << MkeyMask.FREE, free=1)
    register(b, mkey, pages, variant=0x12)
    world.settle()
    a.write(a.buffer(64), 64, start, old)
    world.settle()
    assert only(world.b).kind == FindingKind.KEY_AFTER_INVALIDATION
    assert f"LOCAL_INV of QP {b.qpn:#x}" in only(world.b).text


def test_a_key_after_the_peer_has_invalidated_it() -> None:
    world, a, b = pair()
    kept(world.b)
    key = world.b.register(b.buffer(64), 64)
    for _ in range(2):
        b.post_recv(b.buffer(64), 64)
    a.post(WqeOpcode.SEND_INVAL, a.sge(a.buffer(b"x" * 8), 8), imm=key)
    world.settle()
    assert world.b.mkey(key).free
    assert found(world.b) == []
    a.write(a.buffer(64), 64, world.b.mkey(key).start, key)
    world.settle()
    assert only(world.b).kind == FindingKind.KEY_AFTER_INVALIDATION
    assert f"SEND_INV of the peer of QP {b.qpn:#x}" in only(world.b).text


def test_an_invalidation_of_what_is_invalid() -> None:
    world, a, b = pair()
    kept(world.b)
    key = world.b.register(b.buffer(64), 64)
    world.b.destroy_key(key)
    b.post_recv(b.buffer(64), 64)
    a.post(WqeOpcode.SEND_INVAL, a.sge(a.buffer(b"x" * 8), 8), imm=key)
    world.settle()
    assert only(world.b).kind == FindingKind.KEY_AFTER_INVALIDATION
    assert "SEND_INV of the peer" in only(world.b).text
    world, _, b = pair()
    kept(world.b)
    key = world.b.register(b.buffer(64), 64)
    world.b.destroy_key(key)
    umr(b, key >> 8, mask=1 << MkeyMask.FREE, free=1, variant=key & 0xFF)
    world.settle()
    assert only(world.b).kind == FindingKind.KEY_AFTER_INVALIDATION
    assert f"a UMR of QP {b.qpn:#x}" in only(world.b).text


def test_a_doorbell_after_destruction() -> None:
    world, a, _ = pair()
    kept(world.a)
    a.destroy()
    a.send(a.buffer(8), 8)
    world.a.destroy(Op.DESTROY_CQ, a.send_cq.cqn)
    world.a.arm_cq(a.send_cq.cqn, 0, False)
    rung = world.a.firmware.findings("h0")
    assert [(each.kind, each.object_kind, each.number) for each in rung] == [
        (FindingKind.DOORBELL_AFTER_DESTROY, "qp", a.qpn),
        (FindingKind.DOORBELL_AFTER_DESTROY, "cq", a.send_cq.cqn),
    ]


def test_a_doorbell_of_a_dead_event_queue() -> None:
    world = World()
    card = world.a
    kept(card)
    card.destroy(Op.DESTROY_EQ, card.eqn)
    card.update_eq(arm=True)
    assert (only(card).kind, only(card).object_kind) == (FindingKind.DOORBELL_AFTER_DESTROY, "eq")


def test_transitions_out_of_order() -> None:
    world = World()
    kept(world.a)
    end = End(world.a)
    assert end.apply(Op.RTR2RTS_QP) == Status.BAD_QP_STATE
    finding = only(world.a)
    assert (finding.kind, finding.number) == (FindingKind.MODIFY_OUT_OF_ORDER, end.qpn)
    assert "RTR2RTS_QP" in finding.text
    assert "state RST" in finding.text
    end.to_init()
    assert end.apply(Op.QP_2ERR) == 0
    assert end.qp.state == ERR
    (life,) = [life for life in lives(world.a, "qp") if life.number == end.qpn]
    assert what(life) == ["created", "taken to INIT", "taken to ERR"]
    assert [event.by for event in life.events] == ["CREATE_QP", "RST2INIT_QP", "QP_2ERR"]


def test_who_does_not_know_yet_that_the_card_gave_up_has_done_nothing_wrong() -> None:
    """The peer breaks a connection while its own host goes on with it: no driver can know that in time."""
    world, a, b = pair()
    kept(world.a, world.b)
    a.write(a.buffer(8), 8, b.buffer(8), 0xABCDEF77)
    world.settle()
    assert a.qp.state == b.qp.state == ERR
    for end in (a, b):
        assert end.apply(Op.RTS2RTS_QP) == Status.BAD_QP_STATE
    assert found(world.a) == found(world.b) == []
    assert a.apply(Op.QP_2ERR) == 0
    assert a.apply(Op.RTS2RTS_QP) == Status.BAD_QP_STATE
    assert found(world.a) == [FindingKind.MODIFY_OUT_OF_ORDER]


def test_lives_are_freed_in_pieces() -> None:
    """A reset frees none of them at once: a host chooses how many there are."""
    world = World()
    card = world.a
    ways: tuple[Callable[[], None], ...] = (
        lambda: card.event(Reset("flr")),
        lambda: kept(card, level=Strictness.OFF),
    )
    for forget in ways:
        kept(card)
        for _ in range(3 * graveyard.PIECE):
            card.alloc_pd()
        # Past the door: what is forgotten, and not freed yet, shows nowhere.
        mine = card.hca.history._lives  # type: ignore[union-attr]
        forget()
        assert len(mine) >= 2 * graveyard.PIECE
        assert not lives(card)
        while card.hca.graveyard.shrink():
            pass
        assert not mine


def test_what_is_left_at_teardown() -> None:
    world = World()
    card = world.a
    kept(card)
    pd = card.alloc_pd()
    card.run(Op.TEARDOWN_HCA, cmd.TeardownHcaIn())
    left = card.firmware.findings("h0")
    assert {finding.kind for finding in left} == {FindingKind.LEAK_AT_TEARDOWN}
    (mine,) = [finding for finding in left if (finding.object_kind, finding.number) == ("pd", pd)]
    assert "TEARDOWN_HCA" in mine.text
    assert what(mine.life) == ["created"]
    assert not lives(card)


@pytest.mark.parametrize(
    ("reason", "level", "expected"),
    [
        ("flr", NORMAL, set()),
        ("flr", PEDANTIC, {FindingKind.LEAK_AT_RESET}),
        ("lost_connection", PEDANTIC, set()),
    ],
)
def test_what_is_left_at_a_reset(reason: str, level: Strictness, expected: set[FindingKind]) -> None:
    world = World()
    kept(world.a, level=level)
    world.a.alloc_pd()
    world.a.event(Reset(reason))
    assert set(found(world.a)) == expected


def test_what_a_user_context_leaves() -> None:
    world = World()
    card = world.a
    for level, expected in ((NORMAL, []), (PEDANTIC, [FindingKind.LEAK_OF_CONTEXT])):
        kept(card, level=level)
        uid = cmd.CreateUctxOut.from_bytes(card.run(Op.CREATE_UCTX, cmd.CreateUctxIn())).uid
        card.run(Op.ALLOC_PD, cmd.BareIn(uid=uid))
        card.run(Op.DESTROY_UCTX, cmd.DestroyUctxIn(uid=uid))
        assert found(card) == expected


def test_a_user_context_that_is_gone() -> None:
    world = World()
    card = world.a
    kept(card)
    uid = cmd.CreateUctxOut.from_bytes(card.run(Op.CREATE_UCTX, cmd.CreateUctxIn())).uid
    card.run(Op.DESTROY_UCTX, cmd.DestroyUctxIn(uid=uid))
    assert card.submit(Op.ALLOC_PD, cmd.BareIn(uid=uid))[0]
    assert (only(card).kind, only(card).object_kind, only(card).number) == (
        FindingKind.USE_AFTER_DESTROY,
        "uctx",
        uid,
    )


@pytest.mark.parametrize("level", [NORMAL, PEDANTIC])
def test_what_never_was_is_for_pedants(level: Strictness) -> None:
    world, a, b = pair()
    kept(world.a, world.b, level=level)
    refused(world.a, Op.DEALLOC_PD, 0x1234, Status.BAD_RES)
    world.a.arm_cq(0x4321, 0, False)
    a.write(a.buffer(8), 8, b.buffer(8), 0xABCDEF77)
    world.settle()
    expected = [FindingKind.UNKNOWN_NUMBER, FindingKind.UNKNOWN_DOORBELL]
    assert found(world.a) == (expected if level == PEDANTIC else [])
    assert found(world.b) == ([FindingKind.UNKNOWN_KEY] if level == PEDANTIC else [])


def test_nothing_is_kept_unless_asked_for() -> None:
    world = World()
    card = world.a
    pd = card.alloc_pd()
    card.destroy(Op.DEALLOC_PD, pd)
    refused(card, Op.DEALLOC_PD, pd, Status.BAD_RES)
    assert not card.firmware.findings("h0")
    assert not lives(card)
    kept(card)
    kept(card, level=Strictness.OFF)
    pd = card.alloc_pd()
    assert not lives(card)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_LIVES", 40)
    monkeypatch.setattr(history, "MOST_GRAVES", 3)
    monkeypatch.setattr(history, "MOST_FINDINGS", 4)
    world = World()
    card = world.a
    kept(card)
    pds = [card.alloc_pd() for _ in range(60)]
    kept_of = card.hca.history
    assert kept_of is not None
    assert len(lives(card)) == 40
    assert kept_of.untracked >= 20
    for pd in pds:
        card.destroy(Op.DEALLOC_PD, pd)
    assert len([life for life in lives(card) if not life.alive]) == 3
    dead = [life.number for life in lives(card) if not life.alive]
    for pd in dead:
        refused(card, Op.DEALLOC_PD, pd, Status.BAD_RES)
    assert len(found(card)) == 3
    pds = [card.alloc_pd() for _ in range(10)]
    card.run(Op.TEARDOWN_HCA, cmd.TeardownHcaIn())
    assert len(found(card)) == 4
    assert kept_of.left_out > 0


def test_a_long_life_keeps_its_beginning_and_its_end() -> None:
    world = World()
    kept(world.a)
    end = End(world.a)
    for _ in range(20):
        end.to_init()
        assert end.apply(Op.QP_2RST) == 0
    (life,) = [life for life in lives(world.a, "qp") if life.number == end.qpn]
    assert len(life.events) == history.MOST_EVENTS
    assert life.left_out == 41 - history.MOST_EVENTS
    assert life.events[0].what == "created"
    assert life.events[-1].what == "taken to RST"


def test_findings_survive_a_dump_and_a_restore() -> None:
    world = World()
    card = world.a
    kept(card)
    pd = card.alloc_pd()
    card.destroy(Op.DEALLOC_PD, pd)
    refused(card, Op.DEALLOC_PD, pd, Status.BAD_RES)
    card.firmware.restore(card.firmware.dump())
    assert found(card) == [FindingKind.DOUBLE_DESTROY]
    again = card.alloc_pd()
    card.destroy(Op.DEALLOC_PD, again)
    refused(card, Op.DEALLOC_PD, again, Status.BAD_RES)
    assert len(found(card)) == 2


def test_each_kind_has_a_rule_and_a_test_here() -> None:
    assert set(FINDING_RULES) == set(FindingKind)
    source = Path(__file__).read_text()
    assert [kind for kind in FindingKind if f"FindingKind.{kind.name}" not in source] == []
