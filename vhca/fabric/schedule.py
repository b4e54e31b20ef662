"""Schedules: what happens to which cables when, as TOML, and carried out by the fabric's clock.

Each event happens `at` a time behind the start, `every` so long again, `times` in all, up to `jitter` later each time,
by chance that the seed decides; what lasts `for` a time is undone then. docs/fabric.md shows one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal, get_args

from vhca.fabric import quantities
from vhca.fabric.cables import Cables
from vhca.fabric.faults import ACTIONS, DIRECTIONS, Action, Direction, Fault
from vhca.fabric.line import MAX_LATENCY_NS, PLAIN, LineConfig
from vhca.fabric.link import CallLater
from vhca.toml_files import read_toml

MAX_EVENTS: Final = 1000
MAX_BYTES: Final = 1 << 20
LEAST_EVERY_NS: Final = 1_000_000

What = Literal["down", "up", "disable", "enable", "set", "clear", "drop", "duplicate", "reorder", "corrupt", "delay"]
"""Pull, plug, disable or enable a cable, set what it takes, clear its rules, or make a rule."""

_UNDONE: Final = ("down", "disable", "set", *ACTIONS)
_RULE: Final[dict[str, tuple[type, ...]]] = {
    "opcode": (str,),
    "dest_qp": (int,),
    "psn": (int,),
    "nth": (int,),
    "skip": (int,),
    "limit": (int,),
    "probability": (int, float),
    "management": (bool,),
}


class ScheduleError(Exception):
    """There is no such schedule; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to a cable.

    :ivar lasts_ns: when it is undone; None: never.
    :ivar every_ns: after which time it happens again; None: it does not.
    :ivar times: how often in all; None: without end.
    :ivar line: of action "set". :ivar rule: fields of :class:`vhca.fabric.faults.Fault`, of its actions.
    """

    at_ns: int
    cable: str
    action: What
    lasts_ns: int | None = None
    every_ns: int | None = None
    times: int | None = None
    jitter_ns: int = 0
    line: LineConfig = PLAIN
    rule: dict[str, Any] = field(default_factory=dict)
    direction: Direction = "both"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Events, and the seed of what is chance among their times."""

    events: tuple[Event, ...]
    seed: int = 0


def read(text: str) -> Schedule:
    """The schedule that a TOML text describes.

    :raises ScheduleError: it describes none; the error says which event is wrong.
    """
    if len(text) > MAX_BYTES:
        raise ScheduleError(f"more than {MAX_BYTES} characters")
    try:
        document = read_toml(text)
    except ValueError as error:
        raise ScheduleError(f"not TOML: {error}") from error
    seed = document.pop("seed", 0)
    tables = document.pop("event", [])
    if type(seed) is not int:
        raise ScheduleError("seed: give a whole number")
    for key in document:
        raise ScheduleError(f"{key[:80]!r} means nothing here; there are seed, and tables called event")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ScheduleError("event is no array of tables; begin each with [[event]]")
    if not 0 < len(tables) <= MAX_EVENTS:
        raise ScheduleError(f"{len(tables)} events: give 1 to {MAX_EVENTS}, each beginning with [[event]]")
    events = []
    for number, table in enumerate(tables, 1):
        try:
            events.append(_event(table))
        except ValueError as error:
            raise ScheduleError(f"event {number}: {error}") from error
    return Schedule(tuple(events), seed)


def _event(table: dict[str, Any]) -> Event:
    at_ns, lasts_ns, every_ns, jitter_ns = (_time(table, name) for name in ("at", "for", "every", "jitter"))
    cable, action = _take(table, "cable", str), _take(table, "action", str)
    times = _take(table, "times", int)
    if at_ns is None or cable is None or action is None:
        raise ValueError("an event needs at, cable and action")
    if action not in get_args(What):
        raise ValueError(f"action {action[:80]!r}: there are {', '.join(get_args(What))}")
    if every_ns is not None and every_ns < LEAST_EVERY_NS:
        raise ValueError(f"every: give {quantities.told_time(LEAST_EVERY_NS)} at least")
    if times is not None and (times < 1 or every_ns is None):
        raise ValueError("times counts from 1, and goes with every")
    if lasts_ns is not None and action not in _UNDONE:
        raise ValueError(f"for: {action} is not undone")
    line = PLAIN
    rule: dict[str, Any] = {}
    direction: Direction = "both"
    if action == "set":
        line = _line(table)
    elif action in ACTIONS:
        direction = table.pop("direction", "both")
        if direction not in DIRECTIONS:
            raise ValueError(f"direction: there are {', '.join(DIRECTIONS)}")
        rule = {name: value for name, kinds in _RULE.items() if (value := _take(table, name, *kinds)) is not None}
        if (delay_ns := _time(table, "delay")) is not None:
            rule["delay_ns"] = min(delay_ns, MAX_LATENCY_NS)
        if (action == "delay") != (delay_ns is not None):
            raise ValueError("delay says how long: it goes with action delay, which needs it")
        Fault(action, **rule)  # or ValueError
    for key in table:
        raise ValueError(f"{key[:80]!r} means nothing here")
    return Event(at_ns, cable, action, lasts_ns, every_ns, times, jitter_ns or 0, line, rule, direction)


