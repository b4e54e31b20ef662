"""`vhca run`: boot guests on one fabric, run a command in them, end with its status."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final

from vhca.cli import status
from vhca.cli.findings_options import add_findings_option, with_findings
from vhca.cli.kernel_word import judged
from vhca.cli.options import add_kernel_bug_options, add_lab_options, make_lab, seconds
from vhca.cli.trace_options import add_trace_option, traced

if TYPE_CHECKING:
    from vhca.lab import Guest, Process

NAME: Final = "run"
SUMMARY: Final = "boot guests and run a command in them"
DESCRIPTION: Final = """\
Boot guests on one InfiniBand fabric, run a command in guest 0, and end with its exit status.

What the command prints is passed on as it comes.  Guests reach each other by name (g0, g1, ...) over a management
network that exists on this machine only; the InfiniBand device in each is mlx5_0.  A host folder given with
--share is at /mnt/share in every guest."""
EPILOG: Final = f"""\
examples:
  vhca run -- ibv_devinfo
  vhca run --guests 2 --each -- ibstat
  vhca run --guests 2 -- sh -c 'ping -c 3 g1'
  vhca run --kernel ~/linux --share ~/work -- /mnt/share/test.sh
  vhca run --kernel arch/x86/boot/bzImage --modules . --timeout 5m -- rmmod mlx5_ib
  vhca run --capture run.pcapng -- sminfo
  vhca run --trace run.html -- ibv_devinfo
  vhca run --findings -- sh -c 'ibv_devinfo; modprobe -r mlx5_ib'
  vhca run --module rpcrdma --package nvme-cli -- nvme list
  vhca run --guests 2 --package ucx -- ucx_info -d
  vhca run --suite forky -- ibv_devinfo
  vhca run --root / -- ibv_devinfo
  vhca run --keep work -- sh -c 'date >> /root/runs; cat /root/runs'
  vhca run --memory 2G --tools perf,bpftrace -- perf stat -e cpu-clock ibv_devices
  vhca run --guests 2 --each --capture h1.pcapng --capture-port h1 -- sminfo
  vhca run --memory 2G --append 'loglevel=7 mlx5_ib.dyndbg=+p' -- dmesg
  vhca run --console --append loglevel=7 -- modprobe ib_ipoib
  vhca run --gdb --kernel ~/linux -- sleep 1h
  vhca run --qemu-arg=-d --qemu-arg=guest_errors -- true

