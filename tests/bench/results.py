"""What a run of the bench measured: every sample, by name, with the machine that it was measured on.

A name is words with `/` between them: `guests/ib_write_bw/65536/C`. The first says what was run, the last which engine,
or what else, and :data:`UNITS` what its numbers are.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

C: Final = "C"
PYTHON: Final = "Python"
SOFT: Final = "Soft-RoCE"
UNITS: Final = {
    "engine": "us of processor time for a message",
    "copy": "us for one plain copy of so many bytes",
    "guests": "as perftest: MiB/s, kmsg/s or us",
    "curve": "messages per second",
    "qps": "messages per second",
    "cards": "messages per second; fairness: least share of the mean; idle wait: ms; idle load: % of a processor",
    "pairs": "times what one pair moves",
    "memory": "KiB for both ends of a queue pair",
    "ipoib": "Mbit/s",
    "boot": "s",
    "failed": "1 for each run that failed and was tried again",
}


@dataclass(slots=True)
class Results:
    """Samples by name; breakdown by engine, one for each repeat, as :mod:`tests.bench.bench_breakdown` has them."""

    machine: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    breakdown: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """Whether the machine had other work before the run, or any of the runs that were added to it."""
        return bool(self.machine.get("load before", 0) > self.machine.get("processors", 1) / 2)

    def add(self, name: str, values: Iterable[float]) -> None:
        """More samples of one thing."""
        self.samples.setdefault(name, []).extend(values)

    def of(self, *words: object) -> float | None:
        """The median; None if it was not measured."""
        values = self.samples.get("/".join(map(str, words)))
        return median(values) if values else None

    def sizes(self, prefix: str, last: str) -> list[int]:
        """The numbers between a prefix and the last word, in order."""
        found = [
            name.split("/") for name in self.samples if name.startswith(f"{prefix}/") and name.endswith(f"/{last}")
        ]
        return sorted(int(words[-2]) for words in found)

    def to_json(self) -> str:
        """All of it as text that diffs well: one line for each name."""
        parts = {"machine": self.machine, "samples": self.samples, "breakdown": self.breakdown}
        lines = []
        for name, part in parts.items():
            rows = [f"  {json.dumps(key)}: {json.dumps(_rounded(value))}" for key, value in part.items()]
            lines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n}")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Results:
        """The other way; raises ValueError for what is not that."""
        return cls(**json.loads(text))

    def save(self, path: Path) -> None:
        """Into a file, with its folders."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_json())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def this_machine(kernel: str, accelerator: str) -> dict[str, Any]:
    """What has a say in the figures."""
    return {
        "processors": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "kernel of the guests": kernel,
        "accelerator": accelerator,
    }
