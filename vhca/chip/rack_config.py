"""The order form of a rack: what its cards and its fabric are to be like. Knows nothing of how they are made."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vhca.chip.middleware import Middleware


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """A recording of a rack's cables, from before the first packet until the rack stops.

    :ivar path: the pcapng file; one that is there is replaced.
    :ivar ports: the cards to record (h0, h1 ...); None for all.
    :ivar both_ends: record each packet also where it arrives, behind all faults.
    """

    path: Path
    ports: Sequence[str] | None = None
    both_ends: bool = False


@dataclass(frozen=True, slots=True)
class RackConfig:
    """What the cards of a rack and its fabric have in common.

    :ivar firmware: name of the package with the program of the cards.
    :ivar logs: keep a log of each card beside its socket.
    :ivar mkey: one M_Key for all ports, 0 for none; None: a secret one for each, so that tools which send SMPs
        (smpquery, ibnetdiscover) get no answer. See :class:`vhca.fabric.fabric.Fabric`.
    :ivar card_memory: bytes of this process that the objects of one card's guest may take; None: a quarter of the
        guest's memory, 256 MiB to 2 GiB. See :class:`vhca.chip.card.Card`.
    :ivar middleware: puts something around the programs of the cards; see :mod:`vhca.chip.middleware`.
    :ivar capture: what to record.
    """

    firmware: str = "firmware"
    logs: bool = True
    mkey: int | None = None
    card_memory: int | None = None
    middleware: "Middleware | None" = None
    capture: CaptureConfig | None = None
