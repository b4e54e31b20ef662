"""Claims B10 to B15 and B18: what a queue pair does in each of its states."""

from __future__ import annotations

from typing import Any, Final

from acceptance.claims.bench import Bench
from acceptance.claims.cable import counted, watch
from acceptance.claims.framework import Findings, claim
from acceptance.claims.soft_roce import soft_roce
from acceptance.claims.trace import Probe
from acceptance.claims.verdict import Verdict


@claim("B10", "RESET: nothing can be posted to the send side, arriving packets are dropped")
def b10(bench: Bench) -> Verdict:
    """A send is posted in RESET; a peer sends to it."""
    with counted(bench, 0, "rx_drop") as moved, watch(bench, 0) as traffic:
        g0, g1 = bench.both("claims/b10.py", "claims/b10.py", timeout_s=180)
    found = Findings()
    refusal = g0["posted"]["send"]
    found.check(
        "ibv_post_send is refused in RESET",
        g0["posted"]["send"],
        "ibv_post_send is not refused in RESET (mlx5 does not look at the state); the request is thrown away: no"
        f" packet, {g0['seen']['completions']} completions then, {g0['later']} after the way to RTS",
    )
    found.check("it is not carried out", not g0["seen"]["completions"] and not g0["later"], "it was carried out later")
    drops = {name: count for name, count in moved.items() if "drop" in name}
    found.check(
        "packets for it are dropped without an answer",
        drops and g1["outcome"] == "RETRY_EXC_ERR" and g0["seen"]["state"] == "RESET",
        f"sender: {g1['outcome']}, counters {drops}, state {g0['seen']['state']}",
    )
    tries = [seen for seen in traffic.requests() if seen.toward_card]
    found.note(
        f"ibv_post_recv in RESET: {g0['posted']['recv'] or 'taken'}. A peer's SEND was sent {len(tries)} times, dropped"
        f" each time ({drops}) and ended with {g1['outcome']}"
    )
    return found.verdict(f"a send cannot be posted in RESET ({refusal}), and what arrives is dropped")


@claim("B11", "INIT: receives can be posted, sends cannot")
def b11(bench: Bench) -> Verdict:
    """A receive and a send are posted in INIT; the queue pair goes on to RTS."""
    with counted(bench, 0, "rx_drop"), watch(bench, 0) as traffic:
        g0, g1 = bench.both("claims/b11.py", "claims/b11.py", timeout_s=180)
    found = Findings()
    found.check("ibv_post_recv is taken", g0["posted"]["recv"] is None, str(g0["posted"]["recv"]))
    found.check("the receive serves the first message after RTR", g0["received"] == [100], str(g0["received"]))
    sent = [seen for seen in traffic.requests() if not seen.toward_card]
    if not sent:
        fate = "never carried out, not even after RTS"
    else:
        fate = f"carried out by itself once the queue pair is in RTS (completion {g0['late']})"
    found.check(
        "ibv_post_send is refused",
        g0["posted"]["send"],
        "ibv_post_send is not refused in INIT: mlx5 does not look at the state. Nothing is sent while the queue pair"
        f" is in INIT or RTR; the request is {fate}",
    )
    found.check("no send is carried out in INIT", g0["quiet"] == 0 and g0["state"] == "INIT")
    found.check(
        "what arrives in INIT is dropped",
        g0["arrived_in_init"] == 0 and g1["in_init"] == "RETRY_EXC_ERR",
        f"{g0['arrived_in_init']} arrived, sender {g1['in_init']}",
    )
    return found.verdict(f"in INIT receives can be posted and sends cannot ({g0['posted']['send']})")


