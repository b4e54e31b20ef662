"""Targets of the dynamically connected transport."""

from dataclasses import dataclass, field

from firmware.model.graveyard import Grave
from firmware.model.ledger import HcaObject
from firmware.model.objects import Cq, QCounter, Srq
from firmware.model.qp import Qp


@dataclass(slots=True, eq=False)
class Dct(HcaObject):
    """Target of the dynamically connected transport; its number is of the QP number space, `mtu` in bytes.

    `connections`: by source LID and initiator, the number of a connection and this side of it.
    """

    pd: int = field(kw_only=True)
    srq: Srq = field(kw_only=True)
    cq: Cq = field(kw_only=True)
    port: int = field(kw_only=True)
    pkey_index: int = field(kw_only=True)
    mtu: int = field(kw_only=True)
    access_key: int = field(kw_only=True)
    rights: int = field(kw_only=True)
    min_rnr_nak: int = field(kw_only=True)
    user_index: int = field(kw_only=True)
    counter: QCounter | None = None
    # Data up to so many bytes are put into the completion instead of memory.
    inline_receive: int = 0
    context: bytes = b""
    drained: bool = False
    armed: bool = False
    key_violations: int = 0
    connections: dict[tuple[int, int], tuple[int, Qp]] = field(default_factory=dict)

    def let_go(self) -> tuple[Grave, ...]:
        """See :class:`HcaObject`."""
        return (self.connections,)
