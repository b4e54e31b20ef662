"""`vhca rack`: keys for racks that make one fabric together, and what a file says of such racks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from vhca.cli import status

NAME: Final = "rack"
SUMMARY: Final = "make keys for racks on several hosts; show what a rack file says"
DESCRIPTION: Final = """\
Racks on several hosts can make one fabric: a rack file says which switches, cards and trunks are where, and each host
serves its rack with `vhca serve --rack FILE --name NAME --keys NAME.keys`.  docs/cluster.md shows all of it."""
EPILOG: Final = f"""\
examples:
  vhca rack keys A B C
  vhca rack show racks.toml
  vhca serve --rack racks.toml --name A --keys A.keys --dir ~/ib

exit codes:
  0    done
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    orders = parser.add_subparsers(metavar="ORDER", required=True, help="keys or show")
    keys = orders.add_parser(
        "keys",
        help="make a pair of keys for each rack",
        description="Make a pair of keys for each rack, in a file NAME.keys that you alone can read (mode 0600); print"
        " the public ones, for the rack file.  Each host needs its own rack's file, and no other.",
    )
    keys.add_argument("names", nargs="+", metavar="NAME", help="a rack")
    keys.add_argument("--dir", type=Path, default=Path(), metavar="DIR", help="where the files are made (here)")
    keys.set_defaults(order=_keys)
    show = orders.add_parser("show", help="list racks and trunks of a file", description="List racks and trunks.")
    show.add_argument("file", type=Path, metavar="FILE", help="the rack file")
    show.set_defaults(order=_show)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    options.order(options)
    return status.OK


def _keys(options: argparse.Namespace) -> None:
    from vhca.lab.errors import LabError
    from vhca.trunk.keys import save

    try:
        from vhca.trunk.sockets import new_keys
    except ImportError as error:
        raise LabError(f"trunks need pyzmq: {error}", "pip install 'vhca[trunk]'") from error
    for name in options.names:
        if not name.isidentifier() and not name.replace("-", "_").replace(".", "_").isalnum():
            raise LabError(f"{name!r} is no name of a rack", "take letters, digits and any of _.-")
        pair = new_keys()
        path = options.dir.expanduser() / f"{name}.keys"
        try:
            save(path, pair)
        except OSError as error:
            raise LabError(f"{path}: {error.strerror}", "remove the file if nobody uses it, or give --dir") from error
        print(f'[[rack]]\nname = "{name}"\nkey = "{pair.public}"\n')


def _show(options: argparse.Namespace) -> None:
    from vhca.lab.errors import LabError
    from vhca.lab.table import aligned
    from vhca.trunk.rack_file import RackFileError, load_rack_file

    try:
        file = load_rack_file(options.file.expanduser())
    except RackFileError as error:
        raise LabError(str(error), "docs/cluster.md shows a rack file") from error
    rows = [
        (rack.name, str(len(rack.switches)), ", ".join(rack.cards) or "-", "yes" if file.manager == rack.name else "-")
        for rack in file.racks.values()
    ]
    print("\n".join(aligned(("rack", "switches", "cards", "subnet manager"), rows)))
    if file.trunks:
        trunks = [(trunk.name, trunk.waits, trunk.address, trunk.calls) for trunk in file.trunks]
        print("\n" + "\n".join(aligned(("trunk", "waits", "at", "calls"), trunks)))
