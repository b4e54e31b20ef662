"""Claims A08 to A10: where user space meets the kernel, and where it does not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from acceptance.claims.bench import Bench
from acceptance.claims.framework import Findings, claim
from acceptance.claims.soft_roce import soft_roce
from acceptance.claims.trace import Event, Probe
from acceptance.claims.verdict import Verdict
from vhca.lab.perftest import TCP_PORT, wait_listening

_PAGE: Final = 4096
_GETPPID: Final = 110
_CREATE_QP: Final = 0x500
#: Whose memory the kernel pins for the device: queues, doorbell records and regions.
#: In the memory manager: what the RDMA core calls it by is another function since 7.2.
_PINNED: Final = Probe("pinned", "pin_user_pages_fast", "addr=$arg1:x64 pages=$arg2:s32")


@claim("A08", "user space reaches verbs by /dev/infiniband/uverbsN with ioctl or write; maps doorbells and queues")
def a08(bench: Bench) -> Verdict:
    """System calls of a ping-pong, and the memory map of a process with a QP, on the card and on Soft-RoCE."""
    found = Findings()
    _pingpong(bench, 10, before=("strace", "-f", "-o", "/tmp/strace", "-e", "trace=openat,ioctl,mmap,write,writev"))
    calls = bench.run("cat /tmp/strace", show="uverbs|RDMA|_IOC|MAP_SHARED").stdout
    opened = re.search(r'openat\([^"]*"/dev/infiniband/uverbs0"[^)]*\)\s+= (\d+)', calls)
    found.check("the process opens /dev/infiniband/uverbs0", opened, "strace shows no open of the device file")
    number = opened[1] if opened else "-"
    ioctls = re.findall(rf"ioctl\({number}, ", calls)
    writes = re.findall(rf"write\({number}, ", calls)
    found.check("it asks by ioctl or write on that file", ioctls or writes)
    pages = re.findall(rf"mmap\([^)]*MAP_SHARED, {number}, ", calls)
    found.check("it maps pages of that file", pages, "no mmap of the device file")
    with bench.trace([_PINNED]) as trace:
        result = bench.script("claims/a08.py")
    doorbells = result["mapped"]
    found.check("doorbell pages are mapped from it, for writing", any("w" in page["rights"] for page in doorbells))
    queues = [event.arguments for event in trace.named("pinned")]
    own = [area for queue in queues if (area := _holding(result, int(queue["addr"], 16)))]
    found.check(
        "the queues are mapped from it",
        own and all("uverbs" in area[2] for area in own),
        "with mlx5 only doorbell pages (UARs) and the clock page are mapped from the device file; the queues are the"
        " process's own memory, which the kernel pins when the process hands it in",
    )
    with soft_roce(bench):
        soft = bench.script("claims/a08.py", prefix=("env", "DEVICE=rxe0"))
    large = [page for page in soft["mapped"] if page["high"] - page["low"] > _PAGE]
    if large:
        found.note(f"rxe does map its queues from the device file ({len(soft['mapped'])} mappings)")
    found.note(f"the ping-pong made {len(ioctls)} ioctls and {len(writes)} writes on the device file")
    return found.verdict("opened, asked by ioctl, doorbell pages and queues mapped")


def _holding(result: Any, address: int) -> list[Any] | None:
    """The area of the process's map that holds an address: [low, high, file]."""
    return next((area for area in result["areas"] if area[0] <= address < area[1]), None)


@claim("A09", "on the data path the kernel takes no part")
def a09(bench: Bench) -> Verdict:
    """No system call between the first post and the last poll, and none more for more messages."""
    found = Findings()
    with bench.trace(events=["raw_syscalls/sys_enter"], quiet=True) as trace:
        result = bench.script("claims/a09.py", 200)
    own = [event for event in trace.events if event.pid == result["pid"]]
    marks = [index for index, event in enumerate(own) if f"NR {_GETPPID} " in event.text]
    if len(marks) != 2:
        raise ValueError(f"{len(marks)} marks in the trace, not 2")
    between = own[marks[0] + 1 : marks[1]]
    bench.record(
        "g0",
        "trace: raw_syscalls/sys_enter of the process, from the first mark (getppid) to the second",
        "\n".join(map(str, own[marks[0] : marks[1] + 1])),
    )
    found.check(
        "200 messages, posted and polled, make no system call",
        not between,
        f"{len(between)} system calls between the first post and the last poll: {[str(e) for e in between[:5]]}",
    )
    found.check(
        "nor an interrupt of a completion vector", result["interrupts"] == 0, f"{result['interrupts']} interrupts"
    )
    few, many = (_syscalls_of_pingpong(bench, rounds) for rounds in (20, 200))
    found.check(
        "ibv_rc_pingpong makes as many system calls for 200 messages as for 20",
        few == many,
        f"{few} for 20 messages, {many} for 200",
    )
    sleeping = [_syscalls_of_pingpong(bench, rounds, "-e") for rounds in (20, 200)]
    if sleeping[1] > sleeping[0]:
        found.note(
            f"that holds for a program that polls: one that sleeps until an event comes (ibv_rc_pingpong -e) made"
            f" {sleeping[0]} system calls for 20 messages and {sleeping[1]} for 200"
        )
    return found.verdict(
        f"200 messages made no system call and no completion interrupt; ibv_rc_pingpong made {few} system calls for 20"
        " messages and for 200"
    )


