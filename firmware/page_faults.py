"""The page fault unit: asks the host for pages that are not present, and tells who waits when they have come.

It speaks the memory scheme: an event names key, address and page count, and the host answers with the event's token.
So many requests are outstanding at a time; what comes on top waits its turn, so that the event queue never overruns.
Every request ends by giving back its waiter exactly once, in the step of the host's answer, if the host answers at all
and whoever asked is still there. What the waiter does then is :mod:`firmware.transport.engine`'s business.
"""

from typing import Final

from firmware.memory import PageFault
from firmware.model.budget import PAGE_REQUEST_BYTES
from firmware.model.counters import Count
from firmware.model.hca import Hca
from firmware.model.objects import PageRequest, Waiter
from firmware.model.timers import Timer, TimerKind
from firmware.queues import post_event
from vhca.wire.connectx.eqe import EventType, MemoryFaultData, PageFaultSubtype

LOG_PAGE: Final = 12
MAX_OUTSTANDING: Final = 1024
MAX_WAITING: Final = 1 << 16
# One request asks for so many pages at most; what follows faults again.
MAX_PAGES: Final = 1 << 12
MAX_AHEAD_PAGES: Final = 1 << 10
# The driver takes a key that became empty out of its own table first, and out of the region that shows it later, when
# a kernel thread had its turn. A fault in between is refused although the memory is there, and nothing in the refusal
# says so. It is believed when it has been repeated so often and for so long: much longer where such a region is.
REFUSALS: Final = 8
DOUBT_NS: Final = 1_000_000_000
DOUBT_SHOWN_NS: Final = 10_000_000_000
# The pace: the first repetition after 5 ms, each further one after twice the time, up to the second value.
PACE_NS: Final = (5_000_000, 320_000_000)
# Whoever asks for an address again after so long does not continue that dispute.
FORGOTTEN_NS: Final = 5_000_000_000
TOKEN_MASK: Final = (1 << 48) - 1
EVENT_PAGE_FAULT: Final = int(EventType.PAGE_FAULT)
MEMORY_FAULT: Final = int(PageFaultSubtype.MEMORY)

_event = MemoryFaultData.packer(
    "last", "post_demand_fault_pages", "token_47_32", "token_31_0", "demand_fault_pages", "mkey", "va"
)


def request(hca: Hca, fault: PageFault, ahead_bytes: int, waiter: Waiter) -> PageRequest | None:
    """Ask for the pages of `fault`, and for up to `ahead_bytes` behind them; None if no event queue takes faults."""
    if not any(eq.event_mask >> EVENT_PAGE_FAULT & 1 for eq in hca.eqs):
        return None
    first = fault.va >> LOG_PAGE
    last = (fault.va + fault.length - 1) >> LOG_PAGE
    pages = min(last + 1 - first, MAX_PAGES)
    ahead = min(-(-ahead_bytes >> LOG_PAGE), MAX_AHEAD_PAGES)
    wanted = PageRequest(fault.key, first << LOG_PAGE, pages, ahead, waiter, fault.shown)
    faults = hca.page_faults
    hca.count[Count.PAGE_FAULTS] += 1
    if not hca.budget.take(PAGE_REQUEST_BYTES):
        return None
    if len(faults.outstanding) < MAX_OUTSTANDING:
        _post(hca, wanted)
    elif len(faults.waiting) < MAX_WAITING:
        faults.waiting.append(wanted)
    else:
        # A host that answers none of them gets no more.
        hca.budget.give(PAGE_REQUEST_BYTES)
        return None
    return wanted


def abandon(requests: list[PageRequest]) -> None:
    """Whoever waited for these has gone: nobody is told when the host answers. Empties the list."""
    for wanted in requests:
        wanted.waiter = None
    requests.clear()


def is_over(wanted: PageRequest) -> bool:
    """Was this request answered, or abandoned?"""
    return wanted.waiter is None


def end(wanted: PageRequest) -> Waiter | None:
    """The request is over: who waited for it, None if that one has gone."""
    waiter, wanted.waiter = wanted.waiter, None
    return waiter


def answered(hca: Hca, token: int, good: bool) -> tuple[bool, Waiter | None]:
    """The host answered the request with this token: whether there is one, and who is to be told, if anybody."""
    faults = hca.page_faults
    done = faults.outstanding.pop(token, None)
    if done is None:
        return False, None
    hca.budget.give(PAGE_REQUEST_BYTES)
    if faults.waiting:
        _post(hca, faults.waiting.popleft())
    address = (done.key, done.va)
    if good:
        hca.count[Count.PAGE_FAULTS_RESUMED] += 1
        faults.doubted.pop(address, None)
        return True, end(done)
    if _is_doubtful(hca, done, address):
        return True, None
    hca.count[Count.PAGE_FAULTS_FAILED] += 1
    return True, end(done)


def _is_doubtful(hca: Hca, refused: PageRequest, address: tuple[int, int]) -> bool:
    """Is a refusal not to be believed yet? If so, whoever waits tries again after a while."""
    faults = hca.page_faults
    now = hca.now_ns
    first, last, refusals = faults.doubted.pop(address, (now, now, 0))
    if now - last > FORGOTTEN_NS:
        first, refusals = now, 0
    refusals += 1
    if refusals >= REFUSALS and now - first >= (DOUBT_SHOWN_NS if refused.shown else DOUBT_NS):
        return False
    if len(faults.doubted) >= MAX_OUTSTANDING:
        # Faults that nobody repeated.
        faults.doubted.clear()
    faults.doubted[address] = (first, now, refusals)
    least, most = PACE_NS
    pace = min(least << min(refusals, REFUSALS) - 1, most)
    hca.timers.arm(Timer(TimerKind.PAGES_REFUSED, refused), now + pace)
    return True


def _post(hca: Hca, wanted: PageRequest) -> None:
    faults = hca.page_faults
    faults.last_token = token = (faults.last_token + 1) & TOKEN_MASK
    faults.outstanding[token] = wanted
    hca.note("page_fault", token=token, key=f"{wanted.key:#010x}", va=f"{wanted.va:#x}", pages=wanted.pages)
    data = _event(1, wanted.ahead_pages, token >> 32, token & 0xFFFFFFFF, wanted.pages, wanted.key, wanted.va)
    post_event(hca, EVENT_PAGE_FAULT, MEMORY_FAULT, data)
