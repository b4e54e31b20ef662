"""The page of all counters, from their declarations: `python -m tests.counters_page docs/counters.md`."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from firmware.model.counters import Count, CountOf, QCount, SmpCount, SmpCountOf
from vhca.chip.counters import BoardCount
from vhca.counting import Family, Name
from vhca.fabric.counters import CableDrop, Drop, PortCount
from vhca.ibsim.counters import ToolCount
from vhca.management.counters import PerfCount, PerfCountOf
from vhca.subnet.counters import DirectoryCount, DirectoryCountOf, ManagerCount
from vhca.trunk.counters import TrunkCount
from vhca.vfio_user.counters import ServerCount

HEAD = """\
# Counters

This page is generated from the declarations; change those and run `make formats`.

A counter appears once it has counted something. Names with braces stand for one counter for each number or name; where
only so many are told apart, all others are counted together, under the name without the number.
"""


@dataclass(frozen=True)
class Section:
    """Counters of one component: where they are shown, and with which prefix."""

    title: str
    where: str
    prefix: str
    names: type[Name]
    families: type[Family] | None = None


CARD = "`Card.counters()`: `lab.hcas[0].counters()`, the report of a failed test"
FABRIC = "`LiveFabric.counters()`, `vhca fabric counters`"
SECTIONS = (
    Section("The firmware of a card", CARD, "", Count, CountOf),
    Section("Its subnet management agent", CARD, "", SmpCount, SmpCountOf),
    Section("Its performance agent", CARD, "", PerfCount, PerfCountOf),
    Section("The board", CARD, "", BoardCount),
    Section("The socket", CARD + "; `vhca.vfio_user.Server.counters`, without prefix", "vfio_", ServerCount),
    Section(
        "Counter sets of queue pairs",
        "QUERY_Q_COUNTER; in a guest `/sys/class/infiniband/mlx5_0/ports/1/hw_counters`",
        "",
        QCount,
    ),
    Section("The port of a card on the switch", FABRIC, "CARD.", PortCount),
    Section("Packets dropped at the port of a card", FABRIC, "CARD.dropped.", Drop),
    Section("Packets dropped by the switch, all ports", FABRIC, "switch.dropped.", Drop),
    Section("Packets lost on the cable of a card", FABRIC, "CARD.dropped.cable_", CableDrop),
    Section("A trunk to another rack, at its end here", FABRIC, "trunk.NAME.", TrunkCount),
    Section("Tools of the host", FABRIC, "tools.", ToolCount),
    Section("The subnet manager", FABRIC, "sm.", ManagerCount),
    Section("Subnet administration", FABRIC, "sa.", DirectoryCount, DirectoryCountOf),
)


def render() -> str:
    """The whole page."""
    seen: dict[type[Name], str] = {}
    lines = [HEAD]
    for section in SECTIONS:
        lines += [f"## {section.title}", "", f"Shown by {section.where}.", ""]
        if section.names in seen:
            prefix = section.prefix
            lines += [f"The same reasons as above, as `{prefix}{next(iter(section.names)).value}` and so on.", ""]
            continue
        seen[section.names] = section.title
        lines += ["| Counter | Meaning |", "|---|---|"]
        lines += [f"| `{section.prefix}{name.value}` | {name.sentence} |" for name in section.names]
        lines += [f"| `{_pattern(section.prefix, f)}` | {f.sentence}{_bound(f)} |" for f in section.families or ()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _pattern(prefix: str, family: Family) -> str:
    example = (
        "NAME" if family.codes is not None else "0x" + "N" * (len(family.value.format(1)) - len(_bare(family)) - 2)
    )
    return prefix + family.value[: family.value.index("{")] + "{" + example + "}" + family.value.split("}", 1)[1]


def _bare(family: Family) -> str:
    return family.value[: family.value.index("{")] + family.value.split("}", 1)[1]


def _bound(family: Family) -> str:
    return "" if family.codes is not None or family.most == 256 else f" {family.most} are told apart."


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or check it; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/counters.md.")
    parser.add_argument("page", type=Path, help="usually docs/counters.md")
    parser.add_argument("--check", action="store_true", help="only tell whether the page is up to date")
    options = parser.parse_args(arguments)
    page: Path = options.page
    if not options.check:
        page.write_text(render())
        return 0
    if page.is_file() and page.read_text() == render():
        return 0
    print(f"{page} is not what the declarations say: run `make formats`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
