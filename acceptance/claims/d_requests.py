"""Claims D01 to D06: what the kinds of work requests do, at both ends."""

from __future__ import annotations

import time
from typing import Final

from acceptance.claims.bench import Bench
from acceptance.claims.cable import counted, hardware_counters, watch
from acceptance.claims.framework import Findings, claim
from acceptance.claims.verdict import Verdict

_RNR_RETRIES: Final = 3


@claim("D01", "SEND needs a posted RECV; without it RNR NAK, retries, then IB_WC_RNR_RETRY_EXC_ERR")
def d01(bench: Bench) -> Verdict:
    """A SEND to a peer without receives, with rnr_retry 3; then with a receive."""
    with hardware_counters(bench, 1) as moved, counted(bench, 1), watch(bench, 1) as traffic:
        g0, g1 = bench.both("claims/d01.py", "claims/d01.py", timeout_s=120)
    naks = traffic.named("RNR_NAK")
    found = Findings()
    found.check("without a receive nothing completes at the target", g0["nothing"] == 0 and g0["state"] == "RTS")
    found.check("it answers RNR NAK", naks, str(traffic.counts()))
    found.check(
        "the sender tries rnr_retry times more",
        len(naks) == _RNR_RETRIES + 1,
        f"{len(naks)} RNR NAKs for rnr_retry {_RNR_RETRIES}",
    )
    found.check(
        "then the request ends with RNR_RETRY_EXC_ERR and the queue pair is in ERR",
        g1["outcomes"] == ["RNR_RETRY_EXC_ERR", "WR_FLUSH_ERR"] and g1["state"] == "ERR",
        f"{g1['outcomes']}, state {g1['state']}",
    )
    found.note(f"hw_counters/rnr_nak_retry_err rose by {moved.get('rnr_nak_retry_err', 0)}")
    found.check("with a receive it succeeds", g1["with_receive"] == "SUCCESS" and g0["received"] == 1)
    return found.verdict(
        f"{len(naks)} RNR NAKs (one and rnr_retry {_RNR_RETRIES} more), then RNR_RETRY_EXC_ERR and ERR; with a receive"
        " posted the SEND succeeds"
    )


@claim("D02", "SEND_WITH_IMM: 32 bits arrive in the completion, not in the buffer")
def d02(bench: Bench) -> Verdict:
    """Immediate data with and without a message."""
    g0, g1 = bench.both("claims/d02.py", "claims/d02.py", timeout_s=120)
    with_data, alone, without = g0["done"]
    found = Findings()
    values = [int.from_bytes(int(wc["imm_data"]).to_bytes(4, "little"), "big") for wc in (with_data, alone)]
    sent = [g1["immediate"], g1["immediate"] + 1]
    found.check(
        "the completion carries the 32 bits",
        sent in (values, [wc["imm_data"] for wc in (with_data, alone)]),
        f"sent {sent}, arrived {values}",
    )
    flag = g0["flag"]
    found.check(
        "it says so by IBV_WC_WITH_IMM", with_data["flags"] & alone["flags"] & flag and not without["flags"] & flag
    )
    found.check(
        "the buffer holds the message and nothing else",
        g0["buffers"] == [g1["text"], "", g1["text"]]
        and [with_data["byte_len"], alone["byte_len"]] == [len(g1["text"]), 0],
        str(g0["buffers"]),
    )
    return found.verdict(
        "the 32 bits are in the completion (imm_data, IBV_WC_WITH_IMM), also of an empty message; the buffer and"
        " byte_len hold the message only"
    )


@claim("D03", "RDMA WRITE and READ: no completion, no interrupt, no CPU at the target")
def d03(bench: Bench) -> Verdict:
    """50 writes and reads with interrupts counted; 50 more while the target's machine is stopped altogether."""

    def stop_target() -> None:
        bench.wait_for("[ -e /tmp/d03.ready ]", guest=1, timeout_s=120)
        time.sleep(0.5)  # the target is at rest: its process waits for the other side
        bench.guest(0).qmp("stop")
        try:
            bench.run("touch /tmp/d03.go", guest=1, quiet=True)
            bench.wait_for("[ -e /tmp/d03.done ]", guest=1, timeout_s=120)
            status = bench.guest(0).qmp("query-status")
        finally:
            bench.guest(0).qmp("cont")
        bench.record("QEMU of g0", "stop; 50 writes and reads by g1; query-status; cont", status)

    bench.run("rm -f /tmp/d03.*", guest=1, quiet=True)  # what an earlier run may have left
    g0, g1 = bench.both("claims/d03.py", "claims/d03.py", timeout_s=240, while_running=stop_target)
    found = Findings()
    found.check("writes and reads complete at the requester", not g1["bad"], str(g1["bad"]))
    found.check("the data went both ways", g0["written"] == "first" and g1["data"] == "secret")
    found.check("no completion at the target", g0["completions"] == 0, f"{g0['completions']} completions")
    found.check("no interrupt of the card at the target", g0["interrupts"]["all"] == 0, str(g0["interrupts"]))
    found.check(
        "no CPU: all works on while the target's machine stands still",
        not g1["bad_stopped"] and g1["data_stopped"] == "secret" and g0["written_stopped"] == "later",
        f"{g1['bad_stopped'][:3]}, read {g1['data_stopped']}, written {g0['written_stopped']}",
    )
    return found.verdict(
        f"{g1['rounds']} writes and as many reads: no completion and no interrupt at the target (its CQ was armed); the"
        " same again with the target's processors stopped by QEMU: all complete, and the memory holds the new bytes"
    )


