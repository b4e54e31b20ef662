"""The orders that a running rack takes at its control socket: reading, checking, carrying out, answering.

A request is one JSON object on one line, `{"order": "link_down", "cable": "h1"}`; the answer is `{"result": ...}` or
`{"error": "a sentence"}`. docs/fabric.md lists the orders. The rack's loop carries them out, each in a short turn.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from vhca.chip.control import HandOver
from vhca.chip.live_fabric import LiveCapture, LiveFabric
from vhca.chip.live_faults import FaultOrders, LiveFaults, OrderError
from vhca.chip.live_findings import FindingOrders, LedgerOfCard
from vhca.fabric import quantities
from vhca.fabric.cables import MOST_FLAPS
from vhca.fabric.capture import LEAST_SNAP_BYTES, CaptureLimits
from vhca.fabric.capture_filter import WAYS, CaptureFilter
from vhca.fabric.capture_writer import MOST_FILES, Ring
from vhca.fabric.captures import CaptureChoice
from vhca.fabric.faults import ACTIONS, DIRECTIONS, Fault
from vhca.fabric.line import MAX_LATENCY_NS, LineConfig
from vhca.fabric.schedule import MAX_BYTES, Player, ScheduleError
from vhca.fabric.schedule import read as read_schedule
from vhca.fabric.topology import MAX_NODES, TopologyError
from vhca.sim.loop import LoopEnded

log = logging.getLogger(__name__)

MAX_RULES: Final = 32
"""On one cable: each is looked at for every packet."""
MAX_LIVE: Final = 4
"""Captures that are read as they are made: each has a client's thread, and others have something to say, too."""
MAX_SECONDS: Final = 1e9
MAX_DELAY_MS: Final = 10_000.0
MAX_FLAP_NS: Final = 3600 * 10**9
"""A packet that is delayed keeps its memory."""
CHART_PAGE: Final = 256
"""Nodes and cables that one order tells of: so it takes a millisecond."""
_LOOK_S: Final = 0.2
_QUOTED: Final = 60
_SHAPE: Final = 'a request is one JSON object on one line, such as {"order": "show"}'

C = TypeVar("C", bound=str)


class _Refused(Exception):
    """The text says why."""


def encode(answer: dict[str, Any]) -> bytes:
    """An answer as it is sent: one line."""
    return json.dumps(answer).encode("ascii")


def refusal(why: str) -> bytes:
    """The answer that there is none, and why."""
    return encode({"error": why})


