"""Where the time of a boot went: the stages add up, whatever the order in which things happened."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vhca.lab import boot_times
from vhca.lab.boot_times import AGENT, FIRMWARE, HOST, INIT, KERNEL, STAGES, BootTimes

moments = st.floats(0, 1e4)


@given(command_s=moments, ends_s=st.dictionaries(st.sampled_from(sorted(STAGES)), moments))
def test_stages_add_up_to_the_whole_and_none_is_negative(command_s: float, ends_s: dict[int, float]) -> None:
    took_s = BootTimes(dict(ends_s)).durations_s(command_s)
    assert took_s.keys() == ends_s.keys()
    assert min(took_s.values(), default=0.0) >= 0
    assert sum(took_s.values()) == pytest.approx(max([command_s, *ends_s.values()]) - command_s)


def test_moments_of_the_guest_are_found_from_when_its_agent_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 105.0)
    times = BootTimes({HOST: 101.0})
    times.agent_ready(begun_s=1.5, started_s=2.0, ready_s=3.0)
    assert times.durations_s(100.0) == {HOST: 1.0, FIRMWARE: 1.0, KERNEL: 1.5, INIT: 0.5, AGENT: 1.0}


@given(st.tuples(*[st.floats(-1e9, 1e9)] * 3))
def test_a_guest_may_say_anything_and_no_stage_ends_in_the_future(said: tuple[float, float, float]) -> None:
    begun_s, before_s = time.monotonic() - 1, time.monotonic()
    times = BootTimes({HOST: before_s})
    times.agent_ready(*said)
    assert sum(times.durations_s(begun_s).values()) <= time.monotonic() - begun_s + 1e-6


def test_only_the_first_boot_counts() -> None:
    times = BootTimes()
    times.end(HOST, 1.0)
    times.end(HOST, 2.0)
    assert times.durations_s(0.0) == {HOST: 1.0}


def test_the_table_shows_what_there_is_and_its_sum() -> None:
    first, second = BootTimes({HOST: 10.5, FIRMWARE: 11.0}), BootTimes({HOST: 10.75})
    *_, host, firmware, total = boot_times.table(10.0, {"g0": first, "g1": second})
    assert re.split("  +", host) == [STAGES[HOST], "0.50", "0.75"]
    assert re.split("  +", firmware) == [STAGES[FIRMWARE], "0.50"]
    assert re.split("  +", total) == ["from the command until guests can be used", "1.00", "0.75"]


def test_a_process_knows_when_it_was_started() -> None:
    code = "from vhca.lab.boot_times import process_started_s; print(process_started_s())"
    before_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert before_s - 2 * tick_s <= float(done.stdout) <= time.monotonic()


def test_a_program_with_a_strange_name_does_not_mislead(tmp_path: Path) -> None:
    now_s, since_boot_s = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    ticks = int((since_boot_s - 5) * os.sysconf("SC_CLK_TCK"))
    stat = tmp_path / "stat"
    stat.write_text(f"7 (a) b (c) S {'0 ' * 18}{ticks} 0 0\n")
    assert boot_times.process_started_s(stat) == pytest.approx(now_s - 5, abs=1.0)
