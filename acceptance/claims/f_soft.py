"""Claims F06 to F08: RDMA devices in software beside the card."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from statistics import median
from typing import Final

from acceptance.benchmark import SOFT_DEVICE, Race, add_soft_roce, run_race
from acceptance.claims.bench import Bench
from acceptance.claims.framework import Findings, claim
from acceptance.claims.ip_over_ib import ip_over_ib
from acceptance.claims.trace import Probe
from acceptance.claims.verdict import Verdict
from vhca.lab.perftest import DEVICE, pingpong, run_exchange

_RACES: Final = (
    Race("ib_write_bw", 65536, 200, "MiB/s"),
    Race("ib_write_bw", 64, 3000, "kmsg/s"),
    Race("ib_send_lat", 8, 200, "us"),
)
_REPEATS: Final = 3
_FAR: Final = 4.0
"""Times that are called far, here."""
_FIRST_TCP_PORT: Final = 19600
_SOFT_MODULES: Final = {"rxe": "rdma_rxe", "siw": "siw"}
_ETH0_OF_G0: Final = "10.0.0.1"
_MAKES_QP: Final = Probe("create_qp", "ib_create_qp_user", "device=dev->name:string")


@claim(
    "F06",
    "Soft-RoCE set-up by the course's commands works in the guest: modprobe rdma_rxe, a dummy link, rdma link add, rdma"
    " link show, ibv_devinfo shows ACTIVE",
)
def f06(bench: Bench) -> Verdict:
    """The commands one by one, as they stand."""
    found = Findings()
    commands = (
        "modprobe rdma_rxe",
        "ip link add dummy0 type dummy",
        "ip link set dummy0 up",
        "rdma link add rxe0 type rxe netdev dummy0",
    )
    before = bench.run("ls /sys/class/infiniband").stdout.split()
    try:
        for command in commands:
            done = bench.run(command, check=False)
            if "type dummy" in command and "File exists" in done.stderr:
                found.note(f"`{command}` says {done.stderr.strip()!r}: the module makes a dummy0 when it is loaded")
                continue
            found.check(f"`{command}` works", not done.returncode, f"`{command}`: {done.stderr.strip()}")
        links = bench.run("rdma link show").stdout
        found.check(
            "rdma link show lists it as ACTIVE, on dummy0",
            re.search(r"^link rxe0/1 state ACTIVE .*netdev dummy0", links, re.MULTILINE),
            links,
        )
        info = bench.run("ibv_devinfo -d rxe0", check=False, show="hca_id|state|link_layer|transport").stdout
        found.check("ibv_devinfo shows the port as ACTIVE", "PORT_ACTIVE" in info, info)
        found.check("it was not there before", "rxe0" not in before, str(before))
    finally:
        bench.run("rdma link delete rxe0; ip link delete dummy0", check=False, quiet=True)
    return found.verdict("modprobe, ip link, rdma link add worked as they stand; rxe0 is ACTIVE beside the card")


@contextlib.contextmanager
def _on_ethernet(bench: Bench, kind: str) -> Iterator[str]:
    """A software device of this kind (rxe, siw) on the management network of both guests while the body runs."""
    name = f"{kind}0"
    for guest in (0, 1):
        bench.run(f"modprobe {_SOFT_MODULES[kind]} && rdma link add {name} type {kind} netdev eth0", guest=guest)
    try:
        yield name
    finally:
        for guest in (0, 1):
            bench.run(f"rdma link delete {name}", guest=guest, check=False, quiet=True)


@claim("F07", "Soft-RoCE is far slower than the HCA (perftest side by side)")
def f07(bench: Bench) -> Verdict:
    """The same perftest runs on both, in turn; medians."""
    found, told, tcp_port = Findings(), [], _FIRST_TCP_PORT
    guests = [bench.guest(0), bench.guest(1)]
    for guest in guests:
        add_soft_roce(guest)
    try:
        for race in _RACES:
            figures: dict[str, list[float]] = {DEVICE: [], SOFT_DEVICE: []}
            for _ in range(_REPEATS):
                for device, seen in figures.items():
                    tcp_port += 1
                    seen.append(run_race(guests, race, device, tcp_port))
            card, soft = median(figures[DEVICE]), median(figures[SOFT_DEVICE])
            ratio = (card / soft if race.higher_is_better else soft / card) if card and soft else 0.0
            what = f"{race.program} {race.size_bytes} B"
            words = f"{what}: {card:.1f} {race.unit} against {soft:.1f}, {ratio:.1f} times"
            bench.record("g0, g1", f"{what}, HCA and Soft-RoCE in turn", f"{figures}\n{words}")
            found.check(f"{what}: Soft-RoCE is at least {_FAR:.0f} times slower", ratio >= _FAR, words)
            told.append(words)
    finally:
        for number in (0, 1):
            bench.run(f"rdma link delete {SOFT_DEVICE}", guest=number, check=False, quiet=True)
    found.note(
        "both are programs here: the card runs on the host's processor, Soft-RoCE on the guest's"
        f" ({bench.lab.accelerator}) and over its Ethernet card; what a card of silicon gains is not seen"
    )
    return found.verdict("; ".join(told))


@claim(
    "F08",
    "one Verbs API serves IB, RoCE, iWARP: the same program runs on the HCA in IB mode, on rxe and on siw (without the"
    " HCA in RoCE mode: the port of a card here is InfiniBand)",
)
def f08(bench: Bench) -> Verdict:
    """rping and ibv_rc_pingpong, which device makes their queue pairs, and what that device is."""
    found, kinds = Findings(), []
    program = bench.run("sha256sum /usr/bin/rping /usr/bin/ibv_rc_pingpong", guest=1).stdout
    exchanged = {}
    with ip_over_ib(bench) as (server, _):
        kinds.append(_rping(bench, found, DEVICE, server))
        exchanged[DEVICE] = _pingpong(bench, DEVICE)
    for kind in _SOFT_MODULES:
        if bench.run(f"modprobe -n {_SOFT_MODULES[kind]}", check=False).returncode:
            found.unseen(f"on {kind}0", f"this kernel has no module {_SOFT_MODULES[kind]}")
            continue
        with _on_ethernet(bench, kind) as device:
            kinds.append(_rping(bench, found, device, _ETH0_OF_G0))
            exchanged[device] = _pingpong(bench, device)
    for device in exchanged.keys() - {"siw0"}:
        found.check(f"ibv_rc_pingpong runs on {device}, data checked", exchanged[device], f"it failed on {device}")
    found.check("these are different kinds of device", len(set(kinds)) == len(kinds), f"{kinds}")
    found.check(
        "the programs are the same files all the time",
        bench.run("sha256sum /usr/bin/rping /usr/bin/ibv_rc_pingpong", guest=1, quiet=True).stdout == program,
    )
    found.unseen("on the HCA in RoCE mode", "the port of a card here is InfiniBand")
    if not exchanged.get("siw0", True):
        found.note(
            "One API, but not every program is for each: ibv_rc_pingpong, which exchanges numbers by itself instead of"
            " asking the RDMA CM, fails on iWARP; on RoCE it has to be told a GID"
        )
    return found.verdict(f"the same rping moved data over {', '.join(kinds)}")


def _rping(bench: Bench, found: Findings, device: str, server: str) -> str:
    """Run rping between the guests; says on what kind of device."""
    layer = bench.read(f"/sys/class/infiniband/{device}/ports/1/link_layer", 1)
    node = bench.read(f"/sys/class/infiniband/{device}/node_type", 1).partition(": ")[2]
    process = bench.guest(0).popen(["rping", "-s", "-a", server, "-C", "10", "-V"])
    try:
        bench.wait_for("rdma resource show cm_id | grep -q LISTEN", guest=0)
        with bench.trace([_MAKES_QP], guest=1, filters={"vhca/create_qp": 'comm == "rping"'}) as trace:
            asked = bench.run(["rping", "-c", "-v", "-a", server, "-C", "10", "-V"], guest=1, check=False, show="ping")
        status = process.wait(30)
    except BaseException:
        process.kill()
        raise
    used = {event.arguments["device"] for event in trace.named("create_qp")}
    found.check(
        f"rping runs on {device} ({layer}, {node}), data checked",
        (asked.returncode, status) == (0, 0) and used == {device},
        f"{device}: status {asked.returncode} and {status}, queue pairs of {used}",
    )
    return f"{device} ({layer}, {node})"


def _pingpong(bench: Bench, device: str) -> bool:
    """Run ibv_rc_pingpong, which exchanges numbers by itself and then checks data; whether both ends ended well."""
    more = ("-g", "1") if bench.read(f"/sys/class/infiniband/{device}/ports/1/link_layer") == "Ethernet" else ()
    exchange = pingpong("rc", 4096, 50, *more, "-c", device=device)
    served, asked = run_exchange(bench.guest(0), bench.guest(1), exchange)
    bench.record("g1", " ".join(asked.args), asked.stdout + asked.stderr + served.stderr)
    return (served.returncode, asked.returncode) == (0, 0)
