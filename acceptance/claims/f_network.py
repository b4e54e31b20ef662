"""Claims F01 to F04: the subnet manager, management datagrams, the connection manager, IP over InfiniBand."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Final

from acceptance.claims.bench import Bench
from acceptance.claims.cable import Seen, Traffic, watch
from acceptance.claims.cm import REP, REQ, Message, Reply, Request, is_cm, messages
from acceptance.claims.framework import Findings, claim
from acceptance.claims.ip_over_ib import ip_over_ib
from acceptance.claims.verdict import Verdict
from vhca.fabric.faults import Fault
from vhca.lab import LabError
from vhca.wire.ipoib import EtherType, IpoibHeader
from vhca.wire.mad import METHOD_GET, METHOD_GET_RESP, METHOD_SET, Smp
from vhca.wire.packet import UD, Packet
from vhca.wire.smp import LINEAR_FORWARDING_TABLE, NO_PORT, PORT_INFO

_STATE: Final = "/sys/class/infiniband/mlx5_0/ports/1/state"
_NO_MANAGER_S: Final = 15.0
_RESTORED_S: Final = 60.0
_TRIES: Final = 4
# A datagram that nobody answers is waited for so long (ms)
_PATIENT: Final = "-t 10000"
_QUICK: Final = "-t 300"
_TCP_BYTES: Final = 4 << 20
# What the two sides offer each other in F03: numbers that tell whose they are; of READs powers of two, as the card
# rounds others up.
_ACTIVE: Final = {"resources": 8, "depth": 16, "retry": 5, "rnr": 6}
_PASSIVE: Final = {"resources": 4, "depth": 2, "retry": 3, "rnr": 1}


def _is_smp(packet: Packet) -> bool:
    return packet.service == UD and packet.dest_qp == 0


def _state(bench: Bench, guest: int) -> str:
    """The port's state as the guest's driver sees it: INIT, ACTIVE, ..."""
    return bench.read(_STATE, guest).partition(": ")[2]


@claim("F01", "IB switches do not learn: forwarding tables come from the subnet manager; without it a port stays INIT")
def f01(bench: Bench) -> Verdict:
    """An entry that is taken out of the switch's table; then a port that comes up while no manager can reach it."""
    found = Findings()
    arrived = _not_learned(bench, found)
    _not_active(bench, found)
    return found.verdict(
        f"an entry was taken out of the switch's table: {arrived} packets from that LID passed the switch, and it"
        f" stayed out until the manager's sweep; a port whose SMPs were lost was INIT for {_NO_MANAGER_S:.0f} s, and"
        " ACTIVE when they were not lost any more"
    )


def _changed_tables(bench: Bench) -> int:
    """How many blocks of tables the manager has found changed, each of which it writes anew."""
    return bench.fabric.counters().get("sm.changed_tables", 0)


def _not_learned(bench: Bench, found: Findings) -> int:
    """Whether packets put an entry back; how many passed."""
    switch, lids = bench.fabric.sm_lid("h0"), [bench.fabric.lid(name) for name in ("h0", "h1")]
    port: int = bench.script("claims/f01.py", switch, lids[1])["port"]
    found.check("the switch has a port for the LID", port != NO_PORT, f"port {port}")
    for _ in range(_TRIES):
        before = _changed_tables(bench)
        bench.script("claims/f01.py", switch, lids[1], "--set", NO_PORT)
        with watch(bench, 0, management=True, only=lambda packet: packet.route.slid == lids[1]) as traffic:
            asked = bench.run(f"smpquery {_QUICK} nodedesc {lids[0]}", guest=1, check=False)
        left: int = bench.script("claims/f01.py", switch, lids[1])["port"]
        if _changed_tables(bench) == before:
            break
        time.sleep(1.0)
    else:
        raise LabError(f"{_TRIES} times the manager looked at its tables at that moment")
    passed = [seen for seen in traffic if seen.toward_card]
    found.check("packets from that LID pass the switch", passed, f"{len(passed)} packets")
    found.check("they do not put the entry back", left == NO_PORT, f"the switch has port {left} again")
    found.check("so answers to that LID do not arrive", asked.returncode != 0, "the answer arrived")
    deadline_s = time.monotonic() + _RESTORED_S
    while (again := bench.script("claims/f01.py", switch, lids[1], quiet=True)["port"]) == NO_PORT:
        if time.monotonic() > deadline_s:
            break
        time.sleep(1.0)
    wrote = _changed_tables(bench) - before
    bench.record("subnet manager", f"entry of LID {lids[1]}, after its sweep", f"port {again}, changed_tables +{wrote}")
    found.check(
        "the subnet manager puts it back", again == port and wrote > 0, f"port {again}, {wrote} blocks written anew"
    )
    return len(passed)


