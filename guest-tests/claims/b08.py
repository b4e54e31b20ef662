"""B08: which requests make a completion."""

from common import describe, e, pair, tell


def completions(signal_all, flagged):
    """Post 8 requests, those in `flagged` signalled; numbers of those that completed."""
    first, second = pair(signal_all=signal_all, size=4096)
    for number in range(8):
        second.post_recv()
        first.post_send(wr_id=number, flags=e.IBV_SEND_SIGNALED if number in flagged else 0)
    arrived = len(second.poll(8))
    seen = [describe(wc)["wr_id"] for wc in first.poll(8, timeout_s=2.0)]
    return {"arrived": arrived, "completed": seen}


tell(
    all=completions(True, ()),
    some=completions(False, (2, 7)),
    none=completions(False, ()),
)
