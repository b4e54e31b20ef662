"""The commands of the card: importing this package registers every handler."""

from firmware.commands import dct, eq_cq, general, hca_commands, memic, mkey, odp, port, qp, resources, srq, umem
from firmware.commands.registry import COMMANDS, execute

__all__ = [
    "COMMANDS",
    "dct",
    "eq_cq",
    "execute",
    "general",
    "hca_commands",
    "memic",
    "mkey",
    "odp",
    "port",
    "qp",
    "resources",
    "srq",
    "umem",
]
