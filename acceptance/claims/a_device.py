"""Claims A01 to A06: how a device and its clients meet in the kernel's RDMA core."""

from __future__ import annotations

import re
import time
from typing import Final

from acceptance.claims.bench import Bench
from acceptance.claims.framework import Findings, claim
from acceptance.claims.soft_roce import soft_roce
from acceptance.claims.trace import Event, Probe, Trace
from acceptance.claims.verdict import Verdict
from vhca.lab.perftest import TCP_PORT, wait_listening

#: The device as its driver hands it over, before the core has done anything with it.
_REGISTER: Final = Probe(
    "register",
    "ib_register_device",
    "name=name:string guid=device->node_guid:x64 ports=device->phys_port_cnt:u32 max_qp=device->attrs.max_qp:s32"
    " create_qp=device->ops.create_qp:symbol query_device=device->ops.query_device:symbol",
)
#: The device as a client gets it.
_ADD: Final = Probe(
    "add",
    "add_client_context",
    "device=device->name:string client=client->name:string guid=device->node_guid:x64 ports=device->phys_port_cnt:u32"
    " max_qp=device->attrs.max_qp:s32 create_qp=device->ops.create_qp:symbol lkey=device->local_dma_lkey:x32",
)
_REMOVE: Final = Probe("remove", "remove_client_context", "device=device->name:string client_id=client_id:u32")
#: Messages without end. It sleeps until they come: a program that polls would leave the kernel half of the processor.
_LOAD: Final = ("ibv_rc_pingpong", "-d", "mlx5_0", "-n", "100000000", "-e")
#: Which function a client has for the removal of a device.
_REMOVER: Final = Probe("remover", "add_client_context", "client=client->name:string remove=client->remove:symbol")
_SYMBOL: Final = re.compile(r"remove=(?P<function>\w+)\+0x0/0x[0-9a-f]+ \[(?P<module>\w+)\]")
_REGISTER_CLIENT: Final = Probe("client", "ib_register_client", "client=client->name:string")
# names of arguments are known only of modules that are loaded, and this one is set up before
_UMAD_ADD: Final = Probe("umad_add", "ib_umad:ib_umad_add_one")
_UMAD_REMOVE: Final = Probe("umad_remove", "ib_umad:ib_umad_remove_one")


def _reload_driver(bench: Bench) -> None:
    bench.run("rmmod mlx5_ib && modprobe mlx5_ib")
    bench.wait_active()


def _swapped(hexadecimal: str) -> int:
    """A big-endian number of the kernel that was fetched on a little-endian machine."""
    return int.from_bytes(int(hexadecimal, 16).to_bytes(8, "little"), "big")


def _guid(text: str) -> int:
    """A GUID in sysfs notation."""
    return int(text.replace(":", ""), 16)


def _pairs(trace: Trace, name: str = "add") -> list[tuple[str, str]]:
    """(client, device) of each call of a client's add."""
    return [(event.arguments["client"], event.arguments["device"]) for event in trace.named(name)]


@claim("A01", "an HCA shows as ib_device: name, node_guid, phys_port_cnt, attrs, ops, local_dma_lkey")
def a01(bench: Bench) -> Verdict:
    """The kernel's structure, read while it is handed to the first client, against what user space sees of it."""
    with bench.trace([_ADD], show=lambda event: event.arguments["client"] == "uverbs") as trace:
        _reload_driver(bench)
    seen = trace.named("add")[0].arguments
    info = bench.run(["ibv_devinfo", "-v", "-d", "mlx5_0"], show="hca_id|guid|phys_port_cnt|max_qp:|fw_ver").stdout
    shown = {words[0].rstrip(":"): words[1] for line in info.splitlines() if len(words := line.split()) == 2}
    names = bench.run("ls /sys/class/infiniband; cat /sys/class/infiniband/mlx5_0/node_guid").stdout.split()
    found = Findings()
    found.check("the device has a name, the one in sysfs", seen["device"] == names[0] == shown["hca_id"])
    found.check("node_guid is the card's", _swapped(seen["guid"]) == _guid(names[1]) == bench.card(0).node_guid)
    found.check("phys_port_cnt is what ibv_devinfo shows", seen["ports"] == shown["phys_port_cnt"])
    found.check("attrs holds the limits that user space is told", seen["max_qp"] == shown["max_qp"])
    found.check("ops points into the driver", "[mlx5_ib]" in seen_symbol(trace.named("add")[0], "create_qp"))
    found.check("it has a local_dma_lkey", "lkey" in seen)
    found.note(
        f"local_dma_lkey of mlx5 is {seen['lkey']}"
        + (": the core then makes a DMA region for each PD instead" if int(seen["lkey"], 16) == 0 else "")
    )
    return found.verdict(
        f"{seen['device']} is an ib_device with node_guid {names[1]}, {seen['ports']} port, attrs (max_qp"
        f" {seen['max_qp']}), ops (create_qp = {seen['create_qp'].split('+')[0]}) and a local_dma_lkey"
    )


