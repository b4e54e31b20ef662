"""Claims B01 to B09: what queue pairs are, by number, by service, by size."""

from __future__ import annotations

from typing import Final

from acceptance.claims.bench import Bench
from acceptance.claims.cable import counted, disturb, watch
from acceptance.claims.framework import Findings, claim
from acceptance.claims.verdict import Verdict
from vhca.fabric.faults import Fault
from vhca.wire.packet import RC, SEND, UC, Packet


@claim("B01", "SQ and RQ are independent; inside one queue work completes in posting order")
def b01(bench: Bench) -> Verdict:
    """60 requests of three kinds each way at once; then a send queue that is stuck beside a busy receive queue."""
    with watch(bench, 1) as traffic:
        g0, g1 = bench.both("claims/b01.py", "claims/b01.py", timeout_s=180)
    found = Findings()
    for side, seen in (("g0", g0), ("g1", g1)):
        order = list(range(60))
        found.check(f"{side}: the send queue completes in posting order", seen["sent"] == order, str(seen["sent"]))
        order = list(range(1000, 1020))
        found.check(f"{side}: the receive queue too", seen["received"] == order, str(seen["received"]))
    found.check(
        "while a send waits for its receiver, receives of the same queue pair complete",
        g1["other_queue"] == 4 and not g1["stuck_completed"] and traffic.named("RNR_NAK"),
        f"{g1['other_queue']} receives completed and {g1['stuck_completed']} sends",
    )
    found.check("it completes once its receiver is ready", g1["freed"] == [500], str(g1["freed"]))
    return found.verdict(
        "120 mixed requests and 40 receives completed in posting order on both sides; a send queue that was held up by"
        f" {len(traffic.named('RNR_NAK'))} RNR NAKs did not hold up the receive queue of the same queue pair"
    )


@claim("B02", "qp_num is unique in the device and is how the peer names it")
def b02(bench: Bench) -> Verdict:
    """600 queue pairs of two processes on each card; one message to the second of two, and what its packet says."""
    with watch(bench, 0) as traffic:
        g0, g1 = bench.both("claims/b02.py", "claims/b02.py", timeout_s=240)
    both = set(g0["mine"] + g0["theirs"]), set(g1["mine"] + g1["theirs"])
    found = Findings()
    found.check(
        "no number is given twice in one device, to whatever process",
        len(both[0]) == len(both[1]) == 600,
        f"{len(both[0])} and {len(both[1])} different numbers for 600 queue pairs",
    )
    request = [seen for seen in traffic.requests() if seen.toward_card]
    found.check(
        "the packet carries the peer's number as its destination",
        request and all(seen.packet.dest_qp == g0["second"] for seen in request),
        f"destinations {[seen.packet.dest_qp for seen in request]}, the peer is {g0['second']}",
    )
    found.check("the message reaches that queue pair and no other", g0["got"] == {"second": 1, "first": 0})
    shared = len(both[0] & both[1])
    found.note(f"Only inside one device: the two cards gave {shared} numbers both")
    return found.verdict(
        f"600 queue pairs of two processes have 600 numbers; a message for qp_num {g0['second']:#x} carries it in its"
        " header and arrives there alone"
    )