def _not_active(bench: Bench, found: Findings) -> None:
    """How far a port comes whose SMPs toward it are lost, and once they are not lost any more."""
    lost = Fault("drop", match=_is_smp, management=True)
    with bench.fault(1, lost):
        bench.fabric.link_down("h1")
        bench.wait_for(f"grep -q DOWN {_STATE}", guest=1)
        bench.fabric.link_up("h1")
        bench.wait_for(f"grep -q INIT {_STATE}", guest=1)
        started_s, states = time.monotonic(), set()
        while time.monotonic() < started_s + _NO_MANAGER_S:
            states.add(_state(bench, 1))
            time.sleep(0.5)
        bench.run("ibstat mlx5_0 1", guest=1, show="State|state")
    bench.record("g1", f"states of the port in {_NO_MANAGER_S:.0f} s", sorted(states))
    found.check("the manager tried to reach the port", lost.hits > 0, "it sent nothing")
    found.check(
        f"a port that no manager reaches is INIT, for {_NO_MANAGER_S:.0f} s", states == {"INIT"}, f"{sorted(states)}"
    )
    bench.wait_active(1)
    found.check("once a manager reaches it, it is ACTIVE", _state(bench, 1) == "ACTIVE")
    bench.lab.wait_active()


@claim("F02", "MADs configure switches and read port state (umad tools)")
def f02(bench: Bench) -> Verdict:
    """Tools read and set a switch's port, while the cable and the system calls are listened to."""
    found = Findings()
    switch, lid = bench.fabric.sm_lid("h0"), bench.fabric.lid("h1")
    port = bench.script("claims/f01.py", switch, lid, quiet=True)["port"]
    with watch(bench, 0, management=True, only=_is_smp) as read:
        state = _link_state(bench.run(f"smpquery {_PATIENT} portinfo {switch} {port}", show="LinkState|LinkUp").stdout)
    tool = f"smpquery {_PATIENT} nodeinfo {switch}"
    calls = bench.run(f"strace -f -e trace=openat,write,read {tool}", show="umad")
    found.check("a tool reads the state of a switch's port", state == "Active", f"it read {state}")
    found.check(
        "by Get(PortInfo), a MAD, and its answer",
        {METHOD_GET, METHOD_GET_RESP} <= _methods(read, PORT_INFO),
        str(_methods(read, PORT_INFO)),
    )
    found.check("which it writes to /dev/infiniband/umad0", '/dev/infiniband/umad0"' in calls.stderr)
    with watch(bench, 0, management=True, only=_is_smp) as listed:
        table = bench.run(f"ibroute {_PATIENT} {switch}").stdout
    found.check(
        "tables too are read by MADs",
        METHOD_GET in _methods(listed, LINEAR_FORWARDING_TABLE) and re.search(rf"0x{lid:04x} 0*{port} ", table),
        str(_methods(listed, LINEAR_FORWARDING_TABLE)),
    )
    with watch(bench, 0, management=True, only=_is_smp) as configured:
        bench.run(f"ibportstate {_PATIENT} {switch} {port} disable", show="LinkState|PhysLinkState|After")
        bench.wait_for(f"grep -q DOWN {_STATE}", guest=1)
        bench.run("ibstat mlx5_0 1", guest=1, show="State|state")
        bench.run(f"ibportstate {_PATIENT} {switch} {port} enable", show="LinkState|PhysLinkState|After")
    bench.wait_active(1)
    bench.lab.wait_active()
    found.check(
        "Set(PortInfo), another one, disables and enables the port, and the neighbour's goes down and comes back",
        METHOD_SET in _methods(configured, PORT_INFO),
        str(_methods(configured, PORT_INFO)),
    )
    return found.verdict(
        f"smpquery, ibroute and ibportstate write MADs to /dev/infiniband/umad0: Get(PortInfo) said Active of port"
        f" {port} of the switch, Set(PortInfo) disabled it and the neighbour's port was DOWN, another one brought it"
        " back"
    )