@claim("B12", "RTR: receives and answers; RTS: sends too")
def b12(bench: Bench) -> Verdict:
    """A queue pair in RTR is sent to and read from, and has a send posted itself."""
    with watch(bench, 0) as traffic:
        g0, g1 = bench.both("claims/b12.py", "claims/b12.py", timeout_s=180)
    found = Findings()
    found.check("RTR: a SEND arrives", g0["received"] == [100] and g0["state"] == "RTR", str(g0["received"]))
    found.check(
        "RTR: it acknowledges and answers a READ",
        g1["sent"] == g1["read"] == "SUCCESS" and g1["data"] == "answer",
        f"SEND {g1['sent']}, READ {g1['read']}: {g1['data']}",
    )
    sends = [seen for seen in traffic.requests() if not seen.toward_card]
    answers = [seen for seen in traffic.answers() if not seen.toward_card]
    found.check("RTR: the answers are on the cable", len(answers) >= 2, str(traffic.counts()))
    found.check("RTR: it does not send", g0["in_rtr"] == 0 and g1["early"] == 0, f"{g0['in_rtr']} completions")
    lengths = [len(seen.packet.payload) for seen in sends]
    found.check("RTS: it sends", 34 in lengths and 2 in [*g0["by_itself"], *g0["in_rts"]], f"sent {lengths}")
    found.note(
        f"A send posted in RTR ({g0['posted'] or 'not refused'}) is "
        + ("carried out at RTS" if 33 in lengths else "not carried out")
    )
    return found.verdict("in RTR a queue pair takes a SEND and answers a READ, but sends only from RTS on")


_IS_OK: Final = (
    Probe("decides", "ib_modify_qp_is_ok", "cur=$arg1:s32 next=$arg2:s32 type=$arg3:s32 mask=$arg4:x32"),
    Probe("ok", "ib_modify_qp_is_ok", "ok=$retval:u8", on_return=True),
)
_SQD: Final = "4"


@claim("B13", "SQD drains the send queue before attributes change")
def b13(bench: Bench) -> Verdict:
    """RTS to SQD with eight sends under way, on the card and on Soft-RoCE; the core's opinion is traced."""
    with bench.trace(_IS_OK) as trace:
        card = bench.script("claims/b13.py", timeout_s=120)
    decisions = [
        (asked.arguments, answer.arguments["ok"] == "1")
        for asked, answer in zip(trace.named("decides"), trace.named("ok"), strict=False)
    ]
    core = [ok for asked, ok in decisions if asked["cur"] == "3" and asked["next"] == _SQD]
    bench.run("modprobe rdma_rxe", check=False, quiet=True)
    with soft_roce(bench):
        bench.wait_for("ibv_devinfo -d rxe0 | grep -q PORT_ACTIVE", timeout_s=30)
        gids = bench.run("ibv_devinfo -v -d rxe0 | grep GID", quiet=True).stdout.splitlines()
        index = next((n for n, line in enumerate(gids) if "::ffff:" in line or "192.0.2.9" in line), len(gids) - 1)
        soft = bench.script("claims/b13.py", "--gid", index, timeout_s=120, check=False, prefix=("env", "DEVICE=rxe0"))
    found = Findings()
    found.check("the core finds RTS -> SQD in order", core and core[0], f"ib_modify_qp_is_ok: {core}")
    reached = card["plain"] is None and card["state"] == "SQD"
    found.check(
        "a queue pair goes from RTS to SQD",
        reached,
        f"mlx5 has no way from RTS to SQD: the core allows it, the driver answers {card['plain']} (with the notify"
        f" flag {card['notify']}) and the queue pair stays in {card['state']}; its attributes cannot be changed so",
    )
    if reached:
        found.check("work under way is finished first", len(card["done"]) == 8, str(card["done"]))
    else:
        found.note(f"Sends under way were not touched by the attempt: {len(card['done'])} of 8 completed")
    if soft.seen:
        found.note(
            f"Soft-RoCE in the same guest: RTS -> SQD {soft['plain'] or 'works'}, state {soft['state']}, then"
            f" {len(soft['done'])} of 8 sends completed, min_rnr_timer in SQD: {soft['changed'] or 'changed'}"
        )
    return found.verdict("SQD drains the send queue")


