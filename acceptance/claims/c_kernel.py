"""Claims C04 to C06: memory as kernel users of the RDMA core have it."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from acceptance.claims.bench import Bench
from acceptance.claims.framework import Findings, claim
from acceptance.claims.source import kernel_text
from acceptance.claims.trace import TRACEFS, Event
from acceptance.claims.verdict import Verdict
from acceptance.places import scripts
from vhca.lab import LabError, build_module, own_module

#: Mapping and unmapping; the events had other names before 6.18.
_DMA_EVENTS: Final = (("dma_map_phys", "dma_unmap_phys"), ("dma_map_page", "dma_unmap_page"))
_CQE_BYTES: Final = 64
_MADS: Final = 20
#: The last byte of an entry that the driver has set up and the card has not written yet: opcode 15.
_UNUSED_OPCODE: Final = 0xF


@claim("C04", "registration can sleep, so atomic context needs keys registered before: FMR pools")
def c04(bench: Bench) -> Verdict:
    """Whether a task that registers sleeps, and what the kernel has for those that may not."""
    with bench.trace(
        events=["sched/sched_switch"],
        filters={"sched/sched_switch": 'prev_comm == "python3" && prev_state != 0'},
        stacks=True,
        quiet=True,
    ) as trace:
        result = bench.script("claims/c04.py")
    asleep = [event for event in trace.events if event.pid == result["pid"] and _registers(event)]
    for event in asleep[:2]:
        bench.record("g0", "trace: sched_switch of a task that registers", "\n".join([event.text, *event.stack]))
    bench.record("g0", f"times that the task slept while it registered {len(result['sizes'])} regions", len(asleep))
    symbols = bench.run(
        "grep -ciE ' (ib_(create|destroy)_fmr_pool|ib_fmr_pool_|ib_alloc_fmr|ib_map_phys_fmr|ib_unmap_fmr)'"
        " /proc/kallsyms; grep -E ' (ib_alloc_mr|ib_map_mr_sg|ib_mr_pool_init|ib_mr_pool_get|mlx5_ib_alloc_mr)$|"
        " (ib_alloc_mr|ib_map_mr_sg|ib_mr_pool_init|ib_mr_pool_get|mlx5_ib_alloc_mr)\\s' /proc/kallsyms",
        check=False,
    ).stdout.splitlines()
    found = Findings()
    found.check("registration can sleep", asleep, "registering did not sleep here")
    present = {line.split()[2] for line in symbols[1:]}
    replacement = {"ib_alloc_mr", "ib_map_mr_sg", "ib_mr_pool_init"} <= present
    instead = "there is no FMR in this kernel"
    if replacement:
        instead += ": memory regions are allocated before (ib_alloc_mr, pools of them by ib_mr_pool_init), filled by"
        instead += " ib_map_mr_sg and registered by a work request, IB_WR_REG_MR"
    found.check("the kernel has FMR pools", int(symbols[0]) > 0, instead)
    headers = kernel_text(bench.kernel.release, bench.cache, bench.progress, whole=False)
    if headers is not None:
        text = (headers / "include/rdma/ib_verbs.h").read_text()
        lines = [
            f"{n}: {line}" for n, line in enumerate(text.splitlines(), 1) if "IB_WR_REG_MR" in line or "fmr" in line
        ]
        pool = (headers / "include/rdma/ib_fmr_pool.h").exists()
        bench.record("headers package", "grep -nE 'IB_WR_REG_MR|fmr' include/rdma/ib_verbs.h", "\n".join(lines))
        bench.record("headers package", "ls include/rdma/ib_fmr_pool.h", "exists" if pool else "no such file")
        found.check("include/rdma/ib_fmr_pool.h exists", pool, "its header is gone")
    return found.verdict("registration sleeps, and there are FMR pools for those that may not")


def _registers(event: Event) -> bool:
    """Does a task give up the processor by itself, not because another one takes it, while it registers?"""
    waits = re.search(r"prev_state=[SD]", event.text) is not None
    return waits and any("reg_user_mr" in name or "ib_uverbs_reg_mr" in name for name in event.stack)


@claim("C05", "ib_dma_map_single and unmap come in pairs; leaks show in DMA debugging")
def c05(bench: Bench) -> Verdict:
    """The DMA events of the kernel while management datagrams are sent; and whether it can debug DMA."""
    found = Findings()
    look = f"[ -d {TRACEFS}/events ] || mount -t tracefs tracefs {TRACEFS}; ls {TRACEFS}/events/dma"
    there = bench.run(look, check=False, quiet=True).stdout.split()
    map_name, unmap_name = next((pair for pair in _DMA_EVENTS if pair[0] in there), _DMA_EVENTS[0])
    events = [f"dma/{map_name}", f"dma/{unmap_name}"]
    with bench.trace(events=events, stacks=True, quiet=True, buffer_kib=16384) as trace:
        bench.run(
            f"i=0; while [ $i -lt {_MADS} ]; do sminfo >/dev/null || exit 1; i=$((i + 1)); done; sminfo", timeout_s=300
        )
    ours = [event for event in trace.events if _of_mad_layer(event)]
    maps = Counter(_mapping(event) for event in ours if event.name == map_name)
    unmaps = Counter(_mapping(event) for event in ours if event.name == unmap_name)
    sent = [event for event in ours if "ib_send_mad" in event.stack]
    sample = [line for event in ours[:6] for line in (str(event), *(f"    <- {name}" for name in event.stack[:5]))]
    bench.record("g0", f"trace: {', '.join(events)}, of the MAD layer", "\n".join(sample))
    counts = f"{maps.total()} maps, {unmaps.total()} unmaps, {len(sent)} of them by ib_send_mad"
    bench.record("g0", f"mappings for {_MADS + 1} requests and their answers", counts)
    still, before = maps - unmaps, unmaps - maps
    found.check("mappings are made while datagrams are sent", len(sent) >= 2 * _MADS, counts)
    # receive buffers stay mapped while they wait: those mapped before the trace end in it, and the other way round
    waiting = sum(count for (_, _, way), count in still.items() if way == "FROM_DEVICE")
    found.check(
        "every mapping for a datagram that is sent is undone",
        not any(way == "TO_DEVICE" for _, _, way in (*still, *before)),
        f"left: {still}, {before}",
    )
    found.check(
        "as many receive buffers are mapped as are unmapped",
        waiting == sum(before.values()),
        f"{waiting} receive buffers more are mapped, {sum(before.values())} less",
    )
    config = bench.kernel.image.parent / f"config-{bench.kernel.release}"
    why = "the kernel's configuration is not known"
    if config.exists():
        lines = [line for line in config.read_text().splitlines() if "DMA_API_DEBUG" in line]
        bench.record("host", f"grep DMA_API_DEBUG {config.name}", "\n".join(lines))
        why = f"this kernel is built without it ({'; '.join(lines) or 'DMA_API_DEBUG is not mentioned'})"
    bench.run("ls -d /sys/kernel/debug/dma-api", check=False)
    seen = ""
    if bench.run("[ -d /sys/kernel/debug/dma-api ]", check=False, quiet=True).returncode:
        found.unseen(
            "leaks show in DMA debugging", f"{why}; pairs were counted by the kernel's dma trace events instead"
        )
    else:
        seen = _leak(bench, found)
    return found.verdict(f"map and unmap pair up: {counts}{seen}")


def _leak(bench: Bench, found: Findings) -> str:
    """Map with a client that does not unmap, and with one that does, and see what DMA debugging says of both.

    Leaves guest 0 without its card's driver: it is replaced before the next claim.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = shutil.copytree(scripts() / "kernel/leak", Path(folder, "leak"))
        try:
            (module,) = build_module(source, bench.kernel, bench.cache, bench.progress)
        except LabError as error:
            found.unseen("leaks show in DMA debugging", f"no client that leaks could be built: {error.what}")
            return ""
        listed = [_mapped_by(bench, module, pairs) for pairs in (True, False)]
    found.check("a mapping that is undone is not listed in dma-api/dump", not listed[0], "it is listed")
    found.check("one that is not stays listed, with its device and size", len(listed[1]) == 1, f"listed: {listed[1]}")
    bench.run("device=$(readlink -f /sys/class/infiniband/mlx5_0/device) && echo ${device##*/} >$device/driver/unbind")
    said = bench.run("dmesg | grep -A 1 'DMA-API: .*pending DMA allocations'", check=False).stdout
    counted = re.search(r"released from device \[count=(\d+)\]", said)
    found.check(
        "the kernel reports it when the device loses its driver",
        counted is not None and counted[1] == "1",
        f"the kernel said: {said.strip() or 'nothing'}",
    )
    return "; a client of the RDMA core that did not unmap was reported by DMA debugging when the driver left"