@claim("D04", "WRITE_WITH_IMM consumes a RECV and completes at the target")
def d04(bench: Bench) -> Verdict:
    """With one receive posted, then without."""
    with watch(bench, 1) as traffic:
        g0, g1 = bench.both("claims/d04.py", "claims/d04.py", timeout_s=120)
    done = g0["done"][0]
    found = Findings()
    found.check(
        "it completes at the target with the immediate",
        (done["wr_id"], done["status"], done["opcode"]) == (77, "SUCCESS", "RECV_RDMA_WITH_IMM")
        and g1["immediate"] in (done["imm_data"], int.from_bytes(int(done["imm_data"]).to_bytes(4, "little"), "big")),
        str(done),
    )
    found.check("the data is where the request says", g0["written"] == g1["text"], str(g0["written"]))
    found.check("the buffer of the receive is not touched", g0["buffer_untouched"])
    found.check("a plain WRITE needs no receive", g1["plain"] == "SUCCESS" and g0["extra"] == 0, str(g1["plain"]))
    found.check(
        "the receive was consumed: a second one finds none (RNR)",
        g1["without"] == "RNR_RETRY_EXC_ERR" and traffic.named("RNR_NAK"),
        f"second WRITE_WITH_IMM: {g1['without']}",
    )
    return found.verdict(
        f"completion RECV_RDMA_WITH_IMM of {done['byte_len']} bytes with the immediate; the receive's buffer stays as"
        f" it was; without a receive: {len(traffic.named('RNR_NAK'))} RNR NAKs and {g1['without']}"
    )


@claim("D05", "compare-and-swap and fetch-and-add are atomic against concurrent requesters")
def d05(bench: Bench) -> Verdict:
    """Two guests count in one word, three ways."""
    g0, g1 = bench.both("claims/d05.py", "claims/d05.py", timeout_s=300, quiet=True)
    total = 2 * g1["rounds"]
    mine, theirs = g0["fetched"], g1["fetched"]
    turns = sum(1 for value in mine if theirs[0] < value < theirs[-1])
    shown = {key: g0[key] for key in ("added", "swapped", "plain", "failed_swaps")} | {
        "failed_swaps of g1": g1["failed_swaps"],
        "fetched by g0": f"{mine[:12]} ...",
        "fetched by g1": f"{theirs[:12]} ...",
        "seconds": [[round(side["seconds_" + way], 2) for way in ("add", "swap", "plain")] for side in (g0, g1)],
    }
    bench.record("g0, g1", f"guest-tests/claims/d05.py in both, {g1['rounds']} rounds each", shown)
    found = Findings()
    found.check(
        "the two did run at the same time", turns > total // 20, f"only {turns} additions fell among the other's"
    )
    found.check("fetch-and-add: none is lost", g0["added"] == total, f"{g0['added']} instead of {total}")
    found.check("each saw another value", sorted(mine + theirs) == list(range(total)), "some fetched the same value")
    found.check("compare-and-swap: none is lost", g0["swapped"] == total, f"{g0['swapped']} instead of {total}")
    found.note(
        f"{g0['failed_swaps'] + g1['failed_swaps']} swaps found another value and were tried again; READ, add, WRITE"
        f" instead of an atomic counted {g0['plain']} of {total}"
    )
    return found.verdict(
        f"two guests added {total} times to one word at the same time ({turns} additions of one fell among those of the"
        f" other): the sum is {g0['added']} and no value was fetched twice; the same by compare-and-swap"
    )


@claim("D06", "bad_wr names the failing request of a posted chain; those before it are queued")
def d06(bench: Bench) -> Verdict:
    """The third of four has too many entries."""
    seen = bench.script("claims/d06.py", timeout_s=120)
    found = Findings()
    found.check(
        "post_send fails and bad_wr is the third",
        seen["send_refusal"] and seen["bad_send"] == 12,
        f"{seen['bad_send']}",
    )
    found.check(
        "post_recv fails and bad_wr is the third",
        seen["recv_refusal"] and seen["bad_recv"] == 12,
        f"{seen['bad_recv']}",
    )
    found.check(
        "the two before it are carried out, the failing one and the one behind it are not",
        seen["sent"] == [[10, "SUCCESS"], [11, "SUCCESS"]],
        str(seen["sent"]),
    )
    found.check("receives before it are queued, then those posted later", seen["received"] == [10, 11, 90], str(seen))
    found.check("the queue works on", seen["later"] == [[80, "SUCCESS"]], str(seen["later"]))
    return found.verdict(
        f"ibv_post_send ({seen['send_refusal']}) and ibv_post_recv ({seen['recv_refusal']}) name the third of four; the"
        " first two are carried out, the fourth is not"
    )
