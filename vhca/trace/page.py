"""A trace as one page of HTML that needs nothing else: a timeline in SVG, and all events, to be searched and filtered.

Assumes at most some ten thousand events. Guarantees: nothing of a guest's becomes markup or script, and the page asks
nothing of a network, which it forbids itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import islice
from typing import Final

from vhca.trace.events import KINDS, TraceEvent
from vhca.trace.ladder import card_of, cards_of
from vhca.trace.reading import Trace

MOST_LANES: Final = 24
_WIDTH: Final = 1600
_LEFT: Final = 130
_LANE: Final = 18
_GROUPS: Final = {
    "packet": "wire", "send": "queues", "receive": "queues", "completion": "queues",
}  # fmt: skip
_COLOURS: Final = {
    "command": "#9a6700", "doorbell": "#57606a", "send": "#0969da", "receive": "#0969da", "packet": "#1b7c83",
    "completion": "#1a7f37", "event": "#8250df", "interrupt": "#bf3989", "reset": "#24292f", "interface": "#24292f",
    "link": "#24292f",
}  # fmt: skip
_STYLE: Final = (
    """
body { font: 14px/1.4 system-ui, sans-serif; margin: 1em; color: #1f2328; background: #fff; }
h1 { font-size: 1.3em; } .note { color: #9a6700; margin: 0.2em 0; }
#bar { position: sticky; top: 0; background: #fff; padding: 0.5em 0; border-bottom: 1px solid #d0d7de; }
#bar label { margin-right: 0.8em; white-space: nowrap; } #words { width: 22em; }
#time { overflow-x: auto; border: 1px solid #d0d7de; margin: 0.5em 0; }
table { border-collapse: collapse; font: 12px/1.5 ui-monospace, monospace; width: 100%; }
td, th { text-align: left; padding: 0 0.6em; vertical-align: top; overflow-wrap: anywhere; }
td:first-child { text-align: right; white-space: nowrap; color: #57606a; }
tr:target, tr.here { background: #fff8c5; } tr.bad td { background: #ffebe9; }
.m { color: #82071e; } .lost { color: #9a6700; } .off { display: none; } td.out::after { content: " \\2192"; }
td.in::before { content: "\\2190 "; } svg text { font: 11px system-ui, sans-serif; } .bad { stroke: #cf222e; }
"""
    + "\n".join(f".k-{kind} {{ color: {colour}; fill: {colour}; }}" for kind, colour in _COLOURS.items())
    + "\n"
)
_SCRIPT: Final = """
const rows = [...document.querySelectorAll('tr[data-n]')], ticks = new Map();
for (const tick of document.querySelectorAll('svg [data-n]')) ticks.set(tick.dataset.n, tick);
const words = document.getElementById('words'), bad = document.getElementById('bad');
const kinds = [...document.querySelectorAll('input[data-kind]')], count = document.getElementById('count');
function filter() {
  const wanted = words.value.toLowerCase().split(/\\s+/).filter(Boolean);
  const on = new Set(kinds.filter(k => k.checked).map(k => k.dataset.kind));
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const off = !on.has(row.dataset.kind) || bad.checked && !row.classList.contains('bad')
      || !wanted.every(word => text.includes(word));
    row.classList.toggle('off', off);
    ticks.get(row.dataset.n).classList.toggle('off', off);
    shown += !off;
  }
  count.textContent = shown + ' of ' + rows.length + ' events';
}
for (const input of [words, bad, ...kinds]) input.addEventListener('input', filter);
document.getElementById('zoom').addEventListener('input', event => {
  document.querySelector('svg').setAttribute('width', __WIDTH__ * event.target.value);
});
document.querySelector('svg').addEventListener('click', event => {
  const tick = event.target.closest('[data-n]');
  if (!tick) return;
  for (const row of document.querySelectorAll('tr.here')) row.classList.remove('here');
  const row = document.getElementById('e' + tick.dataset.n);
  row.classList.add('here');
  row.scrollIntoView({block: 'center'});
});
filter();
"""


def page(trace: Trace, title: str) -> str:
    """The whole page."""
    return "".join(_parts(trace, title))


def _parts(trace: Trace, title: str) -> Iterator[str]:
    events = trace.events
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}"/>'
    yield f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>\n<h1>{_text(title)}</h1>\n"
    for note in trace.notes():
        yield f'<p class="note">{_text(note)}</p>\n'
    yield '<div id="bar"><input id="words" type="search" placeholder="words that a line has, such as 0x00004b"/> '
    for kind in (kind for kind in KINDS if any(event.kind == kind for event in events)):
        yield f'<label class="k-{kind}"><input type="checkbox" data-kind="{kind}" checked=""/>{kind}</label>'
    yield '<label><input id="bad" type="checkbox"/>only what went wrong</label>'
    yield '<label>zoom <input id="zoom" type="range" min="1" max="40" value="1"/></label>'
    yield '<span id="count"></span></div>\n'
    yield from _timeline(events)
    yield from _table(events)
    yield f"<script>{_SCRIPT.replace('__WIDTH__', str(_WIDTH))}</script></body></html>\n"


def _text(text: str) -> str:
    return escape("".join(char if char.isprintable() else "?" for char in text))


def _lane(event: TraceEvent) -> str:
    return f"{event.place} {_GROUPS.get(event.kind, 'host')}"


def _timeline(events: Sequence[TraceEvent]) -> Iterator[str]:
    """Events in lanes by card and layer, as far from each other as they were in time."""
    lanes = {name: row for row, name in enumerate(islice(_in_order(map(_lane, events)), MOST_LANES))}
    height = _LANE * (len(lanes) + 2)
    # Of several clocks, or of one that was set back, the first event need not be the earliest.
    first = min((event.time_ns for event in events), default=0)
    last = max((event.time_ns for event in events), default=0)
    scale = (_WIDTH - _LEFT - 20) / max(last - first, 1)
    yield (
        f'<div id="time"><svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none">\n'
    )
    for name, row in lanes.items():
        y = _LANE * (row + 1)
        yield f'<text x="2" y="{y}">{_text(name)}</text>'
        yield f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y}" y2="{y}" stroke="#eaeef2"/>\n'
    for event in events:
        x = _LEFT + (event.time_ns - first) * scale
        y = _LANE * lanes.get(_lane(event), len(lanes)) + 5
        bad = " bad" * event.bad
        yield (
            f'<rect class="k-{event.kind}{bad}" data-n="{event.number}" x="{x:.2f}" y="{y}" width="2" height="13">'
            f"<title>{_text(event.text)}</title></rect>\n"
        )
    yield f'<text x="{_LEFT}" y="{height - 4}">0 us</text>'
    yield f'<text x="{_WIDTH - 120}" y="{height - 4}">{(last - first) / 1e3:.1f} us</text></svg></div>\n'


def _in_order(names: Iterable[str]) -> list[str]:
    return sorted(set(names))


def _table(events: Sequence[TraceEvent]) -> Iterator[str]:
    cards = cards_of(events)
    two = len(cards) == 2
    heads = ("us", cards[0], "wire", cards[1]) if two else ("us", "where", "what")
    yield "<table><thead><tr>" + "".join(f"<th>{_text(head)}</th>" for head in heads) + "</tr></thead><tbody>\n"
    first = min((event.time_ns for event in events), default=0)
    for event in events:
        stamp = f"<td>{(event.time_ns - first) / 1e3:.1f}</td>"
        lost = f'<div class="lost">{event.lost} are missing before this</div>' if event.lost else ""
        meaning = f'<div class="m">{_text(event.meaning)}</div>' if event.meaning else ""
        what = f"{lost}{_text(event.text)}{meaning}"
        if two:
            column = 1 if event.kind == "packet" else 0 if card_of(event.place) == cards[0] else 2
            to_right = (card_of(event.place) == cards[0]) != event.inbound
            way = f' class="{"out" if to_right else "in"}"' if event.kind == "packet" else ""
            cells = "".join(f"<td{way}>{what}</td>" if index == column else "<td></td>" for index in range(3))
        else:
            cells = f"<td>{_text(event.place)}</td><td>{what}</td>"
        yield (
            f'<tr id="e{event.number}" data-n="{event.number}" data-kind="{event.kind}"'
            f' class="k-{event.kind}{" bad" * event.bad}">{stamp}{cells}</tr>\n'
        )
    yield "</tbody></table>\n"
