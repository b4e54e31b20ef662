"""Claims A07, A11 and A12: what is where in the kernel's tree and text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from acceptance.claims.bench import Bench
from acceptance.claims.framework import Findings, claim
from acceptance.claims.source import kernel_text, line_of
from acceptance.claims.verdict import Verdict

_FOLDERS: Final = {
    "core": ("ib_core", "ib_uverbs", "ib_umad", "ib_cm", "rdma_cm", "rdma_ucm"),
    "hw": ("mlx5_ib", "mlx4_ib", "ib_mthca"),
    "ulp": ("ib_ipoib", "ib_srp", "ib_iser", "ib_isert", "ib_srpt"),
    "sw": ("rdma_rxe", "siw", "rdmavt"),
}
#: What the second text calls the file -> what the claim says of it.
_ABSENT: Final = {
    "drivers/infiniband/core/ib_device.c": "drivers/infiniband/core/device.c",
    "drivers/infiniband/core/ib_verbs.c": "drivers/infiniband/core/verbs.c",
    "drivers/infiniband/core/ib_cm.c": "drivers/infiniband/core/cm.c",
    "drivers/infiniband/ulp/srp/srp_main.c": "drivers/infiniband/ulp/srp/ib_srp.c",
}
_VERBS_H: Final = "include/rdma/ib_verbs.h"
_DEVICE_C: Final = "drivers/infiniband/core/device.c"
#: Line numbers that the article gives: (file, what, line, how the line begins).
_CITED: Final = (
    (_VERBS_H, "ib_wc", 1032, r"struct ib_wc \{"),
    (_VERBS_H, "IB_SRQ_LIMIT", 1079, r"\s*IB_SRQ_LIMIT\s"),
    (_VERBS_H, "ib_qp_cap", 1108, r"struct ib_qp_cap \{"),
    (_VERBS_H, "ib_qp_type", 1128, r"enum ib_qp_type \{"),
    (_VERBS_H, "ib_qp_init_attr", 1190, r"struct ib_qp_init_attr \{"),
    (_VERBS_H, "ib_qp_state", 1285, r"enum ib_qp_state \{"),
    (_VERBS_H, "ib_wr_opcode", 1336, r"enum ib_wr_opcode \{"),
    (_VERBS_H, "ib_srq", 1643, r"struct ib_srq \{"),
    (_VERBS_H, "ib_qp", 1800, r"struct ib_qp \{"),
    (_VERBS_H, "ib_qp.qp_num", 1825, r"\s*u32\s+qp_num;"),
    (_VERBS_H, "ib_qp.qp_type", 1828, r"\s*enum ib_qp_type\s+qp_type;"),
    (_VERBS_H, "ib_mr", 1872, r"struct ib_mr \{"),
    (_VERBS_H, "ib_mr.lkey", 1875, r"\s*u32\s+lkey;"),
    (_VERBS_H, "ib_mr.rkey", 1876, r"\s*u32\s+rkey;"),
    (_VERBS_H, "ib_device", 2785, r"struct ib_device \{"),
    (_VERBS_H, "ib_client", 2895, r"struct ib_client \{"),
    (_VERBS_H, "ib_register_device", 2969, r"int ib_register_device\("),
    (_VERBS_H, "ib_modify_qp_is_ok", 3119, r"bool ib_modify_qp_is_ok\("),
    (_DEVICE_C, "ib_register_client", 1854, r"int ib_register_client\("),
    (_DEVICE_C, "ib_unregister_client", 1901, r"void ib_unregister_client\("),
)


@claim("A07", "core is drivers/infiniband/core, drivers in hw/, upper protocols in ulp/, software devices in sw/")
def a07(bench: Bench) -> Verdict:
    """Where the kernel package has the modules, and which of them the guest has loaded."""
    places = {name: _below_infiniband(path) for name, path in bench.kernel.modules.items()}
    places = {name: place for name, place in places.items() if place}
    if not any("/" in place for place in places.values()):
        return Verdict.not_observable("the kernel was given without the folders of its modules")
    lines = [f"{place:40} {name}" for name, place in sorted(places.items(), key=lambda item: item[1])]
    bench.record("host", f"modules below drivers/infiniband of {bench.kernel.release}", "\n".join(lines))
    bench.run("lsmod", show="^(ib_|rdma_|mlx5_ib|iw_)")
    found = Findings()
    for folder, names in _FOLDERS.items():
        built = [name for name in names if name in places]
        wrong = [f"{name} is in {places[name]}" for name in built if not places[name].startswith(folder + "/")]
        if built:
            found.check(f"{folder}/ holds {', '.join(built)}", not wrong, "; ".join(wrong))
        else:
            found.unseen(f"{folder}/", "this kernel has none of its modules")
    counts = Counter(place.split("/")[0] for place in places.values())
    return found.verdict(
        "the module tree has "
        + ", ".join(f"{folder}/ ({counts[folder]} modules)" for folder in _FOLDERS if counts[folder])
    )


def _below_infiniband(path: Path) -> str:
    """A module's path below drivers/infiniband; "" if it is elsewhere."""
    return path.as_posix().partition("/drivers/infiniband/")[2]


@claim(
    "A11",
    "ib_device.c, ib_verbs.c, ib_cm.c and srp_main.c do not exist in 6.19; device.c, verbs.c, cm.c and ib_srp.c do",
    needs=("no-guest",),
)
def a11(bench: Bench) -> Verdict:
    """The source package, if it may be fetched; without it, only what the names of modules tell."""
    found = Findings()
    root = kernel_text(bench.kernel.release, bench.cache, bench.progress, whole=True) if bench.source else None
    if root is None:
        why = "needs the kernel's source package (160 MB): run with --source"
        if bench.source:
            why = f"no source package is known for {bench.kernel.release}"
        bench.record("host", "module of ulp/srp", _below_infiniband(bench.kernel.modules.get("ib_srp", Path())))
        return Verdict.not_observable(why)
    for wrong, right in _ABSENT.items():
        found.check(f"{wrong} does not exist", not (root / wrong).exists(), f"{wrong} exists")
        found.check(f"{right} exists", (root / right).exists(), f"{right} does not exist")
    folders = sorted({str(Path(path).parent) for path in _ABSENT.values()})
    for folder in folders:
        names = " ".join(sorted(path.name for path in (root / folder).glob("*.c")))
        bench.record("source package", f"ls {folder}/*.c", names)
    return found.verdict()


@claim("A12", "the article's line numbers hold in 6.19", needs=("no-guest",))
def a12(bench: Bench) -> Verdict:
    """Each cited line, in the headers package of the kernel that the guests boot, and in its source if allowed."""
    release = bench.kernel.release
    root = kernel_text(release, bench.cache, bench.progress, whole=bench.source)
    if root is None:
        return Verdict.not_observable(f"no package with the headers or source of {release} is known")
    found = Findings()
    seen = []
    for file, what, line, pattern in _CITED:
        if not (root / file).exists():
            found.unseen(f"{what} is at {file}:{line}", "needs the source package: run with --source")
            continue
        text = (root / file).read_text()
        lines = line_of(text, pattern)
        found.check(f"{what} is at {file}:{line}", line in lines, f"{what} is at {file}:{lines or 'nowhere'}")
        seen.append(f"{file}:{line}: {text.splitlines()[line - 1]}")
    bench.record(f"{'source' if bench.source else 'headers'} package of {release}", "the cited lines", "\n".join(seen))
    return found.verdict(f"all {len(seen)} line numbers that were looked up hold in {release}")