@claim("B03", "RC: one to one, lost packets are resent, disorder is repaired; SEND, READ, WRITE, atomics")
def b03(bench: Bench) -> Verdict:
    """All operations with content checked, over a cable that loses, doubles, swaps and damages packets."""

    def reliable(packet: Packet) -> bool:
        return packet.service == RC

    faults = [
        Fault("drop", match=reliable, probability=0.05),
        Fault("reorder", match=reliable, probability=0.05),
        Fault("duplicate", match=reliable, probability=0.05),
        Fault("corrupt", match=reliable, probability=0.04),
    ]
    with counted(bench, 1) as moved, disturb(bench, 1, faults, toward_card=False) as traffic:
        g0, g1 = bench.both("claims/b03.py", "claims/b03.py", timeout_s=300)
    hits = {fault.action: fault.hits for fault in faults}
    found = Findings()
    found.check(
        "SEND, WRITE, READ, fetch-and-add and compare-and-swap all complete, in order",
        g1["statuses"] == {"SUCCESS": 60} and not g1["wrong"],
        f"{g1['statuses']}, {g1['wrong']}",
    )
    found.check(
        "memory and messages are as over a perfect cable, each message once",
        not g0["wrong"] and g0["counter"] == 36 and g0["swapped"] == 12 and g0["extra"] == 0,
        f"{g0['wrong']}, counter {g0['counter']} instead of 36, swapped {g0['swapped']} instead of 12",
    )
    found.check("the cable did lose, double, swap and damage packets", all(hits.values()), str(hits))
    found.check("lost packets are sent again", moved.get("retransmits", 0) > 0, str(moved))
    found.check("a connected queue pair takes no second peer", g1["second_peer"] == "EINVAL", str(g1["second_peer"]))
    return found.verdict(
        f"60 operations of all five kinds ended with the right bytes although the cable did {hits} of"
        f" {len(traffic.requests())} request packets ({moved.get('retransmits')} times the card went back); a second"
        " peer is refused with EINVAL"
    )


_LOST: Final = 3  # which of the messages loses its middle packet


@claim("B04", "UC: SEND and WRITE only (READ and atomics refused); a loss is not repaired and not reported")
def b04(bench: Bench) -> Verdict:
    """Ten messages of three packets, of one of which the middle is lost; then what UC has not."""

    def unreliable(packet: Packet) -> bool:
        return packet.service == UC and packet.op == SEND and not packet.start and not packet.end

    lost = Fault("drop", match=unreliable, skip=_LOST, limit=1)
    with counted(bench, 0), disturb(bench, 0, [lost]) as traffic:
        g0, g1 = bench.both("claims/b04.py", "claims/b04.py", timeout_s=180)
    found = Findings()
    found.check("one packet was lost", lost.hits == 1, f"{lost.hits} packets")
    found.check(
        "the sender's completions all say success",
        g1["outcomes"] == ["SUCCESS"] * 10 and g1["state"] == "RTS",
        f"{g1['outcomes']}, state {g1['state']}",
    )
    arrived = [number for number in range(10) if number != _LOST]
    found.check("the message is missing and the others are there", g0["got"] == arrived, f"received {g0['got']}")
    found.check("nothing is sent twice or answered", not traffic.answers() and len(traffic.named("SEND_FIRST")) == 10)
    found.check("WRITE works", g1["write"] == "SUCCESS" and g0["written"] == "wrot", str(g0["written"]))
    tried: dict[str, dict[str, str | None]] = g1["tried"]
    for name, seen in tried.items():
        found.check(
            f"{name} is refused",
            seen["post"] or seen["completion"] not in ("SUCCESS", "nothing"),
            f"{name} on UC: {seen}",
        )
    how = [f"{name.removeprefix('IBV_WR_')} {_refusal(seen)}" for name, seen in tried.items()]
    found.note(f"{'; '.join(how)}; ibv_create_qp_ex with one of these as its operations: {g1['extended']}")
    return found.verdict("the middle packet of a SEND was lost: sender completes with success, receiver gets nothing")


def _refusal(seen: dict[str, str | None]) -> str:
    """How a request was refused: by the library, or by the card."""
    if seen["post"]:
        return f"is refused by ibv_post_send ({seen['post']})"
    return f"is taken by ibv_post_send and refused by the card (completion {seen['completion']})"


