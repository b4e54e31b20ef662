"""What the lab asks of the device side: cards on one fabric, each listening at a socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vhca.chip.rack_config import CardConfig

if TYPE_CHECKING:
    from vhca.chip.live_fabric import LiveFabric


class Hca(Protocol):
    """A card, for any thread."""

    @property
    def name(self) -> str:
        """Its name, unique in its rack: h0, h1 ...; so is called its port on the fabric."""

    @property
    def socket_path(self) -> Path:
        """Where QEMU's `vfio-user-pci` connects."""

    @property
    def node_guid(self) -> int:
        """Its node GUID, 64 bits."""

    def counters(self) -> dict[str, int]:
        """Counters of firmware, board and socket by name."""

    def objects(self) -> dict[str, int]:
        """Live objects of the guest's driver by kind: `qp`, `cq`, `mkey` ..."""

    def trace_tail(self, lines: int = 100) -> list[str]:
        """The last lines of the command trace."""


class RackLike(Protocol):
    """Cards and the fabric that joins them."""

    @property
    def hcas(self) -> Sequence[Hca]:
        """The cards."""

    @property
    def fabric(self) -> LiveFabric | None:
        """The fabric; None if it is out of reach."""

    def start(self) -> None:
        """Listen at the sockets."""

    def stop(self) -> None:
        """Close everything."""

    def wait_active(self, timeout_s: float) -> None:
        """Wait until the ports of all cards whose host is there are ACTIVE; raise if that takes too long."""


#: Called with what each card is to be like and the folder for sockets and logs.
RackFactory = Callable[[Sequence[CardConfig], Path], RackLike]
