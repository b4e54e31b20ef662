"""Exit codes of the `vhca` command, the same for every command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

OK: Final = 0
FAILED: Final = 1  # what was asked for did not work out
USAGE: Final = 2  # argparse's own code
FINDINGS: Final = 121  # guests did something wrong with objects of their cards
KERNEL_BUG: Final = 122  # git bisect run takes both for "bad"
KERNEL_PANIC: Final = 123
TIMED_OUT: Final = 124  # as timeout(1)
TROUBLE: Final = 125  # the host, its configuration or a guest; not the command that was run
INTERRUPTED: Final = 130  # as the shell says it of Ctrl-C
HUNG_UP: Final = 129  # and of these two signals
TERMINATED: Final = 143

EPILOG_KERNEL: Final = f"""\
  {KERNEL_BUG}  a guest's kernel reported a bug, and --fail-on-kernel-bug is on
  {KERNEL_PANIC}  a guest's kernel panicked"""
EPILOG_COMMON: Final = f"""\
  {USAGE}    the command line is wrong
  {TROUBLE}  trouble with the host, its configuration or a guest; the message says what to do
  {INTERRUPTED}  interrupted with Ctrl-C; {HUNG_UP} and {TERMINATED}: by SIGHUP and SIGTERM"""


def of_command(returncode: int) -> int:
    """The exit status that stands for a guest command's return code (negative: killed by that signal)."""
    return 128 - returncode if returncode < 0 else returncode & 0xFF


def of_all(returncodes: Sequence[int]) -> int:
    """The exit status that stands for the same command in several guests: the first that is not 0."""
    return next((of_command(code) for code in returncodes if code), OK)
