"""What subnet management agents of cards and switches have in common: whose a datagram is, and how a link may move."""

from typing import Final

from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire

SMP_CLASSES: Final = (madwire.CLASS_SUBN_LID, madwire.CLASS_SUBN_DR)
_SM_INFO: Final = smpwire.SM_INFO.to_bytes(2, "big")
_UNANSWERED: Final = (madwire.METHOD_SEND, madwire.METHOD_TRAP, madwire.METHOD_TRAP_REPRESS)


def is_smp(mad: bytes) -> bool:
    """Tell whether the bytes are one SMP of either routing."""
    return len(mad) == madwire.MAD_BYTES and mad[1] in SMP_CLASSES


def for_agent(mad: bytes) -> bool:
    """Tell whether an SMP is for a node's agent; responses, traps and questions about SMInfo are for a manager.

    Methods that nobody knows are the agent's too: it is there to say so.
    """
    method = mad[3]
    returning = mad[1] == madwire.CLASS_SUBN_DR and mad[4] & 0x80
    if returning or method & madwire.METHOD_RESPONSE or method == madwire.METHOD_TRAP:
        return False
    return mad[16:18] != _SM_INFO


def is_answered(method: int) -> bool:
    """Tell whether an agent answers a request of this method at all."""
    return not method & madwire.METHOD_RESPONSE and method not in _UNANSWERED


def may_move(now: int, wanted: int) -> bool:
    """Tell whether a manager may set PortState `now` to `wanted` (7.2, 14.2.5.6)."""
    if wanted in (smpwire.PORT_NOP, smpwire.PORT_DOWN) or (wanted == now and wanted >= smpwire.PORT_ARMED):
        return True
    return (now, wanted) in (
        (smpwire.PORT_INIT, smpwire.PORT_ARMED),
        (smpwire.PORT_ARMED, smpwire.PORT_ACTIVE),
    )
