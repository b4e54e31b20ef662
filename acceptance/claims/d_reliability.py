"""Claims D07 to D09: lost acknowledges, receivers that are not ready, and when a request is over."""

from __future__ import annotations

from typing import Final

from acceptance.claims.bench import Bench
from acceptance.claims.cable import Traffic, counted, disturb, hardware_counters, watch
from acceptance.claims.framework import Findings, claim
from acceptance.claims.verdict import Verdict
from vhca.fabric.faults import Fault
from vhca.wire.packet import ACKNOWLEDGE, RC, Packet

#: RNR timer codes that are tried, and the time in ms that they announce (volume 1, table 45).
_RNR_MS: Final = {14: 1.28, 22: 20.48, 28: 163.84, 0: 655.36}
_LATE_S: Final = 1.5


def _acknowledge(packet: Packet) -> bool:
    return packet.service == RC and packet.op == ACKNOWLEDGE


@claim("D07", "lost ACK: retransmission; retry count exhausted: IB_WC_RETRY_EXC_ERR and ERR")
def d07(bench: Bench) -> Verdict:
    """One acknowledge is lost; then all."""
    found = Findings()
    lost = Fault("drop", match=_acknowledge, limit=1)
    with hardware_counters(bench, 1) as once, counted(bench, 1), disturb(bench, 1, [lost]) as one:
        g0, g1 = bench.both("claims/d07.py", "claims/d07.py", timeout_s=180)
    found.check(
        "one lost ACK: the packet is sent again and the request succeeds",
        g1["outcome"] == "SUCCESS" and len(one.requests()) == 2,
        f"{g1['outcome']}, sent {len(one.requests())} times",
    )
    found.check("the duplicate is acknowledged and delivered once", g0["received"] == 1, f"{g0['received']} received")
    lost = Fault("drop", match=_acknowledge)
    with hardware_counters(bench, 1) as always, counted(bench, 1), disturb(bench, 1, [lost]) as every:
        g0, g1 = bench.both("claims/d07.py", "claims/d07.py", timeout_s=180)
    tries = len(every.requests())
    found.check("all ACKs lost: RETRY_EXC_ERR", g1["outcome"] == "RETRY_EXC_ERR", str(g1["outcome"]))
    found.check(
        "after retry_cnt retransmissions",
        tries == g1["retries"] + 1,
        f"sent {tries} times for retry_cnt {g1['retries']}",
    )
    found.check(
        "the queue pair is in ERR and flushes",
        g1["state"] == "ERR" and g1["flushed"] == "WR_FLUSH_ERR",
        str(g1["state"]),
    )
    found.check("the target knows nothing of it", g0["received"] == 1 and g0["state"] == "RTS", str(g0["state"]))
    timeouts = "local_ack_timeout_err"
    found.note(f"hw_counters/{timeouts} rose by {once.get(timeouts, 0)} and by {always.get(timeouts, 0)}")
    found.note(
        f"The message had been delivered all the same: RETRY_EXC_ERR does not say that it was not. It took"
        f" {g1['seconds']:.2f} s"
    )
    return found.verdict(
        f"one ACK lost: sent twice, delivered once, success; all lost: sent {tries} times (retry_cnt {g1['retries']}),"
        " RETRY_EXC_ERR, ERR"
    )


def _pauses_ms(traffic: Traffic) -> list[float]:
    """Times from each RNR NAK to the next request."""
    pauses, asked_at = [], None
    for seen in traffic:
        if seen.name == "RC RNR_NAK":
            asked_at = seen.time_s
        elif seen in traffic.requests() and asked_at is not None:
            pauses.append((seen.time_s - asked_at) * 1e3)
            asked_at = None
    return pauses


@claim("D08", "RNR retry: the sender waits the announced time and tries again")
def d08(bench: Bench) -> Verdict:
    """Four codes of the RNR timer, times taken on the cable."""
    found = Findings()
    told = []
    for code, announced_ms in _RNR_MS.items():
        args = ("--code", code, "--late", _LATE_S)
        with watch(bench, 1) as traffic:
            _, g1 = bench.both("claims/d08.py", "claims/d08.py", args0=args, args1=args, timeout_s=120)
        pauses = _pauses_ms(traffic)
        codes = {seen.packet.syndrome & 0x1F for seen in traffic.named("RNR_NAK")}
        found.check(f"the NAK carries the code that the receiver set ({code})", codes == {code}, f"codes {codes}")
        found.check(
            f"code {code}: the sender waits at least {announced_ms} ms each time and tries again",
            pauses and min(pauses) >= announced_ms,
            f"code {code} says {announced_ms} ms, the shortest pause was {min(pauses, default=0):.2f} ms",
        )
        found.check(f"code {code}: the message gets through in the end", g1["outcome"] == "SUCCESS", g1["outcome"])
        told.append(f"{announced_ms} ms: {len(pauses)} pauses of {min(pauses, default=0):.2f} ms and more")
    return found.verdict("pauses between RNR NAK and the next try, by announced time: " + "; ".join(told))


@claim(
    "D09",
    "a request is outstanding until its completion (or a later one) is polled; its buffer is the device's until then",
)
def d09(bench: Bench) -> Verdict:
    """A queue is filled with requests that are done but not polled; a buffer is changed before its completion."""
    g0, g1 = bench.both("claims/d09.py", "claims/d09.py", timeout_s=180)
    half = g1["depth"] // 2
    found = Findings()
    found.check(
        "requests that were carried out, but not polled, fill the queue",
        g0["written"] and g1["refusal"] and g1["still"] and g1["taken"] == g1["depth"],
        f"{g1['taken']} of {g1['depth']} taken, then {g1['refusal']}; later {g1['still']}",
    )
    found.check(
        "polling a completion frees it and the unsignalled ones before it, no others",
        g1["polled"] == [half - 1] and g1["freed"] == half,
        f"polled {g1['polled']}, {g1['freed']} places free",
    )
    found.check(
        "the device reads the buffer as long as the request is outstanding",
        g1["waiting"] == 0 and g1["done"] == 1 and g0["got"] == "after!",
        f"the peer received {g0['got']!r}",
    )
    return found.verdict(
        f"{g1['taken']} requests filled a queue of {g1['depth']} although all were carried out; polling the completion"
        f" of number {half} freed {half} places; a buffer that was changed between post and completion arrived with its"
        " new content"
    )
