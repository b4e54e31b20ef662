"""A picture of a fabric as SVG: switches in rows by their distance from hosts, or in a circle; colours for states.

Where there are many hosts each switch has a box that says how many. Pointing at a cable or node shows what is known.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from vhca.fabric.chart import PLANNED, Chart, ChartCable, ChartNode

MOST_HOSTS: Final = 160
"""Drawn one by one."""
_BOX: Final = (64, 22)
_GAP: Final = 12
_ROW: Final = 110
_MARGIN: Final = 40

_STYLE: Final = """\
svg{background:#fff;font:11px sans-serif}
rect{stroke:#555;fill:#f4f4f4}.switch rect{fill:#dde7f5}.card rect{fill:#d8f0d2;stroke:#2a7a2a}
text{text-anchor:middle;dominant-baseline:central}.note{fill:#777;font-size:9px}
line{stroke:#999;stroke-width:1.2}.active{stroke:#4a9a4a}.training{stroke:#d99a00}
.down{stroke:#d02020;stroke-dasharray:4 3}
.errors{stroke:#b0208f}.route{stroke:#1060d0;stroke-width:3.5;stroke-opacity:.7}"""

_Point = tuple[float, float]


def draw(chart: Chart, ways: Sequence[Sequence[str]] = ()) -> str:
    """The picture; `ways` are shown, too, each as the ports of departure that :func:`vhca.fabric.chart.route` gives."""
    chart = _gathered(chart)
    places, width, height = _laid_out(chart)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
        f' height="{height:.0f}">',
        f"<style>{_STYLE}</style>",
    ]
    bundles: dict[tuple[str, str], list[ChartCable]] = defaultdict(list)
    for cable in chart.cables:
        bundles[_node(cable.a), _node(cable.b)].append(cable)
    for (one, other), cables in bundles.items():
        if one in places and other in places:
            out.append(_line(places[one], places[other], _class(cables), _told(cables)))
    out += _routes(chart, places, ways)
    out += [_box(node, *places[node.name]) for node in chart.nodes if node.name in places]
    return "\n".join([*out, "</svg>", ""])


def _gathered(chart: Chart) -> Chart:
    """The chart, with one box for all simulated hosts of a switch if there are many."""
    if sum(node.kind == "host" for node in chart.nodes) <= MOST_HOSTS:
        return chart
    kept = {node.name for node in chart.nodes if node.kind == "switch" or node.card}
    hosts: Counter[tuple[str, str]] = Counter()
    cables = []
    for cable in chart.cables:
        one, other = _node(cable.a), _node(cable.b)
        if one in kept and other in kept:
            cables.append(cable)
        else:
            hosts[one if one in kept else other, "" if cable.state in ("Active", PLANNED) else cable.state] += 1
    nodes = [node for node in chart.nodes if node.name in kept]
    for (switch, state), count in hosts.items():
        what = f"{count} host{'s' * (count > 1)}"
        name = f"{switch}: {what}{f' {state}' if state else ''}"
        nodes.append(ChartNode(name, "host", count, 0))
        cables.append(ChartCable(f"{switch}/0", f"{name}/0", "", state or "Active"))
    return Chart(nodes, cables)


def _node(end: str) -> str:
    return end.rpartition("/")[0]


def _laid_out(chart: Chart) -> tuple[dict[str, _Point], float, float]:
    """Where each node is, and how large the picture is."""
    near: dict[str, list[str]] = defaultdict(list)
    for cable in chart.cables:
        near[_node(cable.a)].append(_node(cable.b))
        near[_node(cable.b)].append(_node(cable.a))
    kinds = {node.name: node.kind for node in chart.nodes}
    switches = [name for name, kind in kinds.items() if kind == "switch"]
    hosts_of = {
        name: list(dict.fromkeys(there for there in near[name] if kinds.get(there) == "host")) for name in switches
    }
    if all(hosts_of.values()) and len(switches) > 1:
        return _in_circle(switches, hosts_of)
    return _in_rows(switches, hosts_of, near)


def _in_rows(
    switches: Sequence[str], hosts_of: Mapping[str, Sequence[str]], near: Mapping[str, Sequence[str]]
) -> tuple[dict[str, _Point], float, float]:
    level = {name: 0 for name in switches if hosts_of[name]} or {switches[0]: 0}
    front = list(level)
    while front:
        onward = []
        for name in front:
            for there in near[name]:
                if there in hosts_of and there not in level:
                    level[there] = level[name] + 1
                    onward.append(there)
        front = onward
    rows: dict[int, list[str]] = defaultdict(list)
    for name in switches:
        rows[level.get(name, 0)].append(name)
    step = _BOX[0] + _GAP
    # A leaf is as wide as its hosts.
    widths = {name: max(1, len(hosts_of[name])) * step for name in rows[0]}
    width = max(sum(widths.values()), max(len(row) for row in rows.values()) * step) + 2 * _MARGIN
    top = max(rows)
    places: dict[str, _Point] = {}
    for number, row in rows.items():
        y = _MARGIN + (top - number) * _ROW
        room = [width / len(row) if number else widths[name] * width / sum(widths.values()) for name in row]
        x = 0.0
        for name, wide in zip(row, room, strict=True):
            places[name] = (x + wide / 2, y)
            hosts = hosts_of[name] if number == 0 else ()
            for index, host in enumerate(hosts):
                places[host] = (x + wide * (index + 0.5) / len(hosts), y + _ROW * (0.8 + 0.25 * (index % 2)))
            x += wide
    return places, width, (top + 1.4) * _ROW + 2 * _MARGIN


def _in_circle(
    switches: Sequence[str], hosts_of: Mapping[str, Sequence[str]]
) -> tuple[dict[str, _Point], float, float]:
    most = max(len(hosts) for hosts in hosts_of.values())
    inner = max(130.0, len(switches) * (_BOX[0] + _GAP) / math.tau)
    outer = max(inner + _ROW, len(switches) * most * (_BOX[0] + _GAP) / math.tau)
    middle = outer + _BOX[0] + _MARGIN
    places: dict[str, _Point] = {}
    for number, name in enumerate(switches):
        share = math.tau / len(switches)
        angle = number * share
        places[name] = (middle + inner * math.sin(angle), middle - inner * math.cos(angle))
        hosts = hosts_of[name]
        for index, host in enumerate(hosts):
            at = angle + share * ((index + 0.5) / len(hosts) - 0.5)
            places[host] = (middle + outer * math.sin(at), middle - outer * math.cos(at))
    return places, 2 * middle, 2 * middle


def _class(cables: Sequence[ChartCable]) -> str:
    states = {cable.state for cable in cables}
    if "Down" in states:
        return "down"
    if any(cable.errors for cable in cables):
        return "errors"
    if states <= {"Active"}:
        return "active"
    return "planned" if states <= {PLANNED} else "training"


def _told(cables: Sequence[ChartCable]) -> str:
    return "\n".join(
        f"{cable.a} - {cable.b} {cable.link} {cable.state}{f', {cable.errors} errors' if cable.errors else ''}".strip()
        for cable in cables
    )


def _line(one: _Point, other: _Point, kind: str, told: str) -> str:
    (x1, y1), (x2, y2) = one, other
    title = f"<title>{escape(told)}</title>" if told else ""
    return f'<line class="{kind}" x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}">{title}</line>'


def _box(node: ChartNode, x: float, y: float) -> str:
    wide, high = _BOX
    kind = f"{node.kind} card" if node.card else node.kind
    name = node.name.rpartition(": ")[2] if node.kind == "host" and not node.guid and not node.card else node.name
    shown = name if len(name) <= 11 else name[:10] + "…"
    told = f"{node.name}{f' (card {node.card})' if node.card else ''}\nGUID {node.guid:#018x}\nLID {node.lid or '-'}"
    note = f'<text class="note" x="{x:.0f}" y="{y + high * 0.9:.0f}">LID {node.lid}</text>' if node.lid else ""
    return (
        f'<g class="{kind}"><title>{escape(told)}</title><rect x="{x - wide / 2:.0f}" y="{y - high / 2:.0f}"'
        f' width="{wide}" height="{high}" rx="4"/><text x="{x:.0f}" y="{y:.0f}">{escape(shown)}</text>{note}</g>'
    )


def _routes(chart: Chart, places: Mapping[str, _Point], ways: Sequence[Sequence[str]]) -> list[str]:
    peers = {cable.a: _node(cable.b) for cable in chart.cables} | {cable.b: _node(cable.a) for cable in chart.cables}
    out = []
    for way in ways:
        for end in way:
            one, other = places.get(_node(end)), places.get(peers.get(end, ""))
            if one is not None and other is not None:
                out.append(_line(one, other, "route", f"{way[0]} ..."))
    return out