@claim("B05", "UD: SEND only, one to many and multicast, a message fits one packet (more than the MTU is refused)")
def b05(bench: Bench) -> Verdict:
    """One queue pair sends to three others and to a group; a message of the MTU, and one byte more."""
    with watch(bench, 0) as traffic:
        g0, g1 = bench.both("claims/b05.py", "claims/b05.py", timeout_s=180)
    found = Findings()
    mtu = g1["mtu"]
    found.check("all sends complete", g1["outcomes"] == ["SUCCESS"] * 4, str(g1["outcomes"]))
    boxes = [["to first", "to all", mtu], ["to second", "to all"]]
    found.check(
        "one queue pair reaches several, on its own card too",
        [sorted(map(str, box)) for box in g0["boxes"]] == [sorted(map(str, box)) for box in boxes]
        and g1["own"] == ["to own"],
        f"received: {g0['boxes']}, own: {g1['own']}",
    )
    multicast = [seen for seen in traffic if seen.toward_card and seen.packet.route.dlid == g0["mlid"]]
    found.check(
        "a multicast message is one packet on the cable and arrives at both members",
        len(multicast) == 1 and all("to all" in box for box in g0["boxes"]),
        f"{len(multicast)} packets, received: {g0['boxes']}",
    )
    found.check(f"a message of the MTU ({mtu} bytes) passes", g1["longest"] == "SUCCESS", str(g1["longest"]))
    found.check(
        "one byte more is refused, and nothing of it is sent",
        g1["too_long"] not in ("SUCCESS", "nothing") and all(len(seen.packet.payload) <= mtu for seen in traffic),
        f"completion {g1['too_long']}",
    )
    tried: dict[str, dict[str, str | None]] = g1["refused"]
    for name, seen in tried.items():
        refused = seen["post"] or seen["completion"] not in ("SUCCESS", "nothing")
        found.check(f"{name} is refused", refused, f"{name} on UD: {seen}")
    found.note(f"More than the MTU: completion {g1['too_long']}, state {g1['state']}")
    found.note("; ".join(f"{name.removeprefix('IBV_WR_')} {_refusal(seen)}" for name, seen in tried.items()))
    return found.verdict(
        f"one UD queue pair reached two on the other card, one on its own, and a group of two by one packet to LID"
        f" {g0['mlid']:#x}; {mtu} bytes pass, {mtu + 1} do not"
    )


@claim("B06", "XRC initiator and target with an SRQ: many to one with fewer QPs")
def b06(bench: Bench) -> Verdict:
    """Two initiators reach three shared receive queues each through one target queue pair each."""
    with watch(bench, 0) as traffic:
        g0, g1 = bench.both("claims/b06.py", "claims/b06.py", timeout_s=180)
    found = Findings()
    boxes = [["0 to 0", "1 to 0"], ["0 to 1", "1 to 1"], ["0 to 2", "1 to 2"]]
    found.check("all six messages arrive at the SRQ that they name", g0["boxes"] == boxes, str(g0["boxes"]))
    found.check("all complete at their initiators", g1["outcomes"] == ["SUCCESS"] * 6, str(g1["outcomes"]))
    named = {seen.packet.xrc_srqn for seen in traffic.requests()}
    targets = {seen.packet.dest_qp for seen in traffic.requests()}
    found.check(
        "each packet names queue pair and SRQ",
        len(named) == 3 and len(targets) == 2 and all(seen.name.startswith("XRC") for seen in traffic.requests()),
        f"{len(named)} SRQs and {len(targets)} queue pairs on the cable",
    )
    return found.verdict(
        "two initiators reached three receivers each (six flows) with two queue pairs on each side, where RC needs six;"
        " the SRQ is named in each packet"
    )


