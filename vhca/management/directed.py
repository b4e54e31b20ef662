"""How an SMP with a directed route goes on at a switch: the rules of its subnet management interface (14.2.2).

A route has up to three parts: to the LID where the directed part begins (DrSLID is the sender's LID, else permissive),
port by port along the initial path, and to the LID of the target (DrDLID, else permissive). The hop pointer counts the
hops walked on the way out and those left on the way back; a pointer that does not fit where an SMP arrives ends it.
"""

from typing import Final

from vhca.wire.mad import STATUS_DIRECTION, Smp
from vhca.wire.packet import PERMISSIVE_LID

MAX_HOPS: Final = 63

# Where the bytes of a datagram are that say how far it is.
_AT: Final = {field.name: field.offset for field in Smp.fields()}
_STATUS, _HOP_POINTER, _HOP_COUNT = _AT["status"], _AT["hop_pointer"], _AT["hop_count"]
_INITIAL_PATH, _RETURN_PATH = _AT["initial_path"], _AT["return_path"]

# Where an SMP comes from: along the directed part, by its LID, or from whoever sits inside the switch.
BY_PORT: Final = 0
BY_LID: Final = 1
INSIDE: Final = 2

# What to do with it: nothing, take it, send it on by LID; a number above is the port of departure, plus `LEAVE`.
DISCARD: Final = 0
TAKE: Final = 1
ROUTE: Final = 2
LEAVE: Final = 0x100


def pass_on(mad: bytes, port: int) -> tuple[int, bytes] | None:
    """An SMP that came in by `port` in the middle of its directed part: the port of departure, and how it goes on.

    As :func:`request_step` and :func:`response_step` have it, without taking the datagram apart; None at an end of the
    directed part, and where it is not in order.
    """
    pointer, count = mad[_HOP_POINTER], mad[_HOP_COUNT]
    if count > MAX_HOPS:
        return None
    onward = bytearray(mad)
    if mad[_STATUS] & 0x80:
        if not 1 < pointer <= count:
            return None
        onward[_HOP_POINTER] = pointer - 1
        return mad[_RETURN_PATH + pointer - 1], bytes(onward)
    if not 0 < pointer < count:
        return None
    onward[_HOP_POINTER] = pointer + 1
    onward[_RETURN_PATH + pointer] = port
    return mad[_INITIAL_PATH + pointer + 1], bytes(onward)


def request_step(smp: Smp, port: int, origin: int, own_lid: int) -> int:
    """Move a request one step on (14.2.2.2, C14-9); `port` is where it arrived.

    Changes hop pointer and return path of `smp`; gives DISCARD, TAKE, ROUTE (to DrDLID) or LEAVE plus a port.
    """
    pointer, count = smp.hop_pointer, smp.hop_count
    if count > MAX_HOPS:
        return DISCARD
    if origin == BY_LID and pointer == count + 1 and count:
        return TAKE if smp.dr_dlid == own_lid else DISCARD
    if origin == BY_LID and smp.dr_slid == PERMISSIVE_LID:
        return DISCARD
    # The directed part begins where the sender or the LID-routed part is, and nowhere else.
    if count and (pointer == 0) != (origin != BY_PORT):
        return DISCARD
    if pointer < count:
        if pointer:
            _remember(smp, pointer, port)
        smp.hop_pointer = pointer + 1
        return LEAVE + smp.initial_path[pointer + 1]
    if pointer > count:
        return DISCARD
    if count:
        _remember(smp, pointer, port)
    smp.hop_pointer = pointer + 1
    return TAKE if smp.dr_dlid in (PERMISSIVE_LID, own_lid) else ROUTE


def response_step(smp: Smp, origin: int, own_lid: int) -> int:
    """Move a response one step back (14.2.2.4, C14-13); gives DISCARD, TAKE, ROUTE (to DrSLID) or LEAVE plus a port."""
    pointer, count = smp.hop_pointer, smp.hop_count
    if count > MAX_HOPS:
        return DISCARD
    if origin == BY_LID and pointer == 0:
        return TAKE if smp.dr_slid == own_lid else DISCARD
    if origin == BY_PORT and pointer == count == 0:
        return TAKE
    # The directed part begins at its far end, where the target or the last LID-routed part is.
    if (pointer == count + 1) != (origin != BY_PORT) or not 0 < pointer <= count + 1:
        return DISCARD
    smp.hop_pointer = pointer - 1
    if smp.hop_pointer:
        return LEAVE + smp.return_path[smp.hop_pointer]
    return TAKE if smp.dr_slid in (PERMISSIVE_LID, own_lid) else ROUTE


def end_of_path(request: Smp, port: int) -> bool:
    """Complete the return path of a request that ends at this port of an end node (14.2.2); False if it does not."""
    if request.status & STATUS_DIRECTION or request.hop_count > MAX_HOPS:
        return False
    if request.hop_pointer == request.hop_count:
        if request.hop_count:
            _remember(request, request.hop_count, port)
        return True
    return request.hop_pointer == request.hop_count + 1


def _remember(smp: Smp, hop: int, port: int) -> None:
    path = bytearray(smp.return_path)
    path[hop] = port
    smp.return_path = bytes(path)
