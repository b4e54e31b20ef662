"""Rules of faults inside a card: what their words mean, and what is said of words that mean nothing."""

from __future__ import annotations

import pytest

from vhca.chip.fault_rules import EVER, KINDS, MOST_CHARACTERS, FaultRule, FaultRuleError, parse_rule
from vhca.wire.connectx.cmd import Op, Status


def test_the_words_of_a_rule() -> None:
    rule = parse_rule("command  create_mkey,DESTROY_* uid=2 nth=3 status=NO_RES_ERR syndrome=0x1234 from=1s until=2m")
    assert rule.text == "command create_mkey,DESTROY_* uid=2 nth=3 status=NO_RES_ERR syndrome=0x1234 from=1s until=2m"
    assert rule.codes is not None
    assert {Op.CREATE_MKEY, Op.DESTROY_QP} <= rule.codes
    assert Op.CREATE_CQ not in rule.codes
    assert rule.match == {"uid": (2, 2)}
    assert (rule.nth, rule.action, rule.value, rule.extra) == (3, "status", Status.NO_RES_ERR, {"syndrome": 0x1234})
    assert (rule.from_ns, rule.until_ns) == (10**9, 120 * 10**9)


def test_numbers_ranges_and_any() -> None:
    assert parse_rule("command 0x500 lost").codes == frozenset((int(Op.CREATE_QP),))
    assert parse_rule("command any lost").codes is None
    assert parse_rule("command lost").codes is None
    assert parse_rule("command QUERY_QP qpn=0x40..0x4f lost").match == {"qpn": (0x40, 0x4F)}
    late = parse_rule("command any late=1.5s probability=0.25 seed=7 skip=1 limit=2")
    assert (late.value, late.probability, late.seed, late.skip, late.limit) == (1_500_000_000, 0.25, 7, 1, 2)
    assert parse_rule("command any damage=8:0x80").extra == {"mask": 0x80}
    assert parse_rule("command any damage=8").extra == {"mask": 0xFF}


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_each_kind_is_a_rule(kind: str) -> None:
    assert parse_rule(KINDS[kind].example).kind == kind


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the rule is empty; a rule begins with command"),
        ("kommand CREATE_QP lost", "'kommand' is nothing that a rule can be about; a rule begins with command"),
        ("command CREATE_MKY lost", "no command is called 'CREATE_MKY'; did you mean CREATE_MKEY"),
        ("command CREATE_QP", "what shall happen?  A rule for command has one of lost, late, twice, status, damage"),
        ("command any lost twice", "lost and twice: a rule does one thing"),
        ("command any lost lost", "lost is there twice"),
        ("command any lost=3", "lost takes no value"),
        ("command QUERY_QP qpx=3 lost", "knows no 'qpx' (did you mean qpn?); it can be told by opcode, uid"),
        ("command any qpn=3 lost", "knows no 'qpn'"),
        ("command QUERY_QP qpn=0x1000000 lost", "qpn='0x1000000': it is 0 to 0xffffff"),
        ("command QUERY_QP qpn=9..3 lost", "the second number is the larger one"),
        ("command QUERY_QP qpn=many lost", "give a number, decimal or as 0x4b"),
        ("command any status=0", "status=0 is success"),
        ("command any status=BROKEN", "no status is called 'BROKEN'"),
        ("command any lost syndrome=1", "syndrome goes with status, not with lost"),
        ("command any late=3", "'3' is no time up to"),
        ("command any late=11m", "is no time up to 10m"),
        ("command any lost nth=0", "nth='0': it is 1 to"),
        ("command any lost nth=1 limit=2", "nth says which one is hit"),
        ("command any lost probability=2", "give a number from 0 to 1"),
        ("command any lost probability=nan", "give a number from 0 to 1"),
        ("command any lost from=2s until=1s", "until is a time behind from"),
        ("event PORT_CHANG lost", "did you mean PORT_CHANGE"),
        ("event PORT_CHANGE cqn=3 lost", "it can be told by eqn, sub_type, port_num"),
        ("event any port_num=1 lost", "knows no 'port_num'"),
        ("completion REQ flip=bytes", "a completion has no such field; it has wqe_id"),
        ("completion REQ flip=opcode:0x10", "it is 1 to 0xf"),
        ("completion REQ lost vendor_error_syndrome=3", "vendor_error_syndrome goes with syndrome"),
        ("interrupt 3 lost", "knows no '3'"),
        ("interrupt vector=3 twice", "what happens: lost, late"),
        ("health synd=1 nth=2", "a rule for health knows no 'nth'; chosen by from, until; what happens: stop, synd"),
        ("health rfr=1", "what shall happen?"),
        ("health stop rfr=1", "rfr goes with synd"),
        ("health synd=0", "it is 1 to"),
        ("card lost", "what happens: removed"),
        ("link down", "what happens: untrained"),
        ("dma adr=3 fail", "did you mean addr?"),
        ("command any lost " + "x" * MOST_CHARACTERS, f"a rule has at most {MOST_CHARACTERS} characters"),
    ],
)
def test_what_means_nothing_is_refused_and_says_what_there_is(text: str, said: str) -> None:
    with pytest.raises(FaultRuleError) as refused:
        parse_rule(text)
    assert said in str(refused.value)


def _hits(rule: FaultRule, times: int) -> list[int]:
    rule.begin(1, 0)
    return [number for number in range(1, times + 1) if rule.strikes(0)]


def test_which_are_hit() -> None:
    assert _hits(parse_rule("command any lost"), 3) == [1, 2, 3]
    assert _hits(parse_rule("command any lost nth=2"), 5) == [2]
    assert _hits(parse_rule("command any lost skip=1 limit=2"), 9) == [2, 3]
    by_chance = _hits(parse_rule("command any lost probability=0.5 seed=3"), 100)
    assert by_chance == _hits(parse_rule("command any lost probability=0.5 seed=3"), 100)
    assert by_chance != _hits(parse_rule("command any lost probability=0.5 seed=4"), 100)
    assert 30 < len(by_chance) < 70


def test_when_they_are_hit() -> None:
    rule = parse_rule("command any lost from=1s until=2s")
    rule.begin(1, 10 * 10**9)
    seconds = (10.0, 10.9, 11.0, 11.9, 12.0, 20.0)
    assert [rule.strikes(int(second * 1e9)) for second in seconds] == [False, False, True, True, False, False]
    assert (rule.seen, rule.hits) == (2, 2)
    assert parse_rule("command any lost").until_ns == EVER