exit codes:
  the command's own; 128 + N if signal N killed it; with --each the first that is not 0
{status.EPILOG_KERNEL}
  {status.FINDINGS}  the command went well, and --findings found something
{status.EPILOG_COMMON}
  {status.TIMED_OUT}  the command took longer than --timeout and was killed
  126  the command cannot be run in the guest
  127  the command is not there in the guest"""

_GRACE_S: Final = 3.0
_LINE_MAX_BYTES: Final = 64 << 10
_NOT_RUNNABLE: Final = 126  # both as the shell says it
_NOT_FOUND: Final = 127


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.usage = "vhca run [options] -- CMD ARG..."
    parser.add_argument("--each", action="store_true", help="run the command in every guest at the same time")
    parser.add_argument(
        "--timeout", type=seconds, metavar="S", help="kill the command after this time (90, 2m, 1h; default: never)"
    )
    parser.add_argument("-i", "--stdin", action="store_true", help="pass standard input on to the command in guest 0")
    parser.add_argument("-q", "--quiet", action="store_true", help="print what the command prints, no progress")
    add_lab_options(parser, guests=1)
    add_kernel_bug_options(parser)
    add_findings_option(parser)
    add_trace_option(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    command: list[str] | None = options.guest_command
    if not command:
        print("vhca run: what shall be run?  Write it behind `--`: vhca run -- ibv_devinfo", file=sys.stderr)
        return status.USAGE
    from vhca.lab import Progress
    from vhca.lab.boot_times import process_started_s

    progress = Progress(sys.stderr, quiet=options.quiet)
    progress.step(f"starting {options.guests} guest{'s' if options.guests > 1 else ''}")
    with make_lab(options, progress) as lab:
        if options.verbose:
            for line in lab.boot_report(process_started_s()):
                progress.say(line)
        progress.step(f"running {' '.join(command)}")
        guests = lab.guests if options.each else lab.guests[:1]
        with traced(lab, options):
            code = judged(lab, options, lambda: run_in(guests, command, options))
        code = with_findings(lab, options, code)
        if code:
            lab.mark_failed()
        return code


def run_in(guests: Sequence[Guest], command: Sequence[str], options: argparse.Namespace) -> int:
    """Run `command` in these guests at the same time and return the exit status that stands for all."""
    deadline_s = time.monotonic() + options.timeout if options.timeout else None
    started: list[Process] = []
    lines: list[PrefixedLines] = []
    for guest in guests:
        out, err = Passage(sys.stdout.buffer), Passage(sys.stderr.buffer)
        sinks: list[Callable[[bytes], None]] = [out, err]
        if options.each:
            prefixed = [PrefixedLines(out, f"{guest.name}| "), PrefixedLines(err, f"{guest.name}| ")]
            lines += prefixed
            sinks = list(prefixed)
        try:
            started.append(guest.popen(list(command), stdout=sinks[0], stderr=sinks[1]))
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            print(f"vhca run: {guest.name}: {command[0]}: {why}", file=sys.stderr)
            _end(started, signal.SIGKILL)
            return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE
    _feed(started, options.stdin and not options.each)
    try:
        codes = _wait(started, deadline_s)
    except KeyboardInterrupt:
        _end(started, signal.SIGINT)
        raise
    finally:
        for line in lines:
            line.end()
    if codes is None:
        late = ", ".join(g.name for g, process in zip(guests, started, strict=True) if process.poll() is None)
        _end(started, signal.SIGTERM)
        print(f"vhca run: {late}: killed {' '.join(command)}: it took more than {options.timeout:g} s", file=sys.stderr)
        return status.TIMED_OUT
    return status.of_all(codes)


def _wait(processes: Sequence[Process], deadline_s: float | None) -> list[int] | None:
    """The return codes; `None` if not all have ended at the deadline."""
    from vhca.lab import CommandTimeout

    codes = []
    for process in processes:
        while True:
            # short waits: Python takes signals only between them
            left_s = 0.5 if deadline_s is None else min(0.5, deadline_s - time.monotonic())
            if left_s <= 0:
                return None
            with contextlib.suppress(CommandTimeout):
                codes.append(process.wait(left_s))
                break
    return codes


def _end(processes: Sequence[Process], number: signal.Signals) -> None:
    """Signal what still runs; kill what does not end by itself."""
    from vhca.lab import GuestError

    for process in processes:
        with contextlib.suppress(GuestError, OSError):
            process.send_signal(number)
    for process in processes:
        with contextlib.suppress(GuestError, OSError):
            process.wait(_GRACE_S)
        with contextlib.suppress(GuestError, OSError):
            process.kill()


def _feed(processes: Sequence[Process], wanted: bool) -> None:
    """Pass our input on to the first command, from a thread that dies with us; else close it."""
    if not wanted:
        for process in processes:
            process.close_stdin()
        return

    def copy() -> None:
        from vhca.lab import GuestError

        with contextlib.suppress(GuestError, OSError, ValueError):
            while data := os.read(sys.stdin.fileno(), 65536):
                processes[0].write(data, None)
            processes[0].close_stdin()

    threading.Thread(target=copy, name="stdin", daemon=True).start()


class Passage:
    """Passes output on at once; if nobody reads it any more, drops it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def __call__(self, data: bytes) -> None:
        """Write `data`."""
        with contextlib.suppress(BrokenPipeError):
            self._stream.write(data)
            self._stream.flush()


class PrefixedLines:
    """Puts a prefix before every line and passes on whole lines only, so that guests do not mix within one.

    A line without end is cut.
    """

    def __init__(self, target: Callable[[bytes], None], prefix: str) -> None:
        self._target = target
        self._prefix = prefix.encode()
        self._rest = b""

    def __call__(self, data: bytes) -> None:
        """Take some output."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_MAX_BYTES:
            whole, self._rest = [*whole, self._rest], b""
        if whole:
            self._target(b"".join(self._prefix + line + b"\n" for line in whole))

    def end(self) -> None:
        """Pass on a last line that has no end."""
        if self._rest:
            self._target(self._prefix + self._rest + b"\n")
            self._rest = b""
