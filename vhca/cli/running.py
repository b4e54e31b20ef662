"""Running racks, seen from another process: which there are, and an order to one of them.

There is no register of racks: the kernel lists the unix sockets that somebody listens at, and a rack's control socket
is one with a known name, of this user. So a rack that was killed is not found, whatever it left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import socket
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SOCKETS = Path("/proc/net/unix")
_LISTENING: Final = 0x10000  # __SO_ACCEPTCON of the column "Flags"
_COLUMNS: Final = 8
_TIMEOUT_S: Final = 40.0
"""Longer than a rack waits for its own loop."""
_LIST_TIMEOUT_S: Final = 2.0
_START: Final = "start one: `vhca shell`, or `vhca serve --hcas 2 --dir ~/ib`"
CARDS_AND_RACKS: Final = """\
Cards are called h0, h1, ... in the order of the guests.  A rack is the cards and the fabric of one process (`vhca
shell`, `run`, `serve`, a test).  If several are running, --rack says which."""

CABLES: Final = """\
A cable is named by a card (h0), by a guest's card (g0/1: the first one of guest g0), by one of its ends (leaf1/3, n7/1;
without a topology switch/2), or by a host of a topology that has one port (n7)."""


def example(rack: str) -> str:
    """What `vhca shell` and `serve` say about orders; `rack` is what --rack takes for them."""
    return (
        "orders from another terminal: `vhca fabric link down h0`, `vhca fault h0 drop --nth 3`, `vhca capture --help`"
        f" (with --rack {shlex.quote(rack)} if several racks are running)"
    )


def add_rack_option(parser: argparse.ArgumentParser, default: Any = argparse.SUPPRESS) -> None:
    """Give a command the option that says to which rack it speaks."""
    parser.add_argument(
        "--rack",
        default=default,
        metavar="DIR|NAME|PID",
        help="which of several running racks: its folder (that of `vhca serve --dir`), the folder's name, or the number"
        " of its process (default: the one that is running)",
    )


def control_sockets() -> list[Path]:
    """The control sockets of this user's racks on this host, by path."""
    return sorted(set(_control_sockets()))


def _control_sockets() -> Iterator[Path]:
    from vhca.chip.control import SOCKET_NAME
    from vhca.lab.errors import LabError

    try:
        lines = SOCKETS.read_bytes().splitlines()[1:]
    except OSError as error:
        raise LabError(f"{SOCKETS}: {error.strerror}", "name the rack with --rack DIR") from error
    for line in lines:
        columns = line.split(maxsplit=_COLUMNS - 1)
        if len(columns) != _COLUMNS or not int(columns[3], 16) & _LISTENING:
            continue
        path = Path(os.fsdecode(columns[-1]))
        if path.name == SOCKET_NAME and path.is_absolute():
            with contextlib.suppress(OSError):
                status = path.lstat()
                if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid():
                    yield path


def find(rack: str | None) -> Path:
    """The control socket of the rack that `--rack` names, or of the only one that is running.

    :raises LabError: there is none, or there are several.
    """
    from vhca.chip.control import SOCKET_NAME
    from vhca.lab.errors import LabError

    if rack is not None and (path := Path(rack).expanduser() / SOCKET_NAME).is_socket():
        return path
    there = control_sockets()
    if rack is None and len(there) == 1:
        return there[0]
    if not there:
        what = "no rack of this user is running" if rack is None else f"there is no rack {rack}; none is running"
        raise LabError(what, _START)
    known = [(path, _pid(path)) for path in there]
    if rack is None:
        what = f"{len(known)} racks are running"
    else:
        meant = [path for path, pid in known if rack in (pid, path.parent.name)]
        if len(meant) == 1:
            return meant[0]
        what = f"{len(meant)} racks are called {rack}" if meant else f"there is no rack {rack}"
    lines = [f"\n  --rack {pid}  in {path.parent}" for path, pid in known]
    raise LabError(f"{what}; running:{''.join(lines)}", "name one with --rack")


def order(rack: str | None, name: str, **fields: Any) -> Any:
    """Give a rack an order and return the result; fields that are None are left out. See docs/fabric.md for orders.

    :raises LabError: no rack could be found or reached, or it refused.
    """
    from vhca.lab.errors import LabError

    path = find(rack)
    answer = _ask(path, {"order": name} | {key: value for key, value in fields.items() if value is not None})
    if "error" in answer:
        raise LabError(str(answer["error"]))
    return answer["result"]


def _pid(path: Path) -> str:
    from vhca.lab.errors import LabError

    try:
        return str(_ask(path, {"order": "show"}, _LIST_TIMEOUT_S)["result"]["pid"])
    except (LabError, KeyError):
        return str(path.parent)  # one that does not answer now can still be named by its folder


def _ask(path: Path, request: dict[str, Any], timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
    from vhca.lab.errors import LabError

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            # Of a unix socket that is not blocking, connect() fails where it would wait.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(timeout_s), 0))
            sock.connect(str(path))
            sock.settimeout(timeout_s)
            sock.sendall(json.dumps(request).encode() + b"\n")
            with sock.makefile("rb") as answers:
                line = answers.readline()
        answer = json.loads(line)
    except (ConnectionRefusedError, FileNotFoundError) as error:
        raise LabError(f"the rack in {path.parent} has ended", _START) from error
    except PermissionError as error:
        raise LabError(f"the rack in {path.parent} is another user's", "only its owner gives it orders") from error
    except (OSError, ValueError, RecursionError) as error:
        raise LabError(
            f"the rack in {path.parent} does not answer: {error}", "try again; its log may say why"
        ) from error
    if not isinstance(answer, dict) or not ({"result", "error"} & answer.keys()):
        raise LabError(f"what listens at {path} is no rack of this version", "start it with the same vhca")
    return answer