@claim("B14", "SQE: a send error on UC/UD stops the send queue, receives go on, and RTS can be reached again")
def b14(bench: Bench) -> Verdict:
    """A send with a wrong lkey on a UD and on a UC queue pair."""
    found = Findings()
    for service in ("UD", "UC"):
        args = ("--type", service)
        with watch(bench, 0, note=False) as traffic:
            g0, g1 = bench.both("claims/b14.py", "claims/b14.py", args0=args, args1=args, timeout_s=180)
        rounds, others = g0["rounds"], g1["rounds"]
        state = rounds[_QUERIED]["state"]
        found.check(
            f"{service}: the state after a send error is SQE", state == "SQE", f"{service}: the state is {state}"
        )
        for way, seen in rounds.items():
            found.check(
                f"{service}: the send fails, later ones are flushed (way back: {way})",
                [*seen["first"], *seen["flushed"]] == [[1, "LOC_PROT_ERR"], [2, "WR_FLUSH_ERR"], [3, "WR_FLUSH_ERR"]],
                f"{service}: {seen['first']} {seen['flushed']}",
            )
            found.check(
                f"{service}: receives go on (way back: {way})",
                others[way]["sent"] == "SUCCESS" and seen["received"] == [[100, "SUCCESS"]],
                f"{service}: peer's send {others[way]['sent']}, receive {seen['received']}",
            )
        ways = {way: _way_back(seen, others[way]) for way, seen in rounds.items()}
        found.check(
            f"{service}: RTS is reached again and sends work",
            "works" in ways.values(),
            f"{service}: no way back to a send queue that works: {ways}; on the cable {traffic.counts()}",
        )
        found.note(f"{service}: modify to RTS by " + "; by ".join(f"{way}: {outcome}" for way, outcome in ways.items()))
    return found.verdict(
        "a wrong lkey on UD and on UC ends the send with LOC_PROT_ERR and the state is SQE; later sends are flushed,"
        " receives go on, and modify to RTS lets the queue pair send again"
    )


_QUERIED: Final = "query, then state alone"


def _way_back(seen: dict[str, Any], other: dict[str, Any]) -> str:
    """What came of one way from SQE to RTS."""
    if seen["back"]:
        return f"{seen['back']}, state {seen['recovered']}"
    if seen["again"] == [[4, "SUCCESS"]] and other["received"] == ["SUCCESS"]:
        return "works"
    return f"taken, state {seen['recovered']}, but the next send gives {seen['again'] or 'no completion'}"


@claim("B15", "ERR: posted work is flushed; only RESET leads back")
def b15(bench: Bench) -> Verdict:
    """Three sends and three receives are pending, more are posted later; every way out is tried."""
    seen = bench.script("claims/b15.py", timeout_s=120)
    found = Findings()
    flushed = [[number, "WR_FLUSH_ERR"] for number in (0, 1, 2, 100, 101, 102)]
    found.check("pending sends and receives are flushed", seen["flushed"] == flushed, str(seen["flushed"]))
    later = [[10, "WR_FLUSH_ERR"], [110, "WR_FLUSH_ERR"]]
    found.check("so is what is posted in ERR", seen["later"] == later, str(seen["later"]))
    open_ways = [way for way, refusal in seen["ways"].items() if refusal is None]
    found.check("no other state is reached from ERR", not open_ways, f"there is a way to {open_ways}")
    found.check("the state stays ERR", seen["stays"] == "ERR", str(seen["stays"]))
    found.check("RESET is reached", seen["reset"] is None and seen["after"] == "RESET", str(seen["reset"]))
    found.check("and from there the queue pair works again", seen["again"] == [[20, "SUCCESS"]], str(seen["again"]))
    return found.verdict(
        "six pending and two later requests end with WR_FLUSH_ERR; INIT, RTR, RTS, SQD and SQE are refused from ERR"
        " (EINVAL), RESET is not, and the queue pair works again"
    )


@claim("B18", "a QP has no handshake of its own: states move only by modify_qp")
def b18(bench: Bench) -> Verdict:
    """One side goes to RTS alone; the cable and the other side's state are watched."""
    with watch(bench, 0) as traffic:
        g0, g1 = bench.both("claims/b18.py", "claims/b18.py", timeout_s=120)
    found = Findings()
    mine, theirs = g1["states"], g0["states"]
    found.check("each modify moves the own state", mine[:4] == ["RESET", "INIT", "RTR", "RTS"], str(mine))
    found.check("the peer's state does not move by it", theirs[:2] == ["RESET", "RESET"], str(theirs))
    found.check("nor by a message that arrives", theirs[2:4] == ["INIT", "INIT"], str(theirs))
    found.check("but by its own modify_qp", theirs[4:] == ["RTR", "RTS"], str(theirs))
    strange = [str(seen) for seen in traffic if not (seen.toward_card and seen.name == "RC SEND_ONLY")]
    found.check(
        "no packet passes for any of it: only the SEND (and its retry) is on the cable",
        not strange and 1 <= len(traffic) <= 2,
        f"{len(traffic)} packets: {traffic.counts()}",
    )
    found.note(f"The SEND to a peer still in INIT ended with {mine[4]} and took the sender to {mine[5]}")
    return found.verdict(
        "six modify_qp on the two sides put no packet on the cable; neither they nor a message move the peer's state"
    )
