"""`vhca serve`: the fabric and the cards alone, for people who bring their own virtual machines."""

from __future__ import annotations

import argparse
import shlex
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vhca.cli import running, status
from vhca.cli.fault_options import add_fault_option, cards_with_faults
from vhca.cli.options import (
    add_capture_options,
    add_card_memory_option,
    add_manager_options,
    add_mkey_option,
    add_profile_options,
    add_topology_options,
    card_config,
    memory,
    rack_config,
    whole,
)
from vhca.cli.record_options import add_record_options, recorded

if TYPE_CHECKING:
    from vhca.lab import Hca
    from vhca.trunk.rack_file import RackShare

NAME: Final = "serve"
SUMMARY: Final = "run the fabric and the cards alone, for your own QEMU or libvirt"
DESCRIPTION: Final = """\
Run cards on one InfiniBand fabric and wait for virtual machines of your own to plug them in, until Ctrl-C.

Each card listens at a unix socket in DIR for one vfio-user client: QEMU 10.1.1 or newer with the device
vfio-user-pci.  The arguments for each card are printed.  The machine's memory must be shared (memory-backend-memfd
with share=on), so that the card can reach it.  qemu-scripts/ shows plain QEMU and libvirt.

Orders to the fabric are given from another terminal: `vhca fabric`, `vhca fault`, `vhca capture`.

With --rack this is one of several racks, most often on other hosts, that make one fabric together: the file says which
switches and cards each of them has, and what joins them (`vhca rack --help`, docs/cluster.md).

DIR also gets each card's log.  Whoever may open a socket owns that card, and logs tell keys of its guest: DIR is made
for you alone, and one that somebody else owns or may write to is refused."""
EPILOG: Final = f"""\
examples:
  vhca serve --hcas 2 --dir ~/ib
  vhca serve --hcas 1 --dir ~/ib --capture ib.pcapng
  vhca serve --hcas 2 --dir ~/ib --capture h1.pcapng --capture-port h1
  vhca serve --hcas 2 --dir ~/ib --quiet &
  vhca serve --rack racks.toml --name A --keys A.keys --dir ~/ib

exit codes:
  0    stopped by Ctrl-C or SIGTERM
{status.EPILOG_COMMON}"""

_CHECK_S: Final = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument(
        "--hcas", type=whole(1, 254), default=2, metavar="N", help="how many cards (default: %(default)s)"
    )
    parser.add_argument(
        "--dir", type=Path, required=True, metavar="DIR", help="where the sockets are made; created if it is not there"
    )
    add_capture_options(parser)
    add_mkey_option(parser)
    add_topology_options(parser)
    add_manager_options(parser, guests=False)
    add_card_memory_option(parser)
    add_profile_options(parser)
    add_fault_option(parser)
    add_record_options(parser, memory(1))
    rack = parser.add_argument_group("one of several racks")
    rack.add_argument(
        "--rack", type=Path, metavar="FILE", help="the rack file; it says how many cards there are, and the topology"
    )
    rack.add_argument("--name", metavar="NAME", help="which of its racks this is")
    rack.add_argument("--keys", type=Path, metavar="FILE", help="the keys of this rack, as `vhca rack keys` made them")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.chip.rack import Rack
    from vhca.lab.errors import LabError
    from vhca.private_files import UnsafeFolder, own_folder

    try:
        folder = own_folder(options.dir.expanduser())
    except UnsafeFolder as error:
        raise LabError(error.what, error.remedy) from error
    except OSError as error:
        raise LabError(f"cannot make {options.dir}: {error.strerror}", "give a folder of yours with --dir") from error
    share = _share(options)
    cards = options.hcas if share is None else len(share.file.racks[share.name].cards)
    config = rack_config(options, cards)
    described = cards_with_faults(options, card_config(options), [(f"h{index}",) for index in range(cards)])
    described, recordings = recorded(options, described)
    rack = Rack(described, folder, replace(config, share=share))
    try:
        rack.start()
        if not options.quiet:
            print(f"{advice(rack.hcas)}\n{running.example(str(folder))}\n", flush=True)
        wait_for_signal(lambda: not rack.loop.ended)
        if rack.loop.ended:
            raise LabError("the device loop has ended, and with it every card", "report it, with the log above")
    finally:
        rack.stop()
        if recordings is not None:
            recordings.close()
    return status.OK


def _share(options: argparse.Namespace) -> RackShare | None:
    """What `--rack`, `--name` and `--keys` say."""
    from vhca.lab.errors import LabError

    given = [options.rack is not None, options.name is not None, options.keys is not None]
    if not any(given):
        return None
    if not all(given) or options.topology is not None:
        raise LabError("--rack goes with --name and --keys, and without --topology", "see vhca serve --help")
    from vhca.trunk.keys import KeyFileError, load
    from vhca.trunk.rack_file import RackFileError, RackShare, load_rack_file

    try:
        file = load_rack_file(options.rack.expanduser())
        keys = load(options.keys.expanduser())
    except RackFileError as error:
        raise LabError(str(error), "docs/cluster.md shows a rack file") from error
    except KeyFileError as error:
        raise LabError(str(error)) from error
    if options.name not in file.racks:
        raise LabError(f"there is no rack {options.name} in {options.rack}", f"there are {', '.join(file.racks)}")
    return RackShare(file, options.name, keys)


def advice(hcas: Sequence[Hca]) -> str:
    """What to give QEMU for each of these cards."""
    from vhca.lab.qemu import hca_arguments

    lines = [
        f"{len(hcas)} card{'s are' if len(hcas) > 1 else ' is'} waiting; Ctrl-C ends.",
        "QEMU arguments of every machine:",
        "",
        "  -machine q35,memory-backend=ram -object memory-backend-memfd,id=ram,size=1G,share=on -m 1G",
        "",
        "and of the machine that gets a card:",
    ]
    for hca in hcas:
        lines += ["", f"  # {hca.name}", f"  {shlex.join(hca_arguments(hca.socket_path, 0))}"]
    return "\n".join(lines) + "\n"


def wait_for_signal(serving: Callable[[], bool]) -> None:
    """Wait until Ctrl-C or SIGTERM, or until nothing is served any more."""
    ended = threading.Event()

    def end(_number: int, _frame: object) -> None:
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while serving() and not ended.wait(_CHECK_S):  # short waits: Python takes signals only between them
            pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
