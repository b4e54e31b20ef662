"""Traces: a capture, small and whole or damaged, as a ladder and as a page."""

from __future__ import annotations

import io
import random
import re
import struct
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.recorded import START_NS, small_capture
from vhca.cli import status
from vhca.cli.main import main
from vhca.fabric import pcapng
from vhca.fabric.capture import Capture
from vhca.lab.traced import explaining
from vhca.trace import events, reading
from vhca.trace.events import KINDS, Selection, TraceEvent
from vhca.trace.ladder import Ladder, cards_of
from vhca.trace.packets import told_of
from vhca.trace.page import page
from vhca.trace.reading import Trace, TraceError, events_of, gather
from vhca.wire.ib import encode
from vhca.wire.packet import ACKNOWLEDGE, RC, SEND, UD, Packet, Route

GOLDEN = (Path(__file__).parents[2] / "vectors" / "ladder.txt").read_text()


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "small.pcapng"
    assert small_capture(path) == (0x40, 0x80)
    return path


def ladder(trace: Trace) -> str:
    shown = Ladder(cards_of(trace.events))
    lines = shown.header() + [line for event in trace.events for line in shown.lines(event)]
    return "".join(f"{line}\n" for line in lines)


def test_the_ladder_of_a_small_capture(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(capture)]) == status.OK
    said = re.sub(r"resources\.py:\d+", "resources.py:LINE", capsys.readouterr().out)
    assert said == GOLDEN


