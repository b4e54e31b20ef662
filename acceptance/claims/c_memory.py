"""Claims C01, C02, C03, C07 and C08: regions, keys, rights, windows and protection domains."""

from __future__ import annotations

import json
from typing import Any, Final

from acceptance.claims.bench import Bench
from acceptance.claims.framework import Findings, claim
from acceptance.claims.trace import Probe
from acceptance.claims.verdict import Verdict

_PATTERN: Final = b"written by the other card"
_SWAP: Final = "modprobe brd rd_nr=1 rd_size=131072 && mkswap /dev/ram0 >/dev/null && swapon /dev/ram0"
#: The kernel's structure of a region, when all of it has been filled in.
_DEREGISTER: Final = Probe(
    "region",
    "ib_dereg_mr_user",
    "lkey=mr->lkey:x32 rkey=mr->rkey:x32 iova=mr->iova:x64 length=mr->length:u64 pd=mr->pd:x64",
)
_NO_SWAP: Final = "swapoff /dev/ram0; rmmod brd; rm -f /tmp/c01.*"


@claim("C01", "registration pins pages and translates them")
def c01(bench: Bench) -> Verdict:
    """VmPin, page frames under pressure, and the physical memory behind a region after a WRITE from afar."""
    found = Findings()
    physical = b""

    def look() -> None:
        nonlocal physical
        bench.wait_for("[ -s /tmp/c01.json ]", timeout_s=90)
        page = json.loads(bench.read("/tmp/c01.json"))["page"]
        if page.startswith("frame"):
            physical = bench.physical_memory(int(page.split()[1]) * 4096, 64)
        bench.run("touch /tmp/c01.go", quiet=True)

    bench.run(f"{_NO_SWAP} 2>/dev/null; {_SWAP}", quiet=True)
    bench.run("cat /proc/swaps")
    try:
        owner, writer = bench.both("claims/c01.py", "claims/c01.py", timeout_s=120, while_running=look)
    finally:
        bench.run(_NO_SWAP, check=False, quiet=True)
    rise, fall = owner["pinned"] - owner["before"], owner["pinned"] - owner["released"]
    size_kib = owner["pages"] * 4
    found.check("VmPin rises by the region's size", rise == size_kib, f"VmPin rose by {rise} KiB, not {size_kib}")
    found.check("VmPin falls with deregistration", fall == size_kib, f"VmPin fell by {fall} KiB, not {size_kib}")
    found.check(
        "under pressure every page of the region keeps its frame",
        owner["stays"] == owner["pages"],
        f"{owner['pages'] - owner['stays']} of {owner['pages']} pages lost their frame",
    )
    if owner["plain_out"] == 0:
        found.unseen("pages that are not registered are moved", "the kernel paged nothing out")
    else:
        found.check("the same pressure pages out memory that is not registered", owner["plain_out"] > 0)
        found.check("and the region's own, once it is deregistered", owner["out_afterwards"] > 0)
    found.check(
        "the card writes to the very frame that pagemap names",
        physical.startswith(_PATTERN) and writer["write"] == "SUCCESS",
        f"physical memory holds {physical[:32]!r}",
    )
    found.check("the process sees it at the address that it registered", owner["arrived"].encode() == _PATTERN)
    return found.verdict(
        f"VmPin rose and fell by {size_kib} KiB; all {owner['pages']} pages kept their frames while"
        f" {owner['plain_out']} of as many unregistered ones were paged out; a WRITE to the region's"
        " address went to the page's frame"
    )


@claim("C02", "a region has lkey, rkey, iova, length, pd; a wrong key or a missing right fails and the QP goes to ERR")
def c02(bench: Bench) -> Verdict:
    """Wrong lkey, wrong rkey, missing right, beyond the end: status at the requester, states of both QPs."""
    with bench.trace([_DEREGISTER], quiet=True) as trace:
        responder, requester = bench.both("claims/c02.py", "claims/c02.py", timeout_s=120)
    results: dict[str, dict[str, str]] = requester["results"]
    found = Findings()
    region: dict[str, int] = responder["region"]
    kept = [event for event in trace.named("region") if int(event.arguments["lkey"], 16) == region["lkey"]]
    bench.record("g0", f"trace: {_DEREGISTER.definition}", "\n".join(map(str, kept)))
    fields = {name: int(value, 0) for name, value in kept[0].arguments.items()} if kept else {}
    for name, value in region.items():
        same = fields.get(name) == value
        found.check(f"the kernel's region has {name}, as the process knows it", same, f"{name} is {fields.get(name)}")
    found.check("and a pd", fields.get("pd"), "it has no pd")
    for case in ("write", "read"):
        found.check(f"{case} with right keys works", results[case]["status"] == "SUCCESS", _told(results, case))
    for case in ("write, wrong lkey", "read, wrong lkey"):
        local = results[case]["status"].startswith("LOC_")
        found.check(f"{case}: fails locally", local, _told(results, case))
        found.check(
            f"{case}: the requester's QP goes to ERR", results[case]["requester"] == "ERR", _told(results, case)
        )
        found.check(f"{case}: the peer notices nothing", results[case]["responder"] == "RTS", _told(results, case))
    for case in results:
        if case in ("write", "read") or "lkey" in case:
            continue
        found.check(f"{case}: fails at the responder", results[case]["status"].startswith("REM_"), _told(results, case))
        both = results[case]["requester"] == results[case]["responder"] == "ERR"
        found.check(f"{case}: both QPs go to ERR", both, _told(results, case))
    statuses = ", ".join(f"{case}: {result['status']}" for case, result in results.items())
    return found.verdict(f"the kernel's region has all five; {statuses}")