def _methods(traffic: Traffic, attribute: int) -> set[int]:
    """The methods of SMPs with this attribute."""
    smps = (Smp.from_bytes(seen.packet.payload) for seen in traffic)
    return {smp.method for smp in smps if smp.attr_id == attribute}


def _link_state(printed: str) -> str:
    match = re.search(r"^LinkState:\.*(\w+)$", printed, re.MULTILINE)
    return match[1] if match else "nothing"


@claim("F03", "the CM negotiates parameters and exchanges the numbers; RDMA CM has active and passive sides")
def f03(bench: Bench) -> Verdict:
    """Two sides that offer different numbers, the datagrams between them, and what the queue pairs are like then."""
    found = Findings()
    with ip_over_ib(bench) as (server, _), watch(bench, 1, management=True, only=is_cm, note=False) as traffic:
        passive, active = bench.both(
            "claims/f03.py",
            "claims/f03.py",
            args0=(server, *_PASSIVE.values()),
            args1=(server, *_ACTIVE.values()),
            timeout_s=120,
        )
        said = messages(traffic)
        for program in ("rping", "ucmatose"):
            served, asked = _connect(bench, program, server)
            found.check(f"{program} connects and moves data", served and asked, f"{program} did not")
    bench.record("cable of h1", "datagrams of the connection managers", "\n".join(map(str, said)))
    _check_handshake(found, said)
    _check_numbers(found, said, active["qp"], passive["qp"])
    found.check(
        "the active side resolves and connects, the passive side listens and is asked",
        active["events"][:3] == ["ADDR_RESOLVED", "ROUTE_RESOLVED", "ESTABLISHED"]
        and passive["events"][:2] == ["CONNECT_REQUEST", "ESTABLISHED"],
        f"active {active['events']}, passive {passive['events']}",
    )
    return found.verdict(
        "REQ, REP and RTU carry queue pair numbers, first PSNs and what each side offers (READs at once, retries, MTU);"
        f" offered {_ACTIVE} and {_PASSIVE}, both queue pairs were in RTS with"
        f" {active['qp']['reads_out']} READs one way and {active['qp']['reads_in']} the other; the passive side got"
        " CONNECT_REQUEST, the active side ESTABLISHED after resolving address and route"
    )


def _check_handshake(found: Findings, said: Iterable[Message]) -> None:
    order = [(message.name, message.toward_card) for message in said][:3]
    wanted = [("REQ", False), ("REP", True), ("RTU", False)]
    found.check("three datagrams make a connection: REQ, REP, RTU", order == wanted, f"{order}")


def _check_numbers(found: Findings, said: list[Message], active: dict[str, int], passive: dict[str, int]) -> None:
    """What the datagrams carried against what the queue pairs have."""
    request = next((message.said for message in said if message.attribute == REQ), None)
    reply = next((message.said for message in said if message.attribute == REP), None)
    if not isinstance(request, Request) or not isinstance(reply, Reply):
        raise LabError(f"no whole handshake was seen: {[message.name for message in said]}")
    found.check(
        "REQ and REP exchange the queue pairs' numbers",
        (request.local_qpn, reply.local_qpn)
        == (active["qpn"], passive["qpn"])
        == (passive["dest_qpn"], active["dest_qpn"]),
        f"{request.local_qpn}, {reply.local_qpn}; {active}; {passive}",
    )
    found.check(
        "each says which packet sequence number it expects first, and the other one begins with it",
        (request.starting_psn, reply.starting_psn)
        == (active["rq_psn"], passive["rq_psn"])
        == (passive["sq_psn"], active["sq_psn"]),
        f"{request.starting_psn:#x}, {reply.starting_psn:#x}; {active}; {passive}",
    )
    found.check(
        "the sides offer different numbers of READs at once, and both take what the passive side said in its REP",
        (request.initiator_depth, request.responder_resources) == (_ACTIVE["depth"], _ACTIVE["resources"])
        and (active["reads_out"], active["reads_in"])
        == (passive["reads_in"], passive["reads_out"])
        == (reply.responder_resources, reply.initiator_depth)
        == (_PASSIVE["resources"], _PASSIVE["depth"]),
        f"out {active['reads_out']} and {passive['reads_out']}, in {active['reads_in']} and {passive['reads_in']}",
    )
    found.check(
        "each takes the number of RNR retries that the other one said",
        (active["rnr_retry"], passive["rnr_retry"]) == (_PASSIVE["rnr"], _ACTIVE["rnr"]),
        f"{active['rnr_retry']} and {passive['rnr_retry']}",
    )
    same = active["rts"] and passive["rts"] and active["mtu"] == passive["mtu"] == request.path_mtu
    found.check("both are in RTS, with the MTU of the REQ", same, f"{active}; {passive}")


