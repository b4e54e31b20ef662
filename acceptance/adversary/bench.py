"""A guest that is put before a bad card again and again, and judged by what its kernel says.

Assumes the guest can be reset at any time. Guarantees: a round takes bounded time; before each the driver is not loaded
and the kernel has nothing to say that was not told already.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from acceptance.places import scripts
from vhca.lab import Cache, CommandTimeout, Guest, GuestConfig, GuestError, Lab, Progress, Report

WORK: Final = ("/mnt/share/adversary.sh",)
ROUND_S: Final = 75.0
MEMORY_MIB: Final = 512
HANGS: Final = "the work did not end"
_NUMBERS: Final = re.compile(
    r", CPU#\d+: \S+|0x[0-9a-f]+|\b[0-9a-f]{8,16}\b|\+0x\S*|:\d+\b|\bCPU: ?\d+|\bPID: ?\d+|\d+"
)


@dataclass(frozen=True, slots=True)
class Sight:
    """What a kernel made of a bad card in one round.

    :ivar headlines: what it complained of, or that the work did not end. :ivar text: the first complaint, whole.
    """

    headlines: tuple[str, ...] = ()
    text: str = ""

    @property
    def signatures(self) -> frozenset[str]:
        """The complaints without numbers: what is the same from one time to the next."""
        return frozenset(signature(line) for line in self.headlines)


def signature(headline: str) -> str:
    """A headline without its numbers, addresses and offsets."""
    return " ".join(_NUMBERS.sub("#", headline).split())[:160]


@dataclass(slots=True)
class Bench:
    """The guest, and how many rounds it has seen.

    :ivar kernel: as `Lab(kernel=...)` takes it. :ivar command: what runs over the card.
    """

    kernel: str | Path
    command: Sequence[str] = WORK
    modules_dir: Path | None = None
    progress: Progress = field(default_factory=lambda: Progress(quiet=True))
    log_dir: Path | None = None
    share: Path | None = None
    rounds: int = 0
    resets: int = 0
    _lab: Lab | None = None
    _spoilt: bool = False

    def __enter__(self) -> Bench:
        """Boot."""
        share = self.share if self.share is not None else scripts()
        guest = GuestConfig(memory_mib=MEMORY_MIB, share=share, share_writable=False, autoload=False)
        self._lab = Lab(
            guests=1,
            kernel=self.kernel,
            guest=guest,
            modules_dir=self.modules_dir,
            log_dir=self.log_dir,
            progress=self.progress,
            cache=Cache(),
        )
        self._lab.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take it down."""
        if self._lab is not None:
            self._lab.stop()

    @property
    def release(self) -> str:
        """The kernel's version."""
        assert self._lab is not None
        return self._lab.prepared.kernel.release

    def round(self, rules: Sequence[str]) -> Sight:
        """Run the work once on a card with these rules."""
        assert self._lab is not None
        lab, guest = self._lab, self._lab.guests[0]
        if self._spoilt:
            self._renew(guest)
        self.rounds += 1
        faults = lab.faults("g0")
        for rule in rules:
            faults.add(rule)
        headlines: list[str] = []
        text = ""
        try:
            guest.run(list(self.command), timeout_s=ROUND_S)
        except CommandTimeout:
            headlines.append(HANGS)
        except GuestError as error:
            headlines.append(error.what.splitlines()[0])
            text = str(error)
        finally:
            lab.clear_faults()
        reports: list[Report] = []
        with contextlib.suppress(GuestError, OSError):
            reports = guest.kernel_reports()
        headlines = [report.headline for report in reports] + headlines
        text = reports[0].text if reports else text
        self._spoilt = bool(headlines) or not self._is_clean(guest)
        return Sight(tuple(headlines), text)

    def _is_clean(self, guest: Guest) -> bool:
        """Tell whether the driver is gone, so that the next round begins with a probe."""
        with contextlib.suppress(GuestError, OSError):
            return guest.run(["test", "!", "-e", "/sys/module/mlx5_core"], timeout_s=10).returncode == 0
        return False

    def _renew(self, guest: Guest) -> None:
        """Reset the machine: its kernel or its driver is not what it should be."""
        self.resets += 1
        guest.reset()
        guest.kernel_reports()
        self._spoilt = False
