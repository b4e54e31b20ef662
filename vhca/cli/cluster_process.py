"""The process of one cell on a worker of a cluster: finds the kernel, says its release, and becomes `vhca run`.

Guarantees: it ends with the worker that started it, and its guests end with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from vhca.cli import status

_PR_SET_PDEATHSIG: Final = 1


def main(words: Sequence[str]) -> NoReturn:
    """Do as the JSON object in the first word says.

    `parent` is the worker's process, `kernel` what --kernel takes, `modules` its folder or null, `release` the file
    that gets the release's name, `line` the command line to become.
    """
    order = json.loads(words[0])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != order["parent"]:
        sys.exit(status.TROUBLE)  # the worker died before we asked to be told
    from vhca.lab import Cache, LabError, Progress
    from vhca.lab.kernels import resolve

    modules = Path(order["modules"]) if order["modules"] else None
    try:
        found = resolve(order["kernel"], Cache(), Progress(sys.stderr), modules)
    except LabError as error:
        print(f"vhca: {error}", file=sys.stderr)
        sys.exit(status.TROUBLE)
    Path(order["release"]).write_text(found.release, encoding="utf-8")
    line: list[str] = order["line"]
    os.execv(line[0], line)
