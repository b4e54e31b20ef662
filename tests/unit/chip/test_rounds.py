"""Turns of a rack's boards in rounds, and work of two of them that is set apart."""

from collections.abc import Callable

import pytest

from vhca.chip.rounds import APART_NS, ROUND_NS, Rounds


class Member:
    """A board that notes its turns, and does something in them."""

    def __init__(self, stage: "Stage", name: str) -> None:
        self.stage = stage
        self.name = name
        self.apart = False
        self.within: Callable[[], None] = lambda: None

    def turn(self) -> None:
        assert not self.apart
        self.stage.seen.append(self.name)
        self.within()


class Stage:
    def __init__(self) -> None:
        self.now = 0
        self.calls: list[Callable[[], None]] = []
        self.seen: list[str] = []
        self.most = 8
        self.rounds = Rounds(self.calls.append, lambda: self.now)
        self.members = {name: Member(self, name) for name in "abcdef"}

    def ask(self, names: str) -> None:
        for name in names:
            self.rounds.ask(self.members[name])

    def round(self) -> None:
        self.calls.pop(0)()

    def part(self, near: str, far: str) -> None:
        """In the turn of `near`, set something apart."""

        def within() -> None:
            done = self.rounds.set_apart(
                self.members[near], self.members[far], lambda: self.seen.append(f"{near}{far} done"), self.most
            )
            self.seen.append(f"{near}{far} {'apart' if done else 'alone'}")

        self.members[near].within = within


def test_each_has_one_turn_in_the_order_of_asking() -> None:
    stage = Stage()
    stage.members["a"].within = lambda: stage.ask("a")
    stage.ask("abc")
    assert len(stage.calls) == 1
    stage.round()
    assert stage.seen == ["a", "b", "c"]
    stage.round()
    assert stage.seen == ["a", "b", "c", "a"]


def test_a_round_ends_by_the_clock_and_who_is_left_comes_first() -> None:
    stage = Stage()

    def long() -> None:
        stage.now += ROUND_NS
        stage.ask("a")

    stage.members["a"].within = long
    stage.ask("abc")
    stage.round()
    assert stage.seen == ["a"]
    stage.round()
    assert stage.seen == ["a", "b", "c", "a"]


def test_what_is_set_apart_ends_with_the_round() -> None:
    stage = Stage()
    stage.part("a", "b")
    stage.ask("acd")
    stage.round()
    assert stage.seen == ["a", "ab apart", "c", "d", "ab done"]
    assert not stage.rounds.parted
    assert not stage.members["a"].apart


def test_it_ends_with_a_round_that_is_cut_short() -> None:
    stage = Stage()
    stage.part("a", "b")

    def long() -> None:
        stage.now += ROUND_NS

    stage.members["c"].within = long
    stage.ask("acd")
    stage.round()
    assert stage.seen == ["a", "ab apart", "c", "ab done"]
    stage.round()
    assert stage.seen[-1] == "d"


def test_nothing_is_set_apart_if_nobody_else_waits() -> None:
    stage = Stage()
    stage.part("a", "b")
    stage.ask("ab")
    stage.round()
    assert stage.seen == ["a", "ab alone", "b"]


def test_nobody_else_waits_if_all_others_are_apart() -> None:
    stage = Stage()
    stage.part("a", "b")
    stage.part("c", "d")
    stage.ask("acbd")
    stage.round()
    assert stage.seen == ["a", "ab apart", "c", "cd alone", "d", "ab done", "b"]


def test_who_is_apart_has_its_turn_in_the_same_round_behind_the_others() -> None:
    stage = Stage()
    for near, far in ("ab", "cd", "ba"):
        stage.part(near, far)
    stage.ask("abcd")
    stage.round()
    assert stage.seen == ["a", "ab apart", "c", "cd alone", "d", "ab done", "b", "ba alone"]


def test_both_directions_of_two_pairs_are_set_apart() -> None:
    stage = Stage()
    for near, far in ("ab", "cd", "ba", "dc"):
        stage.part(near, far)
    stage.ask("abcdef")
    stage.round()
    first, then = ["a", "ab apart", "c", "cd apart", "e", "f", "ab done", "cd done"], ["b", "ba apart", "d", "dc alone"]
    assert stage.seen == [*first, *then, "ba done"]


def test_as_many_are_set_apart_as_may_be() -> None:
    stage = Stage()
    stage.most = 1
    for near, far in ("ab", "cd", "ef"):
        stage.part(near, far)
    stage.ask("acef")
    stage.round()
    assert stage.seen == ["a", "ab apart", "c", "cd alone", "e", "ef alone", "f", "ab done"]


def test_what_is_set_apart_does_not_wait_for_the_end_of_a_long_round() -> None:
    stage = Stage()
    stage.part("a", "b")

    def long() -> None:
        stage.now += APART_NS

    stage.members["c"].within = long
    stage.ask("abcd")
    stage.round()
    assert stage.seen == ["a", "ab apart", "c", "ab done", "d", "b"]


def test_a_turn_that_fails_loses_nothing() -> None:
    stage = Stage()
    stage.part("a", "b")

    def fail() -> None:
        raise RuntimeError("c")

    stage.members["c"].within = fail
    stage.ask("abcd")
    with pytest.raises(RuntimeError, match="c"):
        stage.round()
    assert stage.seen == ["a", "ab apart", "c", "ab done"]
    stage.round()
    assert stage.seen[4:] == ["d", "b"]


def test_a_finish_that_fails_keeps_no_other_from_its_own() -> None:
    stage = Stage()
    stage.part("c", "d")

    def within() -> None:
        def fail() -> None:
            raise RuntimeError("ab")

        assert stage.rounds.set_apart(stage.members["a"], stage.members["b"], fail, 8)

    stage.members["a"].within = within
    stage.ask("ace")
    with pytest.raises(RuntimeError, match="ab"):
        stage.round()
    assert stage.seen == ["a", "c", "cd apart", "e", "cd done"]
    assert not any(member.apart for member in stage.members.values())
