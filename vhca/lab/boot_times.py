"""The stopwatch beside a power switch: what a guest's first boot spent its time on, from the command to the work.

Moments are seconds of the host's monotonic clock. A guest's kernel counts from zero, on a clock that runs as fast: when
the agent says how late it is there, the moments before it are known, too. What the kernel does before it has a clock
counts as firmware. A port becomes ACTIVE when its card gets power, long before there is a driver: what is waited for is
the driver.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from vhca.lab.table import aligned

HOST, FIRMWARE, KERNEL, INIT, AGENT, MODULES, ACTIVE = range(7)
STAGES: Final = MappingProxyType(
    {
        HOST: "host: image, cards, until QEMU starts",
        FIRMWARE: "QEMU, firmware, kernel until it has a clock",
        KERNEL: "kernel, until it starts /init",
        INIT: "/init: file systems, network, until it starts the agent",
        AGENT: "agent, until it is ready",
        MODULES: "modules of the card: the driver starts it",
        ACTIVE: "the other guests, until every port is ACTIVE",
    }
)
"""What each stage is for, in order."""
WHOLE: Final = "from the command until guests can be used"


def process_started_s(stat: Path = Path("/proc/self/stat")) -> float:
    """When this process was started, on the monotonic clock; to 10 ms."""
    ticks = int(stat.read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s


@dataclass(slots=True)
class BootTimes:
    """The moments at which the stages of one guest's boot ended."""

    ends_s: dict[int, float] = field(default_factory=dict)

    def end(self, stage: int, moment_s: float | None = None) -> None:
        """This stage ended now, or at that moment; only the first time counts."""
        self.ends_s.setdefault(stage, time.monotonic() if moment_s is None else moment_s)

    def agent_ready(self, begun_s: float, started_s: float, ready_s: float) -> None:
        """The agent is ready now; the three are on the guest's clock: /init began, the agent was started, is ready."""
        now_s = time.monotonic()
        for stage, moment_s in ((FIRMWARE, 0.0), (KERNEL, begun_s), (INIT, started_s), (AGENT, ready_s)):
            self.end(stage, min(now_s, now_s - ready_s + moment_s))  # a guest may say anything

    def durations_s(self, command_s: float) -> dict[int, float]:
        """How long each stage took, from `command_s` on: none is negative, and together they are the whole time.

        A stage that ended before one that stands before it took no time.
        """
        took_s, now_s = {}, command_s
        for stage in STAGES:
            if stage in self.ends_s:
                took_s[stage] = max(0.0, self.ends_s[stage] - now_s)
                now_s += took_s[stage]
        return took_s


def table(command_s: float, guests: Mapping[str, BootTimes]) -> list[str]:
    """Lines that show where the time went, a column for each guest; the last row is their sum."""
    took_s = [times.durations_s(command_s) for times in guests.values()]
    rows = [
        [name, *(f"{own[stage]:.2f}" if stage in own else "" for own in took_s)]
        for stage, name in STAGES.items()
        if any(stage in own for own in took_s)
    ]
    rows.append([WHOLE, *(f"{sum(own.values()):.2f}" for own in took_s)])
    return aligned(["where the time went [s]", *guests], rows)
