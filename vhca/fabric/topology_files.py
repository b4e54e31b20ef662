"""Topologies in files: TOML, and what ibnetdiscover prints (with what ibsim understands beyond that).

A file whose name ends in .toml is TOML; any other one is taken for the output of ibnetdiscover. What is wrong with a
file is said with the number of its line. Size of file and fabric are bounded, so are time and memory.
"""

import os
from pathlib import Path
from typing import Final

from vhca.fabric import netdiscover, topology_toml
from vhca.fabric.topology import Topology, TopologyError

MAX_FILE_BYTES: Final = 16 << 20

FORMATS: Final = {"toml": topology_toml.write, "ibnetdiscover": netdiscover.write}
"""How a topology is written, by the name of the format."""


def read(text: str, *, toml: bool) -> Topology:
    """The topology that a text describes.

    :raises TopologyError: the text says no fabric.
    """
    return topology_toml.read(text) if toml else netdiscover.read(text)


def load(path: Path) -> Topology:
    """The topology in a file.

    :raises TopologyError: it cannot be read, or says no fabric.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TopologyError(f"{path}: {error.strerror}; name a file that describes a fabric") from error
    if max(size, len(data)) > MAX_FILE_BYTES:
        raise TopologyError(f"{path}: more than {MAX_FILE_BYTES >> 20} MiB; describe a smaller fabric")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TopologyError(f"{path}: line {line}: not UTF-8; name a text file") from error
    try:
        return read(text, toml=path.suffix == ".toml")
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from error