def _mapped_by(bench: Bench, module: Path, pairs: bool) -> list[str]:
    """The lines of dma-api/dump for what a client mapped, after it was unloaded; it unmapped it if `pairs`."""
    bench.guest(0).insmod(own_module(module, [f"pairs={int(pairs)}"]))
    said = bench.run("dmesg | grep 'leak: mlx5_0: mapped' | tail -n 1").stdout
    address = said.split()[-1].removeprefix("0x")
    bench.run("rmmod leak", quiet=True)
    pattern = f"^mlx5_core .* D={address} L=1000 "
    return bench.run(f"grep '{pattern}' /sys/kernel/debug/dma-api/dump", check=False).stdout.splitlines()


def _of_mad_layer(event: Event) -> bool:
    return any("_mad" in name for name in event.stack)


def _mapping(event: Event) -> tuple[str, str, str]:
    """DMA address, size and direction of a map or an unmap."""
    fields = event.arguments
    return fields["dma_addr"], fields["size"], fields["dir"]


def _for_completions(event: Event) -> bool:
    """Is this part of the MAD layer's completion queue? Its doorbell record is allocated in the same call."""
    allocates = any("frag_buf" in name for name in event.stack)
    return allocates and {"mlx5_ib_create_cq", "ib_mad_init_device"} <= set(event.stack)


