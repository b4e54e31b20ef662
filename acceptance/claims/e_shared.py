"""Claims E01 to E05: the shared receive queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from acceptance.claims.bench import Bench, Result
from acceptance.claims.cable import watch
from acceptance.claims.framework import Findings, claim
from acceptance.claims.verdict import Verdict

_CONNECTIONS: Final = 10_000
#: How many are really opened. The queues and buffers of one connection do not depend on the number of others: with
#: 10,000 queues measured instead of 1,000 multiplied, the figures were the same.
_COUNTS: Final = {"srq": _CONNECTIONS, "own": 1000}
_E05_S: Final = 1500.0
_EACH: Final = 16  # receives per connection, if it has a queue of its own
_POOL: Final = 4096
_BUFFER_BYTES: Final = 4096


@claim("E01", "many QPs take buffers from one pool, in any order of senders")
def e01(bench: Bench) -> Verdict:
    """48 messages over eight queue pairs in a random order."""
    g0, g1 = bench.both("claims/e01.py", "claims/e01.py", timeout_s=120)
    found = Findings()
    count = len(g1["order"])
    found.check("all messages arrive", len(g0["slots"]) == count and not g0["bad"], f"{len(g0['slots'])}, {g0['bad']}")
    found.check("over the queue pairs in the order of the senders", g0["senders"] == g1["order"], str(g0["senders"]))
    found.check(
        "whoever comes takes the next buffer of the pool", g0["slots"] == list(range(count)), f"buffers {g0['slots']}"
    )
    found.check("each buffer holds the message of its completion", g0["texts"] == g1["texts"], str(g0["texts"][:4]))
    return found.verdict(
        f"{count} messages over 8 queue pairs in the order {g1['order'][:10]}... took buffers 0, 1, 2, ... of one pool"
    )


@claim("E02", "a buffer smaller than an arriving message is an error: buffers must fit the largest message of all QPs")
def e02(bench: Bench) -> Verdict:
    """256-byte buffers; messages of 256, 257 and, over the other queue pair, 256 bytes."""
    with watch(bench, 1):
        g0, g1 = bench.both("claims/e02.py", "claims/e02.py", timeout_s=120)
    done = g0["done"]
    found = Findings()
    found.check("a message that fits arrives", done[:1] == [[0, "SUCCESS", 0]], str(done))
    found.check("one byte more: error at the receiver", done[1:2] == [[1, "LOC_LEN_ERR", 0]], str(done))
    found.check("and at the sender", g1["outcomes"] == ["SUCCESS", "REM_INV_REQ_ERR", "SUCCESS"], str(g1["outcomes"]))
    found.check(
        "that queue pair is in ERR at both ends, the other one on the SRQ works on",
        g0["states"] == g1["states"] == ["ERR", "RTS"] and done[2:] == [[2, "SUCCESS", 1]],
        f"{g0['states']} {g1['states']} {done}",
    )
    return found.verdict(
        "257 bytes into a 256-byte buffer: LOC_LEN_ERR at the receiver, REM_INV_REQ_ERR at the sender, both ends in"
        " ERR; the buffer is used up, the other queue pair of the SRQ works on"
    )


@claim("E03", "an empty SRQ starves all its QPs (RNR)")
def e03(bench: Bench) -> Verdict:
    """Four queue pairs on an empty SRQ."""
    with watch(bench, 1) as traffic:
        g0, g1 = bench.both("claims/e03.py", "claims/e03.py", timeout_s=120)
    naks = traffic.named("RNR_NAK")
    starved = {seen.packet.dest_qp for seen in naks}
    found = Findings()
    found.check("each of the four senders gets RNR NAKs", len(starved) == 4, f"{len(starved)} of 4")
    found.check("none gets through", g1["waiting"] == 0 and g0["early"] == 0, f"{g1['waiting']}")
    found.check(
        "all get through once the SRQ has buffers",
        g1["outcomes"] == ["SUCCESS"] * 4 and g0["received"] == g0["over"] == 4,
        str(g1["outcomes"]),
    )
    return found.verdict(f"{len(naks)} RNR NAKs to all four senders; four receives posted, all four get through")


@claim("E04", "srq_limit: one asynchronous event when the count falls below it, then it must be armed again")
def e04(bench: Bench) -> Verdict:
    """Ten receives are taken one by one, three times; the limit of five is set before the first and the third time."""
    g0, _ = bench.both("claims/e04.py", "claims/e04.py", timeout_s=180)
    limit = g0["limit"]
    found = Findings()
    found.check("the limit can be set and read back", g0["limit_set"] == limit, str(g0["limit_set"]))
    first = g0["first"]
    found.check("one event", [event for event, _ in first] == ["SRQ_LIMIT_REACHED"], str(first))
    at = first[0][1] if first else -1
    found.check(
        "when the count falls below the limit", at == limit - 1, f"the event came with {at} left, limit {limit}"
    )
    found.check("none more until it is armed again", not g0["not_armed"], str(g0["not_armed"]))
    found.check(
        "armed again, one more",
        [event for event, _ in g0["armed_again"]] == ["SRQ_LIMIT_REACHED"],
        str(g0["armed_again"]),
    )
    found.note(f"After the event the limit reads as {g0['limit_after_first']}")
    return found.verdict(
        f"limit {limit} of 10: IBV_EVENT_SRQ_LIMIT_REACHED once, when {at} were left; emptied again without arming: no"
        " event; armed again: one event"
    )


@claim("E05", "memory: 10,000 connections with an SRQ against one queue each, in figures")
def e05(bench: Bench) -> Verdict:
    """10,000 RC connections on an SRQ, 1,000 with a queue each (scaled up), one message over each of them."""
    seen: dict[str, Result] = {}
    for mode, count in _COUNTS.items():
        args = ("--count", count, "--mode", mode, "--pool", _POOL, "--each", _EACH, "--buffer", _BUFFER_BYTES)
        seen[mode], peer = bench.both("claims/e05.py", "claims/e05.py", args0=args, args1=args, timeout_s=_E05_S)
        objects = bench.card(0).objects()
        bench.record("card h0", f"objects after mode {mode}", objects)
        if peer["bad"]:
            bench.record("g1", "bad completions", peer["bad"])
    found = Findings()
    for mode, result in seen.items():
        found.check(
            f"{_COUNTS[mode]} connections work ({mode})",
            result["reached"] == _COUNTS[mode] and not result["bad"],
            f"{mode}: {result['reached']} of {_COUNTS[mode]} connections brought a message, {result['bad']}",
        )
    shared, own = _Memory.of(seen["srq"], _COUNTS["srq"]), _Memory.of(seen["own"], _COUNTS["own"])
    found.check("with an SRQ they take less memory", shared.pinned < own.pinned, f"{shared} against {own}")
    found.note(
        f"SRQ, measured with {_COUNTS['srq']}: {shared}. A queue each, measured with {_COUNTS['own']} and multiplied:"
        f" {own}"
    )
    return found.verdict(
        f"{_CONNECTIONS} RC connections with buffers of {_BUFFER_BYTES} bytes: one SRQ of {_POOL} buffers pins"
        f" {_mib(shared.pinned)}, {_EACH} buffers for each connection pin {_mib(own.pinned)}"
        f" ({own.pinned / max(shared.pinned, 1):.1f} times as much): the saving is in the buffers, not in the queues"
    )


@dataclass(slots=True, frozen=True)
class _Memory:
    """What 10,000 connections take, in KiB."""

    buffers: float
    queues: float
    slab: float

    @classmethod
    def of(cls, result: Result, count: int) -> _Memory:
        """From a measurement with `count` connections; a pool is one, however many use it."""
        grown: dict[str, int] = result["grown"]
        scale = _CONNECTIONS / count
        buffers = result["buffers_pinned"]
        return cls(buffers * scale, (grown["VmPin"] - buffers) * scale, grown["Slab"] * scale)

    @property
    def pinned(self) -> float:
        return self.buffers + self.queues

    def __str__(self) -> str:
        return (
            f"pinned {_mib(self.pinned)} = buffers {_mib(self.buffers)} + queues {_mib(self.queues)}"
            f" ({self.queues / _CONNECTIONS:.1f} KiB a connection), kernel slab {_mib(self.slab)}"
            f" ({self.slab / _CONNECTIONS:.1f} KiB a connection)"
        )


def _mib(kib: float) -> str:
    return f"{kib / 1024:.0f} MiB"
