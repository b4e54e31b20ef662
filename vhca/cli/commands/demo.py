"""`vhca demo`: two guests exchange RDMA over emulated cards; one table says how it went."""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from typing import Final

from vhca.cli import status
from vhca.cli.guest_options import extras
from vhca.cli.options import add_lab_options, make_lab

NAME: Final = "demo"
SUMMARY: Final = "two guests exchange RDMA: the whole thing in one go"
DESCRIPTION: Final = """\
Start a fabric with two cards, boot two guests, wait until both ports are ACTIVE, and run between the guests:
ibv_devinfo, ibv_rc_pingpong, ibv_ud_pingpong, ib_write_bw, ib_read_bw, ib_send_bw, ib_write_lat, ib_send_lat.
Prints one table: what ran, how it ended, the figure it gave.

The first run fetches QEMU, a kernel and the guest's packages into the cache (about 250 MB); later runs start from
there.  The figures are those of an emulated processor and a card written in Python: they say that it works, and
how it compares with another run on the same machine, nothing about hardware."""
EPILOG: Final = f"""\
examples:
  vhca demo
  vhca demo --capture demo.pcapng
  vhca demo --kernel ~/linux

exit codes:
  0    everything worked
  1    a step failed; its name and the last lines of the right log are printed
{status.EPILOG_COMMON}"""

_LOGS: Final = "logs"
_RUNS_KEPT: Final = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    add_lab_options(parser, guests=2)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from acceptance.demo import DemoFailed, run
    from vhca.lab import Cache, Progress, prepare

    if options.guests < 2 or options.hcas < 1:
        print("vhca demo: it takes two guests with a card each", file=sys.stderr)
        return status.USAGE
    progress = Progress(sys.stderr)
    cache = Cache()
    if options.log_dir is None:
        # a run tells where its logs are, so they must still be there when somebody looks
        cache.prune(_LOGS, _RUNS_KEPT - 1)
        options.log_dir = cache.path(_LOGS, time.strftime(f"demo-%Y%m%d-%H%M%S-{os.getpid()}"))
    lab = make_lab(options, progress, cache=cache)
    making_ready = partial(
        prepare,
        progress,
        options.kernel,
        modules_dir=options.modules,
        **extras(options),
        needed=lab.guest_config.modules(),
        cache=cache,
    )
    try:
        print(run(lab, progress, making_ready), end="")
    except DemoFailed as failure:
        print(failure, file=sys.stderr)
        return status.FAILED
    return status.OK
