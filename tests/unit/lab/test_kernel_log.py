"""What is a complaint in a kernel's log, what it is called, and where it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vhca.lab.kernel_log import REPORT_MAX_LINES, kernel_log_trouble, panic_of, reports

_OOPS = """\
[   12.100000] BUG: unable to handle page fault for address: ffffffffffffffea
[   12.100010] #PF: supervisor read access in kernel mode
[   12.100020] Oops: Oops: 0000 [#1] SMP
[   12.100030] CPU: 0 UID: 0 PID: 160 Comm: cat Not tainted 6.19.14 #1
[   12.100040] RIP: 0010:mlx5_fc_query+0x1e/0x40
[   12.100050] ---[ end trace 0000000000000000 ]---
[   12.100060] RIP: 0010:mlx5_fc_query+0x1e/0x40
"""
_KASAN = """\
<3>[    9.100000] ==================================================================
<3>[    9.100001] BUG: KASAN: slab-use-after-free in mlx5_ib_x+0x1f0/0x2c0
<3>[    9.100002] Read of size 8 at addr ffff888003a1c010 by task insmod/171
<3>[    9.100003] The buggy address belongs to the object at ffff888003a1c000
<3>[    9.100004] ==================================================================
<4>[    9.100005] Disabling lock debugging due to kernel taint
"""
_OLD_WARN = """\
[    7.000000] ------------[ cut here ]------------
[    7.000001] refcount_t: underflow; use-after-free.
[    7.000002] WARNING: CPU: 1 PID: 87 at lib/refcount.c:28 refcount_warn_saturate+0xf7/0x150
[    7.000003] Modules linked in: mlx5_ib mlx5_core
[    7.000004] ---[ end trace 0000000000000000 ]---
"""
_NEW_WARN = """\
[    7.000000] ------------[ cut here ]------------
[    7.000001] qp is still in use
[    7.000002] WARNING: drivers/infiniband/core/verbs.c:2100 at ib_destroy_qp_user+0x8/0x9, CPU#0: rmmod/88
[    7.000003] Modules linked in: mlx5_ib mlx5_core
[    7.000004] ---[ end trace 0000000000000000 ]---
"""
_DMA = """\
[    5.000000] ------------[ cut here ]------------
[    5.000001] DMA-API: mlx5_core 0000:01:00.0: device driver frees DMA memory with different size
[    5.000002] WARNING: CPU: 0 PID: 9 at kernel/dma/debug.c:1022 check_unmap+0x1/0x2
[    5.000003] ---[ end trace 0000000000000000 ]---
"""
_LOCKDEP = """\
[    3.000000] ======================================================
[    3.000001] WARNING: possible circular locking dependency detected
[    3.000002] 6.19.14 Not tainted
[    3.000003] ------------------------------------------------------
[    3.000004] modprobe/77 is trying to acquire lock:
[    3.000005]   <TASK>
"""
_HUNG = """\
[  242.000000] INFO: task rmmod:99 blocked for more than 120 seconds.
[  242.000001]       Not tainted 6.19.14
[  242.000002] "echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.
[  242.000003] task:rmmod state:D stack:0 pid:99
[  250.000000] mlx5_core 0000:01:00.0: something later
"""


@pytest.mark.parametrize(
    ("log", "kind", "headline", "count"),
    [
        (_OOPS, "BUG", "BUG: unable to handle page fault for address: ffffffffffffffea", 6),
        (_KASAN, "sanitizer", "BUG: KASAN: slab-use-after-free in mlx5_ib_x+0x1f0/0x2c0", 5),
        (
            _OLD_WARN,
            "WARNING",
            "WARNING: CPU: 1 PID: 87 at lib/refcount.c:28 refcount_warn_saturate+0xf7/0x150:"
            " refcount_t: underflow; use-after-free.",
            5,
        ),
        (
            _NEW_WARN,
            "WARNING",
            "WARNING: drivers/infiniband/core/verbs.c:2100 at ib_destroy_qp_user+0x8/0x9, CPU#0: rmmod/88:"
            " qp is still in use",
            5,
        ),
        (
            _DMA,
            "DMA-API",
            "DMA-API: mlx5_core 0000:01:00.0: device driver frees DMA memory with different size",
            4,
        ),
        (_LOCKDEP, "lockdep", "WARNING: possible circular locking dependency detected", 6),
        (_HUNG, "hung task", "INFO: task rmmod:99 blocked for more than 120 seconds.", 4),
    ],
)
def test_a_report_is_found_named_and_whole(log: str, kind: str, headline: str, count: int) -> None:
    around = "[    1.000000] before\n" + log.lstrip() + "[  300.000000] usb 1-1: after\n"
    (report,) = reports(around)
    assert (report.kind, report.headline, len(report.lines)) == (kind, headline, count)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("BUG: kernel NULL pointer dereference, address: 0000000000000008", "BUG"),
        ("BUG: sleeping function called from invalid context at kernel/locking/mutex.c:580", "BUG"),
        ("BUG: KFENCE: use-after-free read in x+0x1/0x2", "sanitizer"),
        ("UBSAN: array-index-out-of-bounds in drivers/x.c:12:3", "sanitizer"),
        ("kernel BUG at mm/slub.c:553!", "BUG"),
        ("Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP", "oops"),
        ("general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP", "oops"),
        ("WARNING: inconsistent lock state", "lockdep"),
        ("WARNING: suspicious RCU usage", "lockdep"),
        ("WARNING: possible recursive locking detected", "lockdep"),
        ("WARNING: SOFTIRQ-safe -> SOFTIRQ-unsafe lock order detected", "lockdep"),
        ("watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [cat:12]", "lockup"),
        ("rcu: INFO: rcu_preempt self-detected stall on CPU", "stall"),
        ("rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", "stall"),
        ("INFO: task a b:1 blocked for more than 10 seconds.", "hung task"),
        ("Kernel panic - not syncing: Fatal exception", "panic"),
        ("kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)", "leak"),
        # what reads like one and is none
        ("traps: a.out[12] general protection fault ip:1 sp:2 error:0 in a.out", ""),
        ("a.out[12]: segfault at 0 ip 1 sp 2 error 4 in a.out", ""),
        ("DMA-API: preallocated 65536 debug entries", ""),
        ("DMA-API: debugging enabled by kernel config", ""),
        ("hello: loading out-of-tree module taints kernel.", ""),
        ("Spectre V2 : WARNING: Unprivileged eBPF is enabled", ""),
        ("INFO: lockdep is turned off.", ""),
        ("mlx5_core 0000:01:00.0: debug: no BUG: here", ""),
        ("Debug: x", ""),
    ],
)
@pytest.mark.parametrize("before", ["", "[    1.234567] ", "<4>[    1.234567] ", "[    1.234567][  T123] "])
def test_kinds(line: str, kind: str, before: str) -> None:
    assert [report.kind for report in reports(before + line + "\r\n")] == ([kind] if kind else [])


def test_what_a_program_wrote_is_no_word_of_the_kernel() -> None:
    """Programs' lines have facility 1 at least; only the log that has priorities can tell."""
    assert reports("<12>[    9.666731] WARNING: mine\n<8>[    9.7] BUG: mine\n<30>[    9.8] Oops: mine") == []
    assert len(reports("<4>[    9.666731] WARNING: its own\n")) == 1


def test_one_after_the_other() -> None:
    log = _LOCKDEP + _OLD_WARN + _KASAN + _OOPS
    assert [r.kind for r in reports(log)] == ["lockdep", "WARNING", "sanitizer", "BUG"]
    second = _OOPS.replace("12.1", "12.2")
    assert [r.kind for r in reports(_OOPS + second)] == ["BUG", "BUG"]


def test_a_report_without_end_is_cut() -> None:
    (report,) = reports("[    1.000000] BUG: x\n" + "[    1.000001]  word\n" * 1000)
    assert len(report.lines) == REPORT_MAX_LINES
    assert len(reports("BUG: " + "x" * 100_000)[0].headline) <= 300


def test_a_panic_has_what_led_to_it() -> None:
    log = _OOPS + (
        "[   12.200000] Kernel panic - not syncing: Fatal exception\n"
        "[   12.200001] CPU: 0 PID: 160 Comm: cat\n"
        "[   12.200002] Kernel Offset: disabled\n"
    )
    panic = panic_of(log)
    assert panic is not None
    assert (panic.headline, panic.ended) == ("Kernel panic - not syncing: Fatal exception", False)
    assert panic.trace.startswith("BUG: unable to handle page fault")
    assert panic.trace.endswith("Kernel Offset: disabled")
    ended = panic_of(log + "[   12.200003] ---[ end Kernel panic - not syncing: Fatal exception ]---\nmore\n")
    assert ended is not None
    assert ended.ended
    assert "more" not in ended.trace
    assert panic_of(_OOPS) is None
    assert panic_of("[    1.0] a program: Kernel panic - not syncing\n") is None


@given(st.text(alphabet="<>[]0123456789. =-\nBUG:WARNINGOops#cuthere", max_size=400))
def test_any_text_gives_an_answer(text: str) -> None:
    found = reports(text)
    assert sum(len(report.lines) for report in found) <= text.count("\n") + 1
    panic_of(text)


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: CPU: 0 PID: 1 at x.c:1 f+0x1/0x2",
        "BUG: kernel NULL pointer dereference",
        "mlx5_core 0000:01:00.0: poll_health:801:(pid 0): device's health compromised",
        "mlx5_core 0000:01:00.0: wait_func:1191:(pid 1): CREATE_QP(0x500) timeout. Will cause a leak of a command",
        "mlx5_core 0000:01:00.0: mlx5_cmd_out_err:838: CREATE_QP(0x500) op_mod(0x0) failed, status bad parameter",
    ],
)
def test_lines_that_must_not_be_in_a_kernel_log(line: str) -> None:
    assert kernel_log_trouble(f"fine\n[ 1.0] {line}\n") == [f"[ 1.0] {line}"]


@pytest.mark.parametrize(
    "line",
    [
        "mlx5_core 0000:01:00.0: firmware version: 20.99.1",
        "clocksource: timekeeping watchdog on CPU0",
        "mlx5_core 0000:01:00.0: E-Switch: not supported",
        "mlx5_core 0000:01:00.0: mlx5_pci_vsc_init:66:(pid 1): Failed to get valid vendor specific ID",
    ],
)
def test_lines_that_may_be_in_a_kernel_log(line: str) -> None:
    assert kernel_log_trouble(line) == []