def _line(table: dict[str, Any]) -> LineConfig:
    rate, latency_ns = _take(table, "rate", str), _time(table, "latency")
    errors = _take(table, "bit_error_rate", int, float)
    return LineConfig(0 if rate is None else quantities.rate(rate), latency_ns or 0, errors or 0.0)


def _take(table: dict[str, Any], name: str, *kinds: type) -> Any:
    value = table.pop(name, None)
    if value is not None and type(value) not in kinds:
        raise ValueError(f"{name} = {str(value)[:80]!r}: give {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def _time(table: dict[str, Any], name: str) -> int | None:
    value = table.pop(name, None)
    try:
        return None if value is None else quantities.time(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


class Player:
    """Carries a schedule out, from :meth:`start` until :meth:`stop` or its end.

    :ivar happened: events so far, those that were undone not counted again. :ivar left: whether there is more to come.
    """

    def __init__(self, schedule: Schedule, cables: Cables, call_later: CallLater, now_ns: Callable[[], int]) -> None:
        """:raises ScheduleError: a cable is not there."""
        self.happened = 0
        self._waiting = 0
        self._stopped = False
        self._schedule = schedule
        self._cables = cables
        self._call_later = call_later
        self._now_ns = now_ns
        for number, event in enumerate(schedule.events, 1):
            try:
                cables.end(event.cable)
                if event.direction in ("from_card", "to_card"):
                    cables.check_card(event.cable)
            except (KeyError, ValueError) as error:
                raise ScheduleError(f"event {number}: there is no such cable {event.cable[:80]!r}") from error

    @property
    def left(self) -> bool:
        """Whether there is more to come."""
        return self._waiting > 0

    def start(self) -> None:
        """From now on."""
        now = self._now_ns()
        for number, event in enumerate(self._schedule.events):
            # One of its own for each: what is inserted in a schedule leaves the times of others.
            self._plan(event, Random(f"{self._schedule.seed}/{number}"), now + event.at_ns)

    def stop(self) -> None:
        """No more of it; what is not undone yet stays."""
        self._stopped = True

    def _later(self, delay_ns: int, fn: Callable[[], None]) -> None:
        self._waiting += 1

        def due() -> None:
            self._waiting -= 1
            if not self._stopped:
                fn()

        self._call_later(delay_ns, due)

    def _plan(self, event: Event, random: Random, due_ns: int, number: int = 1) -> None:
        """Let it happen for the time `number`, which is due at a time; jitter comes on top and does not add up."""
        due = due_ns + random.randrange(event.jitter_ns + 1)

        def happen() -> None:
            self._happen(event)
            if event.every_ns is not None and (event.times is None or number < event.times):
                self._plan(event, random, due_ns + event.every_ns, number + 1)

        self._later(max(0, due - self._now_ns()), happen)

    def _happen(self, event: Event) -> None:
        self.happened += 1
        undo = self._do(event)
        if event.lasts_ns is not None and undo is not None:
            self._later(event.lasts_ns, undo)

    def _do(self, event: Event) -> Callable[[], None] | None:
        """Do it; gives what undoes it."""
        cables, name = self._cables, event.cable
        if event.action in ("down", "up"):
            cables.set_plugged(name, event.action == "up")
            return lambda: cables.set_plugged(name, True)
        if event.action in ("disable", "enable"):
            cables.set_disabled(name, event.action == "disable")
            return lambda: cables.set_disabled(name, False)
        if event.action == "set":
            before = cables.line(name)
            cables.set_line(name, event.line)
            return lambda: cables.set_line(name, before)
        if event.action == "clear":
            cables.clear_faults(name)
            return None
        action: Action = event.action  # type: ignore[assignment]
        fault = Fault(action, **event.rule)
        cables.add_fault(name, fault, event.direction)
        return lambda: cables.remove_fault(name, fault)
