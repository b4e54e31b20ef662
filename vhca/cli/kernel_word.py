"""What the guests' kernels complained of during a command, and what that makes of its exit status."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from vhca.cli import status

if TYPE_CHECKING:
    from vhca.lab import Lab


def judged(lab: Lab, options: argparse.Namespace, work: Callable[[], int]) -> int:
    """Do `work` and return its exit status, or that of a kernel bug; the kernels' reports are shown however it ends.

    A bug outranks the command's own status: it is the likelier cause of what the command said.
    :raises KernelPanic: a guest that the command did not run in has panicked, too.
    """
    try:
        code = work()
    except BaseException:
        with contextlib.suppress(Exception):
            show(lab, options)
        raise
    bugs = show(lab, options)
    for guest in lab.guests:
        if guest.panic is not None:
            raise guest.panic
    if bugs and options.fail_on_kernel_bug:
        if code:
            print(f"vhca: the command itself ended with {code}", file=sys.stderr)
        return status.KERNEL_BUG
    return code


def show(lab: Lab, options: argparse.Namespace) -> int:
    """Print what the kernels reported; return how many of the reports are not expected. Keeps the logs if any is."""
    from vhca.lab.errors import printable

    bugs = 0
    for guest in lab.guests:
        for report in guest.kernel_reports():
            if guest.panic is not None and report.kind == "panic":
                continue  # told by the exception
            allowed = any(pattern.search(report.headline) for pattern in options.allow_kernel_bug)
            if not allowed:
                bugs += 1
                lab.mark_failed()
            tail = " (expected)" if allowed else f"\n  the whole is in {guest.kernel_evidence}"
            print(printable(f"vhca: {guest.name}: the kernel reported: {report.headline}{tail}"), file=sys.stderr)
    return bugs