@claim("C06", "ib_dma_alloc_coherent gives memory both sides see")
def c06(bench: Bench) -> Verdict:
    """The buffer of a completion queue of the kernel: allocated, set up by the driver, written by the card."""
    found = Findings()
    headers = kernel_text(bench.kernel.release, bench.cache, bench.progress, whole=False)
    if headers is not None:
        files = sorted((headers / "include/rdma").glob("*.h"))
        named = [path.name for path in files if "ib_dma_alloc_coherent" in path.read_text()]
        bench.record("headers package", "grep -l ib_dma_alloc_coherent include/rdma/*.h", " ".join(named) or "(none)")
        found.check(
            "the kernel has ib_dma_alloc_coherent",
            named,
            "there is no ib_dma_alloc_coherent in this kernel: users call dma_alloc_coherent for the device that does"
            " the DMA (ib_device.dma_device); memory of that kind is what both sides see",
        )
    else:
        found.unseen("the kernel has ib_dma_alloc_coherent", f"no headers of {bench.kernel.release} are known here")
    with bench.trace(events=["dma/dma_alloc"], stacks=True, quiet=True) as trace:
        bench.run("rmmod mlx5_ib && modprobe mlx5_ib")
        bench.wait_active()
    buffers = [event for event in trace.named("dma_alloc") if _for_completions(event)]
    if not buffers:
        found.unseen("both sides see it", "no completion queue of the kernel was created")
        return found.verdict()
    first = buffers[0]
    bench.record("g0", "trace: dma_alloc, in the creation of a CQ", "\n".join([first.text, *first.stack[:8]]))
    syncs = ["dma/dma_sync_single_for_cpu", "dma/dma_sync_single_for_device"]
    with bench.trace(events=syncs, quiet=True) as synced:
        bench.run("sminfo")
    bench.record("g0", f"trace: {', '.join(syncs)}, meanwhile", f"{len(synced.events)} events")
    data = bench.physical_memory(int(first.arguments["dma_addr"], 16), 16 * _CQE_BYTES)
    opcodes = [data[at + _CQE_BYTES - 1] >> 4 for at in range(0, len(data), _CQE_BYTES)]
    unused = opcodes.count(_UNUSED_OPCODE)
    written = len(opcodes) - unused
    found.check("what the driver wrote is in the memory that the card has (entries set up as unused)", unused)
    found.check("what the card wrote reached the driver (entries written, and the datagrams answered)", written)
    found.check("no synchronisation was called for", not synced.events, f"{len(synced.events)} calls of dma_sync_*")
    return found.verdict(
        f"of the first 16 entries of the MAD layer's completion queue {written} were written by the card and {unused}"
        " still are as the driver set them up, without any call to synchronise"
    )
