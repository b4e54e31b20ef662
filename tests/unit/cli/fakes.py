"""Stand-ins for a lab and its guests: commands are answered from a table, nothing is booted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vhca.hw.findings import Finding
from vhca.lab import CommandTimeout, Completed, Report


class FakeProcess:
    def __init__(self, args: Sequence[str], code: int | None, failure: Exception | None = None) -> None:
        self.args = list(args)
        self.code = code  # None: runs until it is killed
        self.pid = 42
        self.signals: list[int] = []
        self.stdin_closed = False
        self.stdout = FakeStream(b"")
        self.stderr = FakeStream(b"")
        self._failure = failure

    def wait(self, timeout_s: float | None = None) -> int:
        if self._failure is not None:
            raise self._failure
        if self.code is None:
            raise CommandTimeout("late")
        return self.code

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        self.code = -number

    def kill(self) -> None:
        self.send_signal(9)

    def terminate(self) -> None:
        self.send_signal(15)

    def close_stdin(self) -> None:
        self.stdin_closed = True


class FakeStream:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_all(self) -> bytes:
        return self.data


Answer = Callable[[str, Sequence[str]], tuple[int | None, str]]


class FakeGuest:
    def __init__(self, index: int, answer: Answer) -> None:
        self.name = f"g{index}"
        self.alive = True
        self.console_log = "booting\n"
        self.panic: Exception | None = None
        self.reports: list[Report] = []
        self.kernel_evidence = Path("/logs/kernel.log")
        self.processes: list[FakeProcess] = []
        self._answer = answer

    def popen(self, argv: Sequence[str], stdout: Any = None, stderr: Any = None, **_: Any) -> FakeProcess:
        code, text = self._answer(self.name, argv)
        process = FakeProcess(argv, code)
        process.stdout = FakeStream(text.encode())
        if stdout is not None:
            stdout(text.encode())
        self.processes.append(process)
        return process

    def kernel_reports(self) -> list[Report]:
        taken, self.reports = self.reports, []
        return taken

    def run(self, argv: Sequence[str], check: bool = False, **_: Any) -> Completed:
        code, text = self._answer(self.name, argv)
        assert code is not None
        return Completed(list(argv), code, text, "")


class FakeHca:
    def __init__(self, name: str) -> None:
        self.name = name
        self.count = {"tx_packets": 2, "tx_ud_packets": 1, "tx_bytes": 1 << 20, "rx_packets": 3, "rx_bytes": 1 << 20}

    def counters(self) -> dict[str, int]:
        return self.count

    def trace_tail(self, lines: int) -> list[str]:
        return [f"{self.name}: last command"]


class FakeLab:
    def __init__(self, answer: Answer, log_dir: Path, guests: int = 2) -> None:
        self.guest_count = guests
        self.guests = [FakeGuest(index, answer) for index in range(guests)]
        self.hcas = [FakeHca(f"h{index}") for index in range(guests)]
        self.log_dir = log_dir
        self.kernel_spec = "6.19"
        self.stops: list[bool] = []
        self.failed = False

    def start(self) -> FakeLab:
        return self

    def stop(self, failed: bool = False) -> None:
        self.stops.append(failed)

    found: tuple[Finding, ...] = ()

    def findings(self) -> tuple[Finding, ...]:
        return self.found

    def mark_failed(self) -> None:
        self.failed = True

    def __enter__(self) -> FakeLab:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop(failed=kind is not None)