def seen_symbol(event: Event, name: str) -> str:
    """A fetched symbol with the module that it is in."""
    return event.text.partition(f"{name}=")[2].partition("]")[0] + "]"


@claim("A02", "the driver's probe fills the ib_device and calls ib_register_device")
def a02(bench: Bench) -> Verdict:
    """Who calls ib_register_device while mlx5_ib loads, and what is in the device by then."""
    with bench.trace([_REGISTER], stacks=True) as trace:
        _reload_driver(bench)
    calls = trace.named("register")
    found = Findings()
    if not found.check("loading the driver calls ib_register_device once", len(calls) == 1, f"{len(calls)} calls"):
        return found.verdict()
    call, fields = calls[0], calls[0].arguments
    found.check("the caller is the driver's probe function", "mlx5r_probe" in call.stack, f"called by {call.stack}")
    found.check("ops is filled by then", "[mlx5_ib]" in seen_symbol(call, "create_qp"))
    found.check("phys_port_cnt and node_guid are filled by then", int(fields["ports"]) and int(fields["guid"], 16))
    if fields["max_qp"] == "0":
        found.note("attrs is still empty then: the core fills it, by the driver's query_device")
    return found.verdict("mlx5r_probe fills ops, node_guid and phys_port_cnt, then calls ib_register_device")


@claim("A03", "ib_register_client reaches every device, whether the client loads before or after the driver")
def a03(bench: Bench) -> Verdict:
    """ib_umad loaded before its devices exist, and after."""
    found = Findings()
    probes = [_REGISTER_CLIENT, _ADD, _UMAD_ADD]

    def only_umad(event: Event) -> bool:
        return event.name == "umad_add" or event.arguments.get("client") in ("umad", "issm")

    bench.run("rmmod ib_umad; rmmod mlx5_ib")
    with bench.trace(probes, show=only_umad) as first:
        bench.run("modprobe ib_umad; ls /dev/infiniband; modprobe mlx5_ib; ls /dev/infiniband")
    before = [("umad", "mlx5_0")]
    registered = [event for event in first.named("client") if event.arguments["client"] == "umad"]
    added = [event for event in first.named("add") if event.arguments["client"] == "umad"]
    found.check(
        "client first: add is called when the device comes", [p for p in _pairs(first) if p in before] == before
    )
    found.check(
        "client first: add is called later than ib_register_client",
        registered and added and added[0].time_s > registered[0].time_s,
    )
    bench.wait_active()
    with soft_roce(bench):
        there = bench.run("ls /sys/class/infiniband").stdout.split()
        bench.run("rmmod ib_umad; ls /dev/infiniband")
        with bench.trace(probes, show=only_umad, stacks=True) as second:
            bench.run("modprobe ib_umad; ls /dev/infiniband")
        devices = sorted(device for client, device in _pairs(second) if client == "umad")
        found.check(
            "driver first: add is called for every device that is there",
            len(there) > 1 and devices == there,
            f"add was called for {devices} of {there}",
        )
        calls = second.named("umad_add")
        found.check(
            "driver first: ib_register_client itself makes the calls",
            calls and all("ib_register_client" in call.stack for call in calls),
            f"called by {[call.stack for call in calls]}",
        )
    return found.verdict(
        f"add of ib_umad is called for mlx5_0 if it loads first, and for {' and '.join(devices)} if it loads last"
    )


@claim("A04", "a later hot-plugged HCA triggers each client's add")
def a04(bench: Bench) -> Verdict:
    """A second card is plugged into the running machine by QEMU's device_add."""
    with bench.trace([_ADD], quiet=True) as before:
        _reload_driver(bench)
    clients = {client for client, _ in _pairs(before)}
    with bench.trace([_ADD], show=lambda event: event.arguments["device"] == "mlx5_1") as trace:
        bench.plug_spare()
        bench.wait_for("[ -d /sys/class/infiniband/mlx5_1 ]", timeout_s=60)
        bench.wait_active(device="mlx5_1")
    bench.run("ls /sys/class/infiniband /dev/infiniband; dmesg | grep -iE 'pciehp|mlx5' | tail -n 12")
    reached = {client for client, device in _pairs(trace) if device == "mlx5_1"}
    nodes = bench.run("ls /dev/infiniband", quiet=True).stdout.split()
    found = Findings()
    found.check(
        f"each of the {len(clients)} clients gets add for the new device",
        reached == clients,
        f"add reached {sorted(reached)}, but the clients are {sorted(clients)}",
    )
    found.check("uverbs and umad make new nodes", {"uverbs1", "umad1"} <= set(nodes), f"there are {nodes}")
    # the other claims are about one card; QEMU cannot unplug it
    bench.run("echo 1 >$(readlink -f /sys/class/infiniband/mlx5_1/device)/remove", quiet=True)
    return found.verdict(f"hot plug of mlx5_1 calls add of {', '.join(sorted(reached))}; uverbs1 and umad1 appear")


