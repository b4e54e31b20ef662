"""`vhca shell`: boot guests on one fabric and give a terminal in one of them."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from vhca.cli import running, status
from vhca.cli.commands.run import Passage
from vhca.cli.findings_options import add_findings_option, with_findings
from vhca.cli.kernel_word import judged
from vhca.cli.options import add_kernel_bug_options, add_lab_options, live_console, make_lab, whole

if TYPE_CHECKING:
    from vhca.lab import Process

NAME: Final = "shell"
SUMMARY: Final = "boot guests and open a shell in one"
DESCRIPTION: Final = """\
Boot guests on one InfiniBand fabric and open a shell in one of them.  Leave with `exit` or Ctrl-D; the guests are
then switched off.  Ctrl-C, colours, job control and the window's size work as in any terminal."""
EPILOG: Final = f"""\
examples:
  vhca shell
  vhca shell --guests 3 --guest 1
  vhca shell --kernel ~/linux --share ~/work
  vhca shell --root ~/trees/sid --keep work
  vhca shell --package storage --tools gdb,trace-cmd
  vhca shell --capture h1.pcapng --capture-port h1
  vhca shell --gdb --boot-timeout 1h --kernel ~/linux
  vhca shell -- python3

exit codes:
  that of the shell, or of the command behind `--`
{status.EPILOG_KERNEL}
  {status.FINDINGS}  the command went well, and --findings found something
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.usage = "vhca shell [options] [-- CMD ARG...]"
    parser.add_argument(
        "--guest", type=whole(0, 63), default=0, metavar="I", help="which guest's (default: %(default)s)"
    )
    add_lab_options(parser, guests=2)
    add_kernel_bug_options(parser)
    add_findings_option(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("vhca shell: this is no terminal; use `vhca run -- CMD` in scripts", file=sys.stderr)
        return status.USAGE
    if options.guest >= options.guests:
        print(f"vhca shell: there is no guest {options.guest}; raise --guests", file=sys.stderr)
        return status.USAGE
    from vhca.lab import Progress

    progress = Progress(sys.stderr)
    progress.step(f"starting {options.guests} guest{'s' if options.guests > 1 else ''}")
    # the terminal is raw while the shell runs: it takes a line's end to the letter
    with make_lab(options, progress, live_console=live_console(options, "\r\n")) as lab:
        guest = lab.guests[options.guest]
        progress.say(f"a shell in {guest.name}; `exit` ends it and all guests; logs are in {lab.log_dir}")
        if lab.hcas:
            progress.say(running.example(str(os.getpid())))
        columns, rows = shutil.get_terminal_size()
        process = guest.popen(
            options.guest_command or ["bash", "-l"],
            tty=(rows, columns),
            env={"TERM": os.environ.get("TERM", "linux")},
            stdout=Passage(sys.stdout.buffer),
        )

        def conversation() -> int:
            with _raw_terminal(sys.stdin.fileno()):
                return status.of_command(_converse(process, sys.stdin.fileno()))

        return with_findings(lab, options, judged(lab, options, conversation))


def _converse(process: Process, terminal: int) -> int:
    """Move keys to the guest until its command ends; returns its code. `GuestError` if the guest goes away."""
    from vhca.lab import CommandTimeout

    def resized(_number: int, _frame: object) -> None:
        columns, rows = shutil.get_terminal_size()
        process.resize(rows, columns)

    before = signal.signal(signal.SIGWINCH, resized)
    try:
        while True:
            with contextlib.suppress(CommandTimeout):
                return process.wait(0)
            readable, _, _ = select.select([terminal], [], [], 0.05)
            if readable:
                keys = os.read(terminal, 4096)
                if not keys:  # the window was closed
                    process.kill()
                process.write(keys)
    finally:
        signal.signal(signal.SIGWINCH, before)


@contextlib.contextmanager
def _raw_terminal(descriptor: int) -> Iterator[None]:
    """Let the guest's terminal see every key; put ours back however this ends."""
    settings = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)