@claim("B07", "each port has QP0 (SMI) and QP1 (GSI)")
def b07(bench: Bench) -> Verdict:
    """What the kernel lists, and packets to and from them."""
    listed = bench.run(["rdma", "resource", "show", "qp", "link", "mlx5_0/1"], show="lqpn [01] ").stdout
    with watch(bench, 0, management=True) as traffic:
        bench.run(["smpquery", "-D", "nodeinfo", "0,1"], show="Type|Guid|NumPorts")
        bench.run(["saquery", "-N"], show="lid|node_desc", check=False)
        bench.run("perfquery $(cat /sys/class/infiniband/mlx5_0/ports/1/sm_lid) 1", show="Xmit|Rcv", check=False)
    found = Findings()
    rows = listed.splitlines()
    found.check("QP 0 is there, of type SMI", any(" lqpn 0 type SMI" in row for row in rows), listed)
    found.check("QP 1 is there, of type GSI", any(" lqpn 1 type GSI" in row for row in rows), listed)
    for number, what in ((0, "SMPs"), (1, "GMPs")):
        out = [s for s in traffic if not s.toward_card and s.packet.src_qp == number and s.packet.dest_qp == number]
        back = [s for s in traffic if s.toward_card and s.packet.dest_qp == number]
        found.check(f"{what} leave from QP {number} for QP {number} and are answered there", out and back)
    ports = bench.run("ls /sys/class/infiniband/mlx5_0/ports", quiet=True).stdout.split()
    count = sum(" lqpn 0 type SMI" in row for row in rows)
    found.check("there is one of each for each port", count == len(ports), f"{count} SMI for {len(ports)} ports")
    return found.verdict("the kernel lists QP 0 (SMI) and QP 1 (GSI) of port 1; SMPs and GMPs go between them")


@claim("B08", "IB_SIGNAL_ALL_WR completes each request; IB_SIGNAL_REQ_WR only the flagged ones")
def b08(bench: Bench) -> Verdict:
    """Eight sends each way of signalling."""
    seen = bench.script("claims/b08.py", timeout_s=120)
    found = Findings()
    every, some, none = seen["all"], seen["some"], seen["none"]
    found.check("all eight arrive each time", [way["arrived"] for way in (every, some, none)] == [8, 8, 8], str(seen))
    found.check("signal all: each completes", every["completed"] == list(range(8)), str(every["completed"]))
    found.check("by request: the flagged ones", some["completed"] == [2, 7], str(some["completed"]))
    found.check("by request, none flagged: none", none["completed"] == [], str(none["completed"]))
    return found.verdict("sq_sig_all: 8 completions of 8 unflagged sends; without: of those flagged only (2 of 8)")


@claim("B09", "max_send_wr, max_recv_wr, max_send_sge, max_recv_sge bind: one more is refused")
def b09(bench: Bench) -> Verdict:
    """Queues are filled to the brim; requests get one entry too many."""
    seen = bench.script("claims/b09.py", timeout_s=240)
    given, send, recv, sge = seen["given"], seen["send"], seen["recv"], seen["sge"]
    found = Findings()
    asked_wr, asked_sge = seen["asked"]
    found.check(
        "at least what was asked for is given",
        min(given["max_send_wr"], given["max_recv_wr"]) >= asked_wr
        and min(given["max_send_sge"], given["max_recv_sge"]) >= asked_sge,
        str(given),
    )
    for name, queue in (("max_send_wr", send), ("max_recv_wr", recv)):
        found.check(
            f"{name}: {given[name]} requests go in, one more is refused",
            queue["taken"] == given[name] and queue["refusal"],
            f"{name} is {given[name]}, but {queue['taken']} went in before {queue['refusal']}",
        )
    for name, (fits, more) in (("max_send_sge", sge["send"]), ("max_recv_sge", sge["recv"])):
        found.check(
            f"{name}: {given[name]} entries are taken, one more is refused",
            fits is None and more,
            f"{name} is {given[name]}: that many give {fits}, one more gives {more}",
        )
    found.note(
        f"Asked for {asked_wr} requests of {asked_sge} entries the driver gave {given}; the limits that bind are those"
        f" that it gave. Refusals: queue full {send['refusal']}, entries {sge['send'][1]}; creation with more than"
        f" the device's max_qp_wr ({seen['beyond']['max_qp_wr'][0]}): {seen['beyond']['max_qp_wr'][1]}"
    )
    return found.verdict("each of the four limits binds: one more is refused")