def _pingpong(bench: Bench, rounds: int, *more: str, before: Sequence[str] = ()) -> None:
    """A ping-pong of g0 with g1; `before` goes before the program in g0."""
    command = ["ibv_rc_pingpong", "-d", "mlx5_0", "-n", str(rounds), *more]
    other = bench.guest(1).popen(command)
    wait_listening(bench.guest(1), TCP_PORT, other.pid)
    bench.run([*before, *command, "g1"], timeout_s=120)
    other.wait(30)


def _syscalls_of_pingpong(bench: Bench, rounds: int, *more: str) -> int:
    """How many system calls a whole ping-pong of that many messages makes in g0."""
    only = {"raw_syscalls/sys_enter": 'comm == "ibv_rc_pingpong"'}
    with bench.trace(events=["raw_syscalls/sys_enter"], filters=only, quiet=True) as trace:
        _pingpong(bench, rounds, *more)
    count = len(trace.events)
    bench.record("g0", f"system calls of ibv_rc_pingpong -n {rounds} {' '.join(more)}", count)
    return count


@claim("A10", "the control path needs the kernel: QP numbers, connection set-up, registration")
def a10(bench: Bench) -> Verdict:
    """Who creates, connects and registers when a ping-pong runs: the stacks, from the system call on."""
    probes = {
        "creating a QP": Probe("create_qp", "ib_create_qp_user"),
        "moving a QP to another state": Probe("modify_qp", "ib_modify_qp_with_udata"),
        "registering memory": Probe("reg_mr", "mlx5_ib_reg_user_mr", "start=$arg2:x64 length=$arg3:u64"),
        "creating a CQ": Probe("create_cq", "mlx5_ib_create_cq"),
    }
    commands = Probe("command", "mlx5_cmd_exec", "opcode=+0($arg2):u16")

    def wanted(event: Event) -> bool:
        return _from_the_program(event) and (event.name != "command" or _opcode(event) == _CREATE_QP)

    with bench.trace([*probes.values(), commands], stacks=True, show=wanted) as trace:
        _pingpong(bench, 10)
    found = Findings()
    for what, probe in probes.items():
        calls = [event for event in trace.named(probe.name) if _from_the_program(event)]
        found.check(
            f"{what} happens in a system call of the program",
            calls and all(any("sys_ioctl" in name or "sys_write" in name for name in call.stack) for call in calls),
            f"{what}: {len(calls)} calls traced",
        )
    asked = {_opcode(event) for event in trace.named("command") if "ib_create_qp_user" in event.stack}
    found.check("the QP's number comes from a command of the driver to the card (CREATE_QP)", _CREATE_QP in asked)
    without = bench.run(
        "mv /dev/infiniband/uverbs0 /dev/infiniband/away; ibv_rc_pingpong -d mlx5_0 -n 1; status=$?;"
        " mv /dev/infiniband/away /dev/infiniband/uverbs0; exit $status",
        check=False,
    )
    found.check("without the device file a program gets nothing", without.returncode != 0)
    return found.verdict(
        "QP, CQ, memory region and state changes are made in system calls of ibv_rc_pingpong; the driver asks the"
        " card for the QP's number"
    )


def _from_the_program(event: Event) -> bool:
    return event.task.startswith("ibv_rc_pingpong")


def _opcode(event: Event) -> int:
    """Opcode of a command, from its first two bytes as a little-endian machine fetches them."""
    return int.from_bytes(int(event.arguments["opcode"]).to_bytes(2, "little"), "big")
