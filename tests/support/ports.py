"""A port of no card, for tests of what looks at ports."""

from collections.abc import Sequence

from firmware.mads.port import ManagedPort
from firmware.port_view import PortView
from vhca.management.performance import PortCounters


def port_with(
    lid: int, lmc: int = 0, gids: Sequence[bytes] | None = None, pkeys: Sequence[int] | None = None
) -> PortView:
    """A port with these addresses and tables."""
    managed = ManagedPort(1, 1)
    managed.info.lid, managed.info.lmc = lid, lmc
    port = PortView(managed, PortCounters())
    port.gids = port.gids if gids is None else gids
    port.pkeys = port.pkeys if pkeys is None else pkeys
    return port
