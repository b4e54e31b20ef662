"""Schedules: what is read, what is refused, and that everything happens when it should, the same in every run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fabric.test_topologies import TopologyBench
from vhca.fabric import shapes
from vhca.fabric.faults import Fault
from vhca.fabric.line import LineConfig
from vhca.fabric.schedule import MAX_EVENTS, Event, Player, Schedule, ScheduleError, read

TEXT = """
seed = 7
[[event]]
at = "1s"
cable = "hca0"
action = "down"
for = "200ms"
every = "10s"
times = 3
jitter = "2s"
[[event]]
at = 2.5
cable = "s1/1"
action = "drop"
probability = 0.25
opcode = "SEND"
direction = "from"
[[event]]
at = "0s"
cable = "s1/1"
action = "set"
rate = "25Gbps"
latency = "2us"
bit_error_rate = 1e-9
[[event]]
at = "1ms"
cable = "hca0"
action = "delay"
delay = "5ms"
"""
MS = 10**6
S = 10**9


def event(words: str) -> str:
    return f'[[event]]\nat = "1s"\ncable = "hca0"\n{words}\n'


def test_a_schedule_is_read() -> None:
    assert read(TEXT) == Schedule(
        (
            Event(S, "hca0", "down", 200 * MS, 10 * S, 3, 2 * S),
            Event(2500 * MS, "s1/1", "drop", rule={"probability": 0.25, "opcode": "SEND"}, direction="from"),
            Event(0, "s1/1", "set", line=LineConfig(25 * 10**9, 2_000, 1e-9)),
            Event(MS, "hca0", "delay", rule={"delay_ns": 5 * MS}),
        ),
        7,
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "give 1 to"),
        ("event = 1", "array of tables"),
        ("[[event]]", "needs at, cable and action"),
        ("seed = 1.5", "whole number"),
        ("sede = 1", "means nothing"),
        ("\x00", "not TOML"),
        (event('action = "explode"'), "event 1: action"),
        (event('action = "down"\nfor = "soon"'), "for:"),
        (event('action = "up"\nfor = "1s"'), "not undone"),
        (event('action = "down"\nevery = "1us"'), "every:"),
        (event('action = "down"\ntimes = 2'), "goes with every"),
        (event('action = "down"\nevery = "1s"\ntimes = 0'), "counts from 1"),
        (event('action = "down"\nrate = "1Gbps"'), "'rate' means nothing"),
        (event('action = "set"\nrate = 25'), "rate = '25'"),
        (event('action = "set"\nbit_error_rate = 1'), "not in 0 .. 0.1"),
        (event('action = "drop"\nprobability = 2'), "not in 0 .. 1"),
        (event('action = "drop"\ndelay = "1s"'), "goes with action delay"),
        (event('action = "delay"'), "which needs it"),
        (event('action = "drop"\ndirection = "sideways"'), "direction:"),
        (event('action = "drop"\nnth = 1\nlimit = 2'), "nth counts"),
        (event('action = "down"') * (MAX_EVENTS + 1), "give 1 to"),
    ],
)
def test_what_is_no_schedule_is_refused_with_a_sentence(text: str, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        read(text)


@given(st.text())
def test_any_text_is_a_schedule_or_an_error(text: str) -> None:
    with pytest.raises(ScheduleError):
        read(text)


def played(text: str, steps: int, step_s: float) -> tuple[TopologyBench, Player, list[bool]]:
    """A ring with a card while a schedule is carried out, and whether the card's cable is in, step by step."""
    bench = TopologyBench(shapes.ring(3, 6), ("h1",))
    bench.pass_time(1)
    player = bench.fabric.play(read(text))
    states = []
    for _ in range(steps):
        bench.pass_time(step_s)
        states.append(bench.fabric.ports["hca0"].link.plugged)
    return bench, player, states


def test_a_cable_is_pulled_and_plugged_when_the_schedule_says() -> None:
    text = event('action = "down"\nfor = "200ms"\nevery = "500ms"\ntimes = 2')
    _, player, states = played(text, 20, 0.1)
    assert [at for at, plugged in enumerate(states, 1) if not plugged] == [10, 11, 15, 16]
    assert (player.happened, player.left) == (2, False)


def test_jitter_is_what_the_seed_says_and_does_not_add_up() -> None:
    def downs(seed: int) -> list[int]:
        text = f"seed = {seed}\n" + event('action = "down"\nfor = "20ms"\nevery = "1s"\ntimes = 5\njitter = "900ms"')
        _, _, states = played(text, 700, 0.01)
        return [at for at, plugged in enumerate(states, 1) if not plugged and states[at - 2]]

    one = downs(1)
    assert one == downs(1) != downs(2)
    assert all(100 * n <= at <= 100 * n + 91 for n, at in enumerate(one, 1))
    assert len({at % 100 for at in one}) > 1


def test_rules_lines_and_disabled_ports_come_and_go() -> None:
    text = "".join(
        event(f'action = "{action}"\nfor = "1s"\n{more}')
        for action, more in (("drop", "probability = 0.5"), ("set", 'latency = "1us"'), ("disable", ""))
    )
    bench, player, _ = played(text, 1, 1.5)
    assert bench.fabric.faults("hca0") == [("both", Fault("drop", probability=0.5))]
    assert bench.fabric.cables.line("hca0") == LineConfig(latency_ns=1_000)
    (status,) = bench.fabric.cable_status()
    assert (status.disabled, status.up) == (True, False)
    bench.pass_time(1)
    assert bench.fabric.cable_status() == []
    assert bench.fabric.ports["hca0"].up
    assert not player.left


def test_one_that_is_stopped_does_nothing_more() -> None:
    bench, player, _ = played(event('action = "down"\nevery = "1s"'), 1, 1.5)
    assert player.left
    player.stop()
    bench.fabric.link_up("hca0")
    bench.pass_time(3)
    assert bench.fabric.ports["hca0"].link.plugged
    assert (player.happened, player.left) == (1, False)


@pytest.mark.parametrize(("cable", "more"), [("h9", ""), ("s1/99", ""), ("s1/1", 'direction = "to_card"')])
def test_a_cable_that_is_not_there_is_an_error_before_anything_happens(cable: str, more: str) -> None:
    bench = TopologyBench(shapes.ring(3, 6), ("h1",))
    text = f'[[event]]\nat = "0s"\ncable = "{cable}"\naction = "drop"\n{more}\n'
    with pytest.raises(ScheduleError, match="event 1"):
        bench.fabric.play(read(text))
    assert bench.fabric.cable_status() == []