class Reader(HTMLParser):
    """The rows and ticks of a page, by number, and what it would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, str] = {}
        self.ticks: set[int] = set()
        self.fetches: list[str] = []
        self._row: int | None = None
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.scripts += tag == "script"
        self.fetches += [f"{tag} {name}" for name in given if name in ("src", "href", "action", "data")]
        if tag == "tr" and "data-n" in given:
            self._row = int(given["data-n"] or 0)
            self.rows[self._row] = ""
        elif tag == "rect":
            self.ticks.add(int(given["data-n"] or 0))

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr":
            self._row = None

    def handle_data(self, data: str) -> None:
        if self._row is not None:
            self.rows[self._row] += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def test_every_event_is_on_the_page(capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "small.html"
    assert main(["trace", str(capture), "--html", str(output)]) == status.OK
    assert capsys.readouterr().out == f"{output}: 19 events\n"
    assert output.stat().st_mode & 0o777 == 0o600
    text = output.read_text()
    found = read(text)
    trace = gather([capture], meaning=explaining())
    assert len(trace.events) == 19
    for event in trace.events:
        assert event.text in found.rows[event.number]
        assert event.meaning in found.rows[event.number]
    assert found.ticks == found.rows.keys() == {event.number for event in trace.events}
    assert sum(bool(event.meaning) for event in trace.events) == 3
    assert found.fetches == []
    svg = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    assert len(svg.findall(".//{http://www.w3.org/2000/svg}title")) == 19
    ElementTree.fromstring(re.sub(r"<(script|style)>.*?</\1>|<!DOCTYPE html>", "", text, flags=re.S))


def test_nothing_of_a_guest_is_markup_or_obeyed_by_a_terminal() -> None:
    evil = TraceEvent(1, 5, "h0</td>", "command", False, "<script>x</script>\x1b[2J", {}, bad=True, meaning="<b>&")
    trace = Trace([evil], seen=1, wanted=1)
    text = page(trace, "<script>t</script>")
    assert read(text).scripts == 1
    assert "<script>x" not in text
    assert "\x1b" not in text
    assert "\x1b" not in ladder(trace)


def test_a_page_of_ten_thousand_events_says_what_it_has_not(tmp_path: Path) -> None:
    path = tmp_path / "long.pcapng"
    now = [START_NS]

    def clock() -> int:
        now[0] += 100
        return now[0]

    written = Capture.to_file(path, clock)
    for psn in range(10_050):
        packet = Packet(Route(2, 1), RC, SEND, 0x80, psn, b"x" * 8)
        written.record(written.interface("h0" if psn % 2 else "h1"), packet, pcapng.OUTBOUND)
    written.close()
    assert written.wait()
    trace = gather([path])
    assert (trace.seen, len(trace.events), trace.left_out) == (10_050, 10_000, 50)
    text = page(trace, "long")
    found = read(text)
    assert len(found.rows) == len(found.ticks) == 10_000
    assert min(found.rows) == 51
    assert "50 earlier events are left out: these are the last 10000" in text
    assert len(text) < 8 << 20


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (["--kind", "packet"], [4, 7, 14, 15]),
        (["--card", "b", "--kind", "command"], [11, 18]),
        (["--from", "0.00000425"], [18, 19]),
        (["--until", "0.0000003"], [1, 2]),
        (["--qp", "0x40", "--card", "a"], [2, 3, 4, 8, 9, 10, 12, 13, 14, 17]),
        (["--qp", "0x80"], [4, 5, 6, 14, 16]),
        (["--most", "2"], [18, 19]),
    ],
)
def test_only_what_is_asked_for(
    capture: Path, tmp_path: Path, words: list[str], numbers: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "some.html"
    assert main(["trace", str(capture), *words, "--html", str(output)]) == status.OK
    assert sorted(read(output.read_text()).rows) == numbers
    assert f"vhca: {19 - len(numbers)} e" in capsys.readouterr().err


def test_a_packet_belongs_to_who_sent_it_too(capture: Path) -> None:
    trace = gather([capture], Selection(frozenset({0x40})))
    assert [event.number for event in trace.events if event.kind == "packet"] == [4, 7, 14, 15]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"", "it is no capture"),
        (lambda data: b"not a capture at all", "it is no capture"),
        (lambda data: data[:3], "it is no capture"),
        (lambda data: data[:4] + b"\0\0\0\x1c" + data[8:], "it is no capture of ours"),
        (lambda data: data[:50], "ends in the middle of a block"),
        (lambda data: data.replace(b"\xc5\0\0\0", b"\x01\0\0\0", 1), "link type 1: it is no capture of InfiniBand"),
    ],
)
def test_what_is_no_capture_is_refused(
    capture: Path, tmp_path: Path, damage: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.pcapng"
    data = capture.read_bytes()
    if said.startswith("link type"):
        at = data.index(b"\xfc\0\0\0")  # the first interface is of records
        bad.write_bytes(data[:at] + b"\x01\0\0\0" + data[at + 4 :])
    else:
        bad.write_bytes(damage(data))  # type: ignore[operator]
    assert main(["trace", str(bad)]) == status.TROUBLE
    assert said in capsys.readouterr().err


def test_a_capture_that_was_cut_is_shown_as_far_as_it_goes(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.pcapng"
    cut.write_bytes(capture.read_bytes()[:1500])
    assert main(["trace", str(cut)]) == status.FAILED
    shown = capsys.readouterr()
    assert shown.out.splitlines()[:4] == GOLDEN.splitlines()[:4]
    assert "cut.pcapng: it is damaged at byte" in shown.err


def test_any_damage_is_a_clear_error_or_a_trace(capture: Path) -> None:
    data = capture.read_bytes()
    chance = random.Random(11)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(400):
        bad = bytearray(data)
        for _ in range(chance.randrange(1, 6)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        try:
            trace = Trace(list(events_of(io.BytesIO(bytes(bad)))))
            for event in trace.events:
                explaining()(event)
            ladder(trace)
            page(trace, "damaged")
            outcomes["read"] += 1
        except TraceError:
            outcomes["refused"] += 1
    assert all(outcomes.values())


def hostile(path: Path, records: list[bytes], name: str = "h0-card", times_ns: list[int] | None = None) -> Path:
    """A capture whose card told these JSON texts."""
    told = [struct.pack(">HH", 0, 0) + record for record in records]
    blocks = [pcapng.section(), pcapng.interface(pcapng.LINKTYPE_EXPORTED, 0, name)]
    for number, data in enumerate(told):
        time_ns = times_ns[number] if times_ns else START_NS + number
        body = struct.pack("<IIIII", 0, time_ns >> 32, time_ns & 0xFFFFFFFF, len(data), len(data))
        body += data + bytes(-len(data) & 3)
        size = len(body) + 12
        blocks.append(struct.pack("<II", 6, size) + body + struct.pack("<I", size))
    path.write_bytes(b"".join(blocks))
    return path


def test_no_record_makes_more_of_itself_than_it_is(tmp_path: Path) -> None:
    small = b'{"record": "command", "status": "OK", "number": 7, "x": [' + b"[]," * 4000 + b"[]]}"
    (event,) = gather([hostile(tmp_path / "a.pcapng", [small])]).events
    assert event.fields == {"record": "command", "status": "OK", "number": 7}
    large = b'{"record": "command", "x": "' + b"x" * reading.MOST_RECORD_BYTES + b'"}'
    with pytest.raises(TraceError, match="a card's record of"):
        gather([hostile(tmp_path / "b.pcapng", [large])])
    (event,) = gather([hostile(tmp_path / "c.pcapng", [small], "n" * 60_000)]).events
    assert len(event.place) == reading.MOST_NAME_BYTES


def test_times_that_go_backwards_lose_nothing(tmp_path: Path) -> None:
    record = b'{"record": "command", "status": "OK"}'
    trace = gather([hostile(tmp_path / "back.pcapng", [record] * 3, times_ns=[5000, 1000, 9000])])
    assert len(trace.events) == 3
    text = page(trace, "back")
    assert all(float(x) >= 0 for x in re.findall(r' x="([^"]+)"', text))
    assert re.findall(r"<td>([\d.-]+)</td>", text) == ["4.0", "0.0", "8.0"]


def test_what_is_learnt_of_peers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_PEERS", 10)
    wanted = Selection(frozenset({1}))
    for number in range(100):
        place = f"h{number % 50}"
        wanted.wants(TraceEvent(1, 1, place, "send", True, "", {"qpn": number % 2}))
        wanted.wants(TraceEvent(1, 1, place, "packet", False, "", {"request": True, "dest_qp": number}))
        wanted.wants(TraceEvent(1, 1, place, "completion", False, "", {"qpn": 1, "cqn": number}))
    assert len(wanted._sending) <= 10
    assert set(wanted._peers) == {1}
    assert len(wanted._peers[1]) <= 10
    assert len(wanted._queues) <= 10


def test_names_of_columns_are_not_obeyed_by_a_terminal() -> None:
    both = [TraceEvent(n, n, f"h{n}\x1b[2J", "interrupt", False, "x") for n in range(2)]
    assert "\x1b" not in ladder(Trace(both))


def test_a_packet_is_told_by_its_headers() -> None:
    raw = encode(Packet(Route(2, 1), UD, SEND, 0x12, 7, b"x" * 8, src_qp=0x55, qkey=1))
    text, fields, bad = told_of(raw, len(raw))
    assert (text, bad) == ("UD_SEND_ONLY from 0x55 QP 0x12 psn 7 8 B", False)
    assert (fields["src_qp"], fields["dlid"], fields["request"]) == (0x55, 2, True)
    assert told_of(raw[:24], len(raw))[1]["dest_qp"] == 0x12
    assert told_of(raw[:10], len(raw)) == (
        f"a packet of {len(raw)} bytes",
        {"slid": 1, "dlid": 2, "size": len(raw)},
        False,
    )
    rnr = encode(Packet(Route(2, 1), RC, ACKNOWLEDGE, 0x12, 7, syndrome=0x21))
    assert told_of(rnr, len(rnr))[0].startswith("RC_ACKNOWLEDGE RNR NAK, timer 1")
    assert told_of(rnr, len(rnr))[2]
    chance = random.Random(5)
    for _ in range(2000):
        told_of(chance.randbytes(chance.randrange(60)), 60)


def test_missing_events_are_told_of(tmp_path: Path) -> None:
    event = TraceEvent(1, 5, "h0", "interrupt", False, "interrupt: vector 0", {}, lost=3)
    assert "... 3 events are missing here" in ladder(Trace([event], 1, 1, 3))
    assert "3 events are missing in the capture" in page(Trace([event], 1, 1, 3), "x")


def test_three_cards_stand_in_one_column() -> None:
    events = [TraceEvent(n, n, f"h{n}", "interrupt", False, "interrupt: vector 0") for n in range(3)]
    events.append(TraceEvent(4, 9, "h1", "packet", True, "RC_SEND_ONLY"))
    lines = ladder(Trace(events)).splitlines()
    assert lines[0].split() == ["us", "card", "wire"]
    assert lines[3].endswith("h1: interrupt: vector 0")
    assert lines[5].endswith("h1 <- RC_SEND_ONLY")


def test_colours_are_for_terminals() -> None:
    event = TraceEvent(1, 5, "h0", "packet", False, "RC_SEND_ONLY", bad=True)
    assert "\x1b[31;1m" in "".join(Ladder(["h0", "h1"], colours=True).lines(event))
    assert "\x1b" not in "".join(Ladder(["h0", "h1"]).lines(event))


def test_the_page_colours_every_kind(capture: Path) -> None:
    text = page(gather([capture]), "x")
    assert [kind for kind in KINDS if f".k-{kind} {{" not in text] == []
