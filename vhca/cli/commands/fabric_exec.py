"""`vhca fabric exec`: a tool of Debian's on the host, on the fabric of a running rack or of a description."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from vhca.cli import running, status
from vhca.cli.options import add_topology_options

USAGE: Final = "vhca fabric exec [--rack DIR|NAME|PID | --topology FILE] [--at NODE] -- TOOL ARG..."
ACTIVE_S: Final = 2.0
"""For the port of the tools in a running rack: it may have been plugged in for them."""
OWN_ACTIVE_S: Final = 120.0
"""For a large fabric of its own to come up."""
_POLL_S: Final = 0.02

AskPlace = Callable[[], dict[str, Any]]


def add_arguments(orders: Any) -> None:
    """Describe the order and its options to the parser of `vhca fabric`."""
    parser: argparse.ArgumentParser = orders.add_parser(
        "exec",
        help="run a tool of infiniband-diags, OpenSM or ibsim on this host, on the fabric",
        description="Run a tool of the host (ibnetdiscover, iblinkinfo, perfquery, opensm, ...; Debian's, fetched into"
        " the cache, not installed) on the fabric of a running rack, or with --topology on a fabric of its own. Its"
        " exit status is the tool's.",
    )
    parser.usage = USAGE
    running.add_rack_option(parser)
    add_topology_options(parser)
    parser.add_argument(
        "--at",
        metavar="NODE",
        help="attach at this simulated host (name, description or GUID), or at `tools`, an adapter that is plugged into"
        " a free port of a switch (default: the first simulated host; without one, tools)",
    )
    parser.set_defaults(order=_exec)


def _exec(options: argparse.Namespace) -> int:
    from vhca.lab import Cache, LabError, Progress
    from vhca.lab.host_tools import find_host_tools

    if not options.guest_command:
        raise LabError("no tool", f"name one behind `--`: {USAGE.rpartition(' --')[0]} -- ibnetdiscover")
    name, *arguments = options.guest_command
    if options.topology is not None and options.rack is not None:
        raise LabError("--rack names a fabric that is running, --topology describes one of its own", "give one of them")
    tools = find_host_tools(Cache(), Progress(sys.stderr))
    program = tools.program(name)
    if not os.access(".", os.W_OK):
        raise LabError("libumad2sim keeps files in the current folder, which cannot be written", "go to another one")
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vhca-")))
        if options.topology is not None:
            ask = stack.enter_context(_own_fabric(options, scratch))
            place = _wait(ask, OWN_ACTIVE_S)
        else:
            place = _wait(
                lambda: dict(running.order(options.rack, "tools", node=options.at)), 0 if name == "opensm" else ACTIVE_S
            )
        environment = tools.environment(place["socket_name"], tools.attachment(place["guid"], name, arguments), scratch)
        return _run([str(program), *arguments], environment)


@contextlib.contextmanager
def _own_fabric(options: argparse.Namespace, folder: Path) -> Iterator[AskPlace]:
    """A fabric of simulated hosts alone, for as long as the tool runs."""
    from dataclasses import asdict

    from vhca.chip.rack import Rack
    from vhca.lab import LabError, RackConfig

    def ask() -> dict[str, Any]:
        try:
            return asdict(rack.open_tools(options.at or ""))
        except LookupError as error:
            raise LabError(str(error.args[0]), "`vhca fabric show --topology FILE` lists the hosts") from error

    # Nobody else is there: the tool may be the manager.
    config = RackConfig(topology=options.topology, routing=options.routing, mkey=0, heirs="any")
    with Rack([], folder, config) as rack:
        yield ask


def _wait(ask: AskPlace, timeout_s: float) -> dict[str, Any]:
    """Where the tool attaches, once its port is Active, or the time is over: a manager may be what is to be run."""
    deadline_s = time.monotonic() + timeout_s
    while not (place := ask())["active"] and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    return place


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run a program on our terminal; signals of the terminal are for it, its exit status is ours."""
    from vhca.lab.host_tools import remove_left_sysfs

    process = subprocess.Popen(command, env={**os.environ, **environment})
    try:
        while True:
            try:
                return status.of_command(process.wait())
            except KeyboardInterrupt:
                # The terminal has told the program, too; from somebody else only we have heard.
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        remove_left_sysfs(Path())