@claim("A05", "removal calls each client's remove; client unload calls remove for every device")
def a05(bench: Bench) -> Verdict:
    """The card is removed under load, then found again; a client is unloaded with two devices there."""
    found = Findings()
    with bench.trace([_REMOVER]) as adds:
        _reload_driver(bench)
    matches = [_SYMBOL.search(event.text) for event in adds.named("remover")]
    removers = sorted({f"{match['module']}:{match['function']}" for match in matches if match})
    probes = [Probe(f"remover{number}", function) for number, function in enumerate(removers)]
    place = bench.run("readlink -f /sys/class/infiniband/mlx5_0/device", quiet=True).stdout.strip()
    with bench.trace(probes) as trace:
        load = bench.guest(0).popen(_LOAD)
        wait_listening(bench.guest(0), TCP_PORT, load.pid)
        other = bench.guest(1).popen([*_LOAD, "g0"])
        before = bench.fabric.counters()[f"{bench.card(1).name}.rcv_pkts"]
        _wait_moving(bench, before)
        bench.run(f"echo 1 >{place}/remove; ls /sys/class/infiniband /dev/infiniband", check=False, timeout_s=180)
        for process in (load, other):
            process.kill()
            process.wait(20)
        bench.record("g0", "ibv_rc_pingpong, whose card was taken away", load.stderr.read_all().decode())
    missed = [function for probe, function in zip(probes, removers, strict=True) if not trace.named(probe.name)]
    found.check(
        f"removal of the device, under load, calls remove of each client ({', '.join(removers)})",
        len(removers) >= 2 and not missed,
        f"not called: {', '.join(missed)}",
    )
    # the bus behind its bridge alone: a card that another claim took out would come back with the bridge's own bus
    bench.run(f"echo 1 | tee {place.rpartition('/')[0]}/pci_bus/*/rescan")
    bench.wait_active()
    with soft_roce(bench), bench.trace([_REMOVE, _UMAD_REMOVE], stacks=True) as unload:
        there = bench.run("ls /sys/class/infiniband").stdout.split()
        bench.run("rmmod ib_umad; ls /dev/infiniband")
    devices = _removed_by_umad(unload)
    found.check(
        "unloading a client calls its remove for every device",
        len(there) > 1 and devices == there,
        f"remove was called for {devices} of {there}",
    )
    bench.run("modprobe ib_umad", quiet=True)
    return found.verdict(
        f"taking the card away under load called remove of all {len(removers)} clients that have one, and it came back"
        f" by a rescan; rmmod ib_umad called remove for {' and '.join(devices)}"
    )


def _removed_by_umad(trace: Trace) -> list[str]:
    """The devices that ib_umad's remove was called for: each call follows one of remove_client_context."""
    devices, device = [], ""
    for event in trace.events:
        if event.name == "remove":
            device = event.arguments["device"]
        elif event.name == "umad_remove":
            devices.append(device)
    return sorted(devices)


def _wait_moving(bench: Bench, before: int, least: int = 50, timeout_s: float = 60.0) -> None:
    """Wait until the second card has received `least` packets more than `before`."""
    deadline_s = time.monotonic() + timeout_s
    while bench.fabric.counters()[f"{bench.card(1).name}.rcv_pkts"] < before + least:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the load did not start within {timeout_s:.0f} s")
        time.sleep(0.1)


@claim("A06", "despite the ib_ names, a RoCE device registers with the same calls")
def a06(bench: Bench) -> Verdict:
    """Soft-RoCE and mlx5 in one guest, both traced while they register."""
    with bench.trace([_REGISTER, _ADD], quiet=True) as card:
        _reload_driver(bench)
    trace = bench.trace([_REGISTER, _ADD], stacks=True, show=lambda event: event.name == "register")
    with trace as calls_of_rxe, soft_roce(bench):
        layers = bench.run("grep . /sys/class/infiniband/*/ports/1/link_layer").stdout
        bench.run("ibv_devinfo -d rxe0", show="hca_id|transport|link_layer|state")
    found = Findings()
    calls = calls_of_rxe.named("register")
    found.check(
        "rxe registers by ib_register_device",
        calls and "rxe" in calls[0].arguments["name"] and "[rdma_rxe]" in seen_symbol(calls[0], "create_qp"),
        f"{len(calls)} calls of ib_register_device",
    )
    found.check("it is an Ethernet device", "rxe0/ports/1/link_layer:Ethernet" in layers)
    found.check("mlx5_0 beside it is an InfiniBand device", "mlx5_0/ports/1/link_layer:InfiniBand" in layers)
    both = {client for client, _ in _pairs(card)}, {client for client, _ in _pairs(calls_of_rxe)}
    found.check("the same clients are told of it", both[1] and both[0] == both[1], f"{both[0]} and {both[1]}")
    return found.verdict(
        "rxe0 (link layer Ethernet) registers by ib_register_device and its clients get add as for mlx5_0 (InfiniBand)"
    )
