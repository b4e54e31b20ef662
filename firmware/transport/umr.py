"""Registration by work request."""

from typing import TYPE_CHECKING

from firmware.transport.completion import LOCAL_QP_OPERATION
from firmware.transport.qp import Qp
from firmware.transport.wqe import SendWqe

if TYPE_CHECKING:
    from firmware.hca import Hca


class UmrError(Exception):
    """The request is refused; `syndrome` is that of its completion."""

    def __init__(self, syndrome: int, reason: str) -> None:
        super().__init__(reason)
        self.syndrome = syndrome


def execute(hca: "Hca", qp: Qp, wqe: SendWqe) -> None:
    """Refuse: not offered yet."""
    raise UmrError(LOCAL_QP_OPERATION, "UMR is not offered")
