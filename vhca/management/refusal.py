"""The answer of a node that lacks what a management datagram asks for: a status, never silence (13.4.7 of volume 1)."""

from typing import Final

from vhca.wire import mad as madwire
from vhca.wire.mad import MadHeader

# What has no response, whatever the class (13.4.5).
_UNANSWERED: Final = (madwire.METHOD_SEND, madwire.METHOD_TRAP, madwire.METHOD_TRAP_REPRESS)


def response_method(method: int) -> int:
    """The method of the response to a request."""
    return madwire.METHOD_GET_RESP if method == madwire.METHOD_SET else method | madwire.METHOD_RESPONSE


def refusal(mad: bytes, status: int = madwire.STATUS_UNSUPPORTED_ATTRIBUTE) -> bytes | None:
    """The response with `status` to a datagram of 256 bytes; None if nobody waits for one.

    A class that a node does not have is refused as a combination of method and attribute that it does not have. An
    unknown base version is told as such.
    """
    head = MadHeader.from_bytes(mad)
    method = head.method
    if method & madwire.METHOD_RESPONSE or method in _UNANSWERED:
        return None
    if head.base_version != madwire.BASE_VERSION:
        status = madwire.STATUS_BAD_VERSION
    head.method = response_method(method)
    head.status = status
    return head.to_bytes() + mad[MadHeader.SIZE :]