def _told(results: dict[str, dict[str, str]], case: str) -> str:
    result = results[case]
    return f"{case}: {result['status']}, requester {result['requester']}, responder {result['responder']}"


@claim("C03", "an unregistered region cannot be used; deregistering makes the old key fail")
def c03(bench: Bench) -> Verdict:
    """WRITEs from and to memory that is registered, never was, and is no longer."""
    _, requester = bench.both("claims/c03.py", "claims/c03.py", timeout_s=120)
    found = Findings()
    local: dict[str, str] = requester["local"]
    remote: dict[str, str] = requester["remote"]
    for where, results in (("as source", local), ("as target", remote)):
        found.check(f"registered memory works {where}", results["registered"] == "SUCCESS", results["registered"])
        for case in ("never registered", "deregistered"):
            found.check(
                f"{case} memory fails {where}",
                results[case] not in ("SUCCESS", "nothing"),
                f"{case} memory {where}: {results[case]}",
            )
    return found.verdict(
        f"never registered memory: {local['never registered']} as source, {remote['never registered']} as target;"
        f" deregistered: {local['deregistered']} and {remote['deregistered']}"
    )


@claim(
    "C07", "a memory window is bound by a work request, gets a new rkey, which dies on unbind while the region stays"
)
def c07(bench: Bench) -> Verdict:
    """Windows of both types: bind, WRITE through it, beyond it, unbind, WRITE by the dead key."""
    owner, writer = bench.both("claims/c07.py", "claims/c07.py", timeout_s=120)
    found = Findings()
    for kind in ("1", "2"):
        ours: dict[str, Any] = owner["results"][kind]
        theirs: dict[str, str] = writer["results"][kind]
        bind = ours["bind"]
        name = f"type {kind}"
        found.check(
            f"{name}: bound by a work request that completes",
            (bind["status"], bind["opcode"]) == ("SUCCESS", "BIND_MW"),
            f"{name}: the bind completed with {bind['status']}",
        )
        keys = {ours["rkey before"], ours["region's rkey"]}
        found.check(
            f"{name}: binding gives a new rkey", ours["rkey"] not in keys, f"{name}: rkey {ours['rkey']:#x} again"
        )
        inside = theirs["inside"] == "SUCCESS" and ours["arrived"]
        found.check(f"{name}: the peer can write through it", inside, f"{name}: {theirs['inside']}")
        found.check(
            f"{name}: but not beyond it", theirs["beyond"].startswith("REM_"), f"{name}, beyond: {theirs['beyond']}"
        )
        again = theirs["inside again"]
        found.check(f"{name}: bound again it works again", again == "SUCCESS", f"{name}, bound again: {again}")
        dead = theirs["after unbind"]
        found.check(f"{name}: after unbinding the rkey is dead", dead.startswith("REM_"), f"{name}, unbound: {dead}")
        stays = ours["region afterwards"]
        found.check(f"{name}: the region stays usable", stays == "SUCCESS", f"{name}: the region afterwards: {stays}")
    return found.verdict(
        "types 1 and 2: the bind completes as a work request, gives a new rkey that reaches the window only, and that"
        " fails after the unbind; the region stays usable"
    )


@claim("C08", "a PD isolates: a QP cannot use a region of another PD")
def c08(bench: Bench) -> Verdict:
    """One process, two protection domains: each way to use a region of the wrong one."""
    _, requester = bench.both("claims/c08.py", "claims/c08.py", timeout_s=120)
    results: dict[str, str] = requester["results"]
    found = Findings()
    for case, status in results.items():
        if "all in one PD" in case:
            found.check(f"{case}: works", status == "SUCCESS", f"{case}: {status}")
        else:
            found.check(f"{case}: fails", status not in ("SUCCESS", "nothing"), f"{case}: {status}")
    return found.verdict("; ".join(f"{case}: {status}" for case, status in results.items()))