def _connect(bench: Bench, program: str, server: str) -> tuple[bool, bool]:
    """Run a program of rdmacm-utils in both guests; whether each ended well."""
    options = {"rping": ("-C", "10", "-V"), "ucmatose": ("-c", "2", "-C", "5")}[program]
    bind = ("-s", "-a", server) if program == "rping" else ("-b", server)
    call = ("-c", "-v", "-a", server) if program == "rping" else ("-s", server)
    process = bench.guest(0).popen([program, *bind, *options])
    try:
        bench.wait_for("rdma resource show cm_id | grep -q LISTEN", guest=0)
        asked = bench.run([program, *call, *options], guest=1, check=False)
        status = process.wait(30)
    except BaseException:
        process.kill()
        raise
    bench.record("g0", f"{program} {' '.join((*bind, *options))}", process.stdout.read_all().decode("utf-8", "replace"))
    return status == 0, asked.returncode == 0


@claim("F04", "IPoIB looks like an ordinary network card and carries TCP/IP")
def f04(bench: Bench) -> Verdict:
    """Programs that know nothing of RDMA over ib0, while the cable is listened to."""
    found = Findings()
    with ip_over_ib(bench) as (server, client):
        shown = bench.run("ip -details -statistics link show ib0; ip address show ib0", guest=1).stdout
        kinds = [int(bench.read(f"/sys/class/net/{name}/type", 1)) for name in ("ib0", "eth0")]
        lengths = [int(bench.read(f"/sys/class/net/{name}/addr_len", 1)) for name in ("ib0", "eth0")]
        ping = bench.run(f"ping -c 3 {server}", guest=1)
        args = (server, _TCP_BYTES)
        with watch(bench, 1) as traffic:
            g0, g1 = bench.both("claims/f04.py", "claims/f04.py", args0=args, args1=args, timeout_s=180)
    found.check("it is a network interface with an IP address", f"inet {client}" in shown, shown)
    found.check("ping reaches the other one", " 0% packet loss" in ping.stdout)
    found.check(
        f"{_TCP_BYTES >> 20} MiB over a TCP connection arrive as they were",
        (g0["bytes"], g0["sha256"]) == (_TCP_BYTES, g1["sha256"]) and g0["caller"] == g1["own"] == client,
        f"{g0['bytes']} bytes from {g0['caller']}",
    )
    carried = sum(len(seen.packet.payload) for seen in traffic if _is_ip(seen))
    bench.record("cable of h1", "bytes of datagrams with IPv4 behind the header of IPoIB", carried)
    found.check(
        "as IP datagrams in InfiniBand packets from the card",
        carried >= _TCP_BYTES,
        f"{carried} bytes of IP on the cable",
    )
    if kinds[0] != kinds[1] or lengths[0] != lengths[1]:
        found.note(
            f"Ordinary to programs that use IP; it is no Ethernet card: link type {kinds[0]} with addresses of"
            f" {lengths[0]} bytes (eth0: {kinds[1]}, {lengths[1]} bytes)"
        )
    return found.verdict(
        f"ib0 has an IP address, ping works, and {_TCP_BYTES >> 20} MiB went over a TCP connection of a program that"
        f" knows nothing of RDMA: {carried} bytes of IP datagrams on the card's cable"
    )


def _is_ip(seen: Seen) -> bool:
    """A datagram that starts with the 4-byte header of IPoIB, which says IPv4."""
    packet = seen.packet
    if packet.service != UD or len(packet.payload) < IpoibHeader.SIZE:
        return False
    return IpoibHeader.from_bytes(packet.payload).type == EtherType.IPV4
