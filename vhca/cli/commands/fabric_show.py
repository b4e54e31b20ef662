"""`vhca fabric show`: a running fabric, or one that a file describes, in words and as a picture."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vhca.cli import running
from vhca.cli.options import add_topology_options

if TYPE_CHECKING:
    from vhca.fabric.chart import Chart


def add_arguments(orders: Any) -> argparse.ArgumentParser:
    """Describe the order and its options to the parser of `vhca fabric`."""
    show: argparse.ArgumentParser = orders.add_parser(
        "show",
        help="list the cards (cable, link, port, LID, faults), count the cables; draw it",
        description="Show a running fabric: its cards, and with a topology its switches and cables. With --topology:"
        " what the file describes, as our subnet manager would bring it up with all hosts simulated.",
    )
    add_topology_options(show)
    show.add_argument("--svg", type=Path, metavar="FILE", help="draw switches, cables, states, LIDs and errors, too")
    show.add_argument(
        "--route", nargs=2, action="append", default=[], metavar=("FROM", "TO"),
        help="by which ports packets go from one node to another; may be given again",
    )  # fmt: skip
    show.set_defaults(order=_show)
    return show


def _show(options: argparse.Namespace) -> None:
    from vhca.lab.errors import LabError

    if options.topology is not None:
        found, chart, ways = _as_it_would_be(options)
    else:
        found, chart = running.order(options.rack, "show"), None
        ways = [running.order(options.rack, "route", source=one, target=other) for one, other in options.route]
        if options.svg is not None or not options.json:
            chart = _chart(options.rack)
    if options.json:
        print(json.dumps(found | ({"routes": ways} if options.route else {}), indent=2))
    else:
        print(report(found))
        if chart is not None and (options.topology is not None or len(chart.nodes) > 1 + len(found["ports"])):
            print("\n".join(summary(chart)))
        for (_, target), way in zip(options.route, ways, strict=True):
            print(" > ".join([*way, target]))
    if options.svg is not None and chart is not None:
        from vhca.fabric.picture import draw

        try:
            options.svg.expanduser().write_text(draw(chart, ways), "utf-8")
        except OSError as error:
            raise LabError(f"{options.svg}: {error.strerror}", "name a file that can be written") from error


def _chart(rack: str | None) -> Chart:
    """The chart of a running fabric, page by page."""
    from vhca.fabric.chart import Chart

    whole = Chart()
    start = 0
    while True:
        page = Chart.from_json(running.order(rack, "chart", start=start))
        whole.nodes += page.nodes
        whole.cables += page.cables
        if not page.more:
            return whole
        start += max(len(page.nodes), len(page.cables))


def _as_it_would_be(options: argparse.Namespace) -> tuple[dict[str, Any], Chart, list[list[str]]]:
    """A described fabric after our subnet manager's first sweep, in no time of the clock."""
    from vhca.fabric.chart import of_fabric, route
    from vhca.fabric.fabric import Fabric
    from vhca.sim.clock import VirtualClock
    from vhca.sim.loop import Loop

    loop = Loop(VirtualClock(1))
    try:
        fabric = Fabric(loop.call_soon, loop.clock, topology=options.topology, routing=options.routing)
        while not fabric.manager.settled:
            loop.run_once(0)
        chart = of_fabric(fabric)
        return {"ports": []}, chart, [route(fabric, one, other) for one, other in options.route]
    finally:
        loop.close()


def summary(chart: Chart) -> list[str]:
    """How many nodes and cables there are, and which cables are not as they should be."""
    from vhca.lab.table import aligned

    kinds = Counter(node.kind for node in chart.nodes)
    states = Counter(cable.state for cable in chart.cables)
    told = ", ".join(f"{count} {state or 'planned'}" for state, count in sorted(states.items()))
    lines = [f"{kinds['switch']} switches, {kinds['host']} hosts, {len(chart.cables)} cables: {told}"]
    odd = [
        (cable.a, cable.b, cable.link, cable.state, str(cable.errors))
        for cable in chart.cables
        if cable.state not in ("Active", "") or cable.errors
    ]
    return lines + (aligned(("from", "to", "link", "state", "errors"), odd) if odd else [])


def report(found: dict[str, Any]) -> str:
    """What `vhca fabric show` prints of the answer to the order "show"."""
    from vhca.lab.errors import printable
    from vhca.lab.table import aligned

    if "pid" not in found:
        return "a fabric of this description, brought up:"
    header = ("card", "cable", "link", "port state", "LID", "fault rules", "packets hit")
    rows = [
        (
            port["name"],
            "plugged" if port["plugged"] else "pulled",
            "up" if port["up"] else "down",
            port["state"],
            str(port["lid"]) if port["lid"] else "-",
            str(port["rules"]),
            str(port["hits"]),
        )
        for port in found["ports"]
    ]
    lines = [printable(f"rack of process {found['pid']} in {found['directory']}"), *aligned(header, rows)]
    if managers := found["managers"]:
        lines += ["", *_managers(managers)]
    if changed := found["cables"]:
        header = ("cable", "ends", "cable is", "link", "fault rules", "packets hit", "line")
        rows = [
            (
                cable["name"],
                " - ".join(cable["ends"]),
                "pulled" if not cable["plugged"] else "disabled" if cable["disabled"] else "plugged",
                "up" if cable["up"] else "down",
                str(cable["rules"]),
                str(cable["hits"]),
                cable["line"] or "-",
            )
            for cable in changed
        ]
        lines += ["", *aligned(header, rows)]
    if capture := found["capture"]:
        lines.append(
            printable(f"capture to {capture['file']}: {capture['packets']} packets {capture['trouble']}".rstrip())
        )
    return "\n".join(lines)


def _managers(managers: list[dict[str, Any]]) -> list[str]:
    """Who manages the subnet, or would: a table."""
    from vhca.lab.table import aligned

    header = ("subnet manager", "port GUID", "priority", "state")
    rows = [
        (
            f"{each['name']} (ours)" if each["inside"] else each["name"],
            f"{each['guid']:#018x}",
            str(each["priority"]),
            each["state"],
        )
        for each in managers
    ]
    return aligned(header, rows)