def _quoted(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _QUOTED else text[:_QUOTED] + "..."


def _told(capture: LiveCapture) -> dict[str, Any]:
    return {
        "file": str(capture.path),
        "packets": capture.packets,
        "dropped": capture.dropped,
        "trouble": capture.trouble,
        "ended": capture.ended,
    }


def _serve_capture(sock: socket.socket, capture: LiveCapture) -> None:
    """Record for who reads at a socket, until he hangs up, says anything, or the capture ends by itself."""
    try:
        while not capture.ended:
            if select.select([sock], [], [], _LOOK_S)[0]:
                break
    finally:
        with contextlib.suppress(TimeoutError, LoopEnded):
            capture.stop()


class _Fields:
    """The fields of a request, each taken once and looked at."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def take(self, name: str, kind: type | tuple[type, ...], what: str) -> Any:
        """A field, None if it is not there."""
        value = self._fields.pop(name, None)
        # JSON's true is no number, though Python's is
        if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise _Refused(f"{name} must be {what}, not {_quoted(value)}")
        return value

    def text(self, name: str) -> str | None:
        """A field that is a text."""
        value: str | None = self.take(name, str, "a text")
        return value

    def flag(self, name: str) -> bool:
        """A field that is true or false; false if it is not there."""
        return bool(self.take(name, bool, "true or false"))

    def number(self, name: str, low: int, high: int) -> int | None:
        """A field that is a whole number in `low` .. `high`."""
        value: int | None = self.take(name, int, "a whole number")
        if value is not None and not low <= value <= high:
            raise _Refused(f"{name} must be in {low} .. {high}, not {_quoted(value)}")
        return value

    def numbers(self, name: str, high: int) -> frozenset[int]:
        """A field that is a list of whole numbers in 0 .. `high`; empty if it is not there."""
        values = self.take(name, list, "a list of whole numbers") or []
        for value in values:
            if type(value) is not int or not 0 <= value <= high:
                raise _Refused(f"{name} must be a list of whole numbers in 0 .. {high}, not {_quoted(values)}")
        return frozenset(values)

    def fraction(self, name: str, high: float) -> float | None:
        """A field that is a number in 0 .. `high`."""
        value: float | None = self.take(name, (int, float), "a number")
        if value is not None and not 0 <= value <= high:
            raise _Refused(f"{name} must be in 0 .. {high:g}, not {_quoted(value)}")
        return value

    def choice(self, name: str, choices: tuple[C, ...], default: C | None = None) -> C:
        """A field that is one of some words."""
        value = self.text(name)
        if value is None and default is not None:
            return default
        for choice in choices:
            if value == choice:
                return choice
        raise _Refused(f"{name} must be one of {', '.join(choices)}, not {_quoted(value)}")

    def time(self, name: str, most_ns: int) -> int | None:
        """A field that is a time, in ns: a text such as "2us", or a number of seconds."""
        value = self.take(name, (int, float, str), 'a time such as "2us"')
        try:
            return None if value is None else quantities.time(value, most_ns)
        except ValueError as error:
            raise _Refused(f"{name}: {error}") from error

    def end(self) -> None:
        """Refuse what nobody took."""
        if self._fields:
            raise _Refused(f"there is no field {_quoted(next(iter(self._fields)))} in this order")


@dataclass(frozen=True, slots=True)
class ToolPlace:
    """Where programs of the host attach: name of the sockets; name and port GUID of the node, whether it is Active."""

    socket_name: str
    node: str
    guid: int
    active: bool


class Orders:
    """The orders of one rack, for one thread that may wait for the loop; `open_tools` as :meth:`Rack.open_tools`.

    `cards` gives the rules of faults in each card, `ledgers` their objects.
    """

    def __init__(
        self,
        fabric: LiveFabric,
        directory: Path,
        open_tools: Callable[[str], ToolPlace],
        cards: Callable[[], Iterable[LiveFaults]],
        ledgers: Callable[[], Sequence[LedgerOfCard]],
    ) -> None:
        self._open_tools = open_tools
        self._fabric = fabric
        self._directory = directory
        self._capture: LiveCapture | None = None
        self._player: Player | None = None
        # Those that are read live; clients' threads count them.
        self._live = 0
        self._lock = threading.Lock()
        self._faults_of_ours = 0
        self._orders: dict[str, Callable[[_Fields], Any]] = {
            "show": self._show,
            "chart": self._chart,
            "route": self._route,
            "counters": self._counters,
            "link_down": self._link_down,
            "link_up": self._link_up,
            "link_flap": self._link_flap,
            "link_disable": self._link_disable,
            "link_enable": self._link_enable,
            "link_set": self._link_set,
            "fault_add": self._fault_add,
            "fault_list": self._fault_list,
            "fault_clear": self._fault_clear,
            "tools": self._tools,
            "schedule_start": self._schedule_start,
            "schedule_stop": self._schedule_stop,
            "capture_start": self._capture_start,
            "capture_stop": self._capture_stop,
            "capture_live": self._capture_live,
            **FaultOrders(cards).orders(),
            **FindingOrders(ledgers).orders(),
        }

    def answer(self, line: bytes) -> bytes | HandOver:
        """Carry out the request of a line; never raises."""
        try:
            request = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            return refusal(_SHAPE)
        try:
            result = self._carry_out(request)
            if callable(result):
                return HandOver(result)
            return encode({"result": result})
        except (_Refused, OrderError, TimeoutError, LoopEnded) as error:
            return refusal(str(error))
        except Exception as error:
            self._faults_of_ours += 1
            if self._faults_of_ours == 1:
                log.exception("an order from outside failed")
            return refusal(f"this is a fault of vhca: {error!r}")

    def _carry_out(self, request: object) -> Any:
        if not isinstance(request, dict):
            raise _Refused(_SHAPE)
        order = request.pop("order", None)
        carry_out = self._orders.get(order) if isinstance(order, str) else None
        if carry_out is None:
            raise _Refused(f"there is no order {_quoted(order)}; there are {', '.join(self._orders)}")
        return carry_out(_Fields(request))

    def _cable(self, fields: _Fields) -> str:
        """The cable that the order is for."""
        name = fields.text("cable")
        if name is None:
            raise _Refused("the order needs the field cable, such as h0 or leaf1/3")
        return self._known_cable(name)

    def _known_cable(self, name: str) -> str:
        if not self._fabric.knows(name):
            if "/" not in name:
                self._known(name)
            raise _Refused(f"there is no cable at {_quoted(name)}; name a card, or an end such as leaf1/3 or switch/1")
        return name

    def _cables(self, fields: _Fields) -> list[str]:
        """The cable that the order is for, or all that have rules."""
        name = fields.text("cable")
        return self._fabric.faulty() if name is None else [self._known_cable(name)]

    def _known(self, name: str) -> str:
        names = self._fabric.names()
        if name not in names:
            there = f"there are {names[0]} to {names[-1]}" if len(names) > 1 else f"there is {names[0]}"
            raise _Refused(f"there is no card {_quoted(name)}; {there if names else 'there is none'}")
        return name

    # ---- questions ----

    def _show(self, fields: _Fields) -> dict[str, Any]:
        fields.end()
        capture = None if self._capture is None else _told(self._capture)
        return {
            "pid": os.getpid(),
            "directory": str(self._directory),
            "ports": [asdict(status) for status in self._fabric.status()],
            "managers": [asdict(status) for status in self._fabric.managers()],
            "cables": [asdict(status) for status in self._fabric.cables()[:CHART_PAGE]],
            "capture": capture,
        }

    def _chart(self, fields: _Fields) -> dict[str, Any]:
        start = fields.number("start", 0, MAX_NODES * 256) or 0
        fields.end()
        return self._fabric.chart(start, CHART_PAGE).to_json()

    def _route(self, fields: _Fields) -> list[str]:
        source, target = fields.text("source"), fields.text("target")
        fields.end()
        if source is None or target is None:
            raise _Refused("the order needs the fields source and target, such as h0 and h1")
        try:
            return self._fabric.route(source, target)
        except TopologyError as error:
            raise _Refused(str(error)) from error

    def _counters(self, fields: _Fields) -> dict[str, int]:
        name = fields.text("card")
        fields.end()
        if name is not None:
            self._known(name)
        counters = self._fabric.counters()
        return {key: n for key, n in counters.items() if name is None or key.startswith(f"{name}.")}

    # ---- cables ----

    def _link_down(self, fields: _Fields) -> None:
        self._change(fields, self._fabric.link_down)

    def _link_up(self, fields: _Fields) -> None:
        self._change(fields, self._fabric.link_up)

    def _link_disable(self, fields: _Fields) -> None:
        self._change(fields, self._fabric.disable)

    def _link_enable(self, fields: _Fields) -> None:
        self._change(fields, self._fabric.enable)

    def _change(self, fields: _Fields, change: Callable[[str], None]) -> None:
        name = self._cable(fields)
        fields.end()
        change(name)

    def _link_flap(self, fields: _Fields) -> None:
        name = self._cable(fields)
        times = fields.number("times", 1, MOST_FLAPS) or 1
        down_ns, up_ns = (fields.time(field, MAX_FLAP_NS) for field in ("down", "up"))
        fields.end()
        down_s, up_s = (1.0 if ns is None else ns / 1e9 for ns in (down_ns, up_ns))
        self._fabric.flap(name, times, down_s, up_s)

    def _link_set(self, fields: _Fields) -> str:
        """Fields that are not there leave what they are about as it is; a rate of "0" is none."""
        name = self._cable(fields)
        rate, latency_ns = fields.text("rate"), fields.time("latency", MAX_LATENCY_NS)
        errors = fields.fraction("bit_error_rate", 0.1)
        fields.end()
        now = self._fabric.line(name)
        try:
            config = LineConfig(
                now.rate_bps if rate is None else 0 if rate == "0" else quantities.rate(rate),
                now.latency_ns if latency_ns is None else latency_ns,
                now.bit_error_rate if errors is None else errors,
            )
        except ValueError as error:
            raise _Refused(str(error)) from error
        self._fabric.set_line(name, config)
        return str(config)

    def _fault_add(self, fields: _Fields) -> str:
        cable = self._cable(fields)
        action = fields.choice("action", ACTIONS)
        direction = fields.choice("direction", DIRECTIONS, "both")
        delay_ms = fields.fraction("delay_ms", MAX_DELAY_MS)
        if (action == "delay") != (delay_ms is not None):
            raise _Refused("delay_ms says how long a packet is delayed: it goes with delay, and delay needs it")
        settings: dict[str, Any] = {
            "opcode": fields.text("opcode"),
            "dest_qp": fields.number("dest_qp", 0, 0xFFFFFF),
            "psn": fields.number("psn", 0, 0xFFFFFF),
            "nth": fields.number("nth", 1, 1 << 48),
            "skip": fields.number("skip", 0, 1 << 48) or 0,
            "limit": fields.number("limit", 1, 1 << 48),
            "management": fields.flag("management"),
            "delay_ns": round((delay_ms or 0) * 1e6),
        }
        probability = fields.fraction("probability", 1)
        fields.end()
        try:
            fault = Fault(action, probability=1.0 if probability is None else probability, **settings)
            if len(self._fabric.faults(cable)) >= MAX_RULES:
                raise _Refused(f"{cable} has {MAX_RULES} rules, as many as orders may add; clear them first")
            self._fabric.add_fault(cable, fault, direction)
        except ValueError as error:
            raise _Refused(str(error)) from error
        return str(fault)

    def _fault_list(self, fields: _Fields) -> list[dict[str, Any]]:
        cables = self._cables(fields)
        fields.end()
        return [
            {"cable": cable, "direction": direction, "rule": str(rule), "seen": rule.seen, "hits": rule.hits}
            for cable in cables
            for direction, rule in self._fabric.faults(cable)
        ]

    def _fault_clear(self, fields: _Fields) -> int:
        cables = self._cables(fields)
        fields.end()
        cleared = 0
        for cable in cables:
            if rules := len(self._fabric.faults(cable)):
                self._fabric.clear_faults(cable)
                cleared += rules
        return cleared

    # ---- programs of the host ----

    def _tools(self, fields: _Fields) -> dict[str, Any]:
        """Let programs of the host attach to a node."""
        node = fields.text("node")
        fields.end()
        try:
            return asdict(self._open_tools(node or ""))
        except LookupError as error:
            raise _Refused(str(error.args[0])) from error
        except OSError as error:
            raise _Refused(f"no sockets for programs of the host: {error.strerror}") from error

    # ---- schedules ----

    def _schedule_start(self, fields: _Fields) -> int:
        """Carry the schedule in a file out; one at a time."""
        path = Path(fields.text("file") or "")
        fields.end()
        if not path.is_absolute() or "\0" in str(path):
            raise _Refused("file must be an absolute path")
        if self._player is not None and self._player.left:
            raise _Refused("a schedule is under way; stop it first")
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise _Refused(f"{path} is no ordinary file")
            with path.open(encoding="utf-8") as file:
                schedule = read_schedule(file.read(MAX_BYTES + 1))
            self._player = self._fabric.play(schedule)
        except OSError as error:
            raise _Refused(f"{path}: {error.strerror}") from error
        except (UnicodeError, ScheduleError) as error:
            raise _Refused(f"{path}: {error}") from error
        return len(schedule.events)

    def _schedule_stop(self, fields: _Fields) -> int:
        fields.end()
        player, self._player = self._player, None
        if player is None:
            raise _Refused("no schedule was started by an order")
        self._fabric.stop_playing(player)
        return player.happened

    # ---- captures ----

    def _capture_start(self, fields: _Fields) -> None:
        """Start the capture; one at a time, beside that of the rack's command line."""
        path = Path(fields.text("file") or "")
        file_bytes = fields.number("file_bytes", 1024, 1 << 50)
        files = fields.number("files", 1, MOST_FILES)
        choice = self._choice(fields)
        if not path.is_absolute() or path.suffix != ".pcapng" or "\0" in str(path):
            raise _Refused("file must be an absolute path that ends in .pcapng")
        if files is not None and file_bytes is None:
            raise _Refused("files says how many files of file_bytes there are: it needs that")
        if self._capture is not None and not self._capture.ended:
            raise _Refused(f"a capture to {self._capture.path} runs already; stop it first")
        try:
            if path.exists() and not stat.S_ISREG(path.stat().st_mode):
                raise _Refused(f"{path} is no ordinary file")
            ring = None if file_bytes is None else Ring(file_bytes, files or 0)
            self._capture = self._fabric.capture_choice(path, choice, ring)
        except OSError as error:
            raise _Refused(f"{path}: {error.strerror}") from error
        except UnicodeError as error:
            raise _Refused(f"file: {error}") from error

    def _capture_live(self, fields: _Fields) -> Callable[[socket.socket], None]:
        """A capture for who asks: what follows the answer on this connection is pcapng."""
        choice = self._choice(fields)
        if self._live >= MAX_LIVE:
            raise _Refused(f"{MAX_LIVE} captures are read live already; end one of them")
        return lambda sock: self._serve_live(sock, choice)

    def _serve_live(self, sock: socket.socket, choice: CaptureChoice) -> None:
        with self._lock:
            self._live += 1
        try:
            begun = encode({"result": None}) + b"\n"
            _serve_capture(sock, self._fabric.capture_stream(sock, "somebody who reads it live", choice, begun))
        except (OSError, KeyError, TimeoutError, LoopEnded) as error:
            with contextlib.suppress(OSError):
                sock.sendall(refusal(str(error)) + b"\n")
        finally:
            with self._lock:
                self._live -= 1

    def _choice(self, fields: _Fields) -> CaptureChoice:
        """What is to be recorded; nothing else may be left in the order."""
        ports = fields.take("ports", list, "a list of ports")
        for name in ports or ():
            if not isinstance(name, str):
                raise _Refused(f"ports must be a list of ports, not {_quoted(ports)}")
        lids, qpns = (fields.numbers(name, high) for name, high in (("lids", 0xFFFF), ("qpns", 0xFFFFFF)))
        settings: dict[str, Any] = {
            "direction": fields.choice("direction", WAYS, "both"),
            "opcode": fields.text("opcode"),
            "service": fields.text("service"),
            "management": fields.take("management", bool, "true or false"),
            "management_class": fields.number("management_class", 0, 0xFF),
            "acknowledgements": fields.take("acknowledgements", bool, "true or false") is not False,
        }
        seconds = fields.fraction("seconds", MAX_SECONDS)
        packets, snap_bytes = (
            fields.number("packets", 1, 1 << 62),
            fields.number("snap_bytes", LEAST_SNAP_BYTES, 1 << 16),
        )
        both_ends, records = fields.flag("both_ends"), fields.flag("records")
        fields.end()
        try:
            limits = CaptureLimits(packets, seconds, snap_bytes)
            only = CaptureFilter(lids=lids, qpns=qpns, **settings)
            choice = CaptureChoice(ports or None, both_ends, records, only, limits)
            self._fabric.check_capture(choice)
        except ValueError as error:
            raise _Refused(str(error)) from error
        except KeyError as error:
            raise _Refused(
                f"there is no port {_quoted(error.args[0])}; name a card, a port such as leaf1/3, a node, or all"
            ) from error
        return choice

    def _capture_stop(self, fields: _Fields) -> dict[str, Any]:
        fields.end()
        capture, self._capture = self._capture, None
        if capture is None:
            raise _Refused("no capture was started by an order")
        capture.stop()
        return _told(capture)
