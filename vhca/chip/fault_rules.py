"""Rules of what goes wrong inside a card: one line of words each, such as `command CREATE_MKEY nth=3 status=LIM_ERR`.

A rule says what it is about, which of those it hits, and what happens to them. It knows nothing of how that is done.
docs/faults.md has the language; whatever is not in it is refused with an error that says what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import IntEnum
from fnmatch import fnmatchcase
from random import Random
from typing import Final

from vhca.chip.card_records import KEPT_BYTES, layouts_of
from vhca.fabric import quantities
from vhca.layout import Layout
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.cmd.common import BareIn
from vhca.wire.connectx.cqe import Cqe64, CqeOpcode, CqeSyndrome
from vhca.wire.connectx.eqe import DATA_LAYOUTS, EventType
from vhca.wire.connectx.init_segment import HealthBuffer

MOST_CHARACTERS: Final = 500
MOST_LATE_NS: Final = 600 * 10**9
"""Drivers give up on a command after a minute."""
MOST_TIME_NS: Final = 24 * 3600 * 10**9
EVER: Final = 1 << 62
_SELECTION: Final = ("nth", "skip", "limit", "probability", "seed", "from", "until")

_WINDOW: Final = ("from", "until")

Span = tuple[int, int]
"""The least and the largest value that fit."""


class FaultRuleError(ValueError):
    """There cannot be such a rule; the text says why, and what there is."""


@dataclass(slots=True)
class FaultRule:
    """One rule; :func:`parse_rule` makes it.

    :ivar text: the rule as it was given.
    :ivar kind: what it is about: "command", "event", ...
    :ivar codes: which of those: opcodes, event types, opcodes of completions; None: any.
    :ivar match: least and largest value of fields, all of which must fit.
    :ivar action: what happens, and `value`, `extra` how.
    :ivar seen: how many fitted; of what happens at a time: whether it has begun.
    :ivar hits: how many of those it hit.
    :ivar number: of the rule in its card; 0 before it has one.
    """

    text: str
    kind: str
    codes: frozenset[int] | None = None
    match: dict[str, Span] = field(default_factory=dict)
    action: str = ""
    value: int = 0
    extra: dict[str, int] = field(default_factory=dict)
    nth: int | None = None
    skip: int = 0
    limit: int | None = None
    probability: float = 1.0
    seed: int = 0
    from_ns: int = 0
    until_ns: int = EVER
    number: int = 0
    seen: int = 0
    hits: int = 0
    since_ns: int = 0
    _random: Random | None = field(default=None, repr=False)

    @property
    def begins_ns(self) -> int:
        """When it begins, by the card's clock."""
        return self.since_ns + self.from_ns

    @property
    def ends_ns(self) -> int:
        """When it ends, by the card's clock."""
        return self.since_ns + self.until_ns

    def begin(self, number: int, now_ns: int) -> None:
        """It belongs to a card, where it is known by a number, from now on."""
        self.number, self.since_ns = number, now_ns
        self._random = Random(self.seed)

    @property
    def timed(self) -> bool:
        """Tell whether it is about something that happens at a time, not whenever something else does."""
        return self.kind in TIMED

    def strikes(self, now_ns: int) -> bool:
        """Count what fits; tell whether it is hit."""
        if not self.begins_ns <= now_ns < self.ends_ns:
            return False
        self.seen += 1
        if self.nth is not None:
            hit = self.seen == self.nth
        else:
            hit = self.seen > self.skip and (self.limit is None or self.hits < self.limit)
            if hit and self.probability < 1.0 and self._random is not None:
                hit = self._random.random() < self.probability
        self.hits += hit
        return hit

    def fits(self, code: int, value_of: Callable[[str], int]) -> bool:
        """Tell whether it is about something with this code and these values."""
        return (self.codes is None or code in self.codes) and all(
            low <= value_of(name) <= high for name, (low, high) in self.match.items()
        )


@dataclass(frozen=True, slots=True)
class _Kind:
    """What rules of one kind can say: names of what they are about, fields, and words that are actions."""

    codes: type[IntEnum] | None
    fields: Callable[[frozenset[int] | None], Mapping[str, int]]
    actions: Mapping[str, Callable[[FaultRule, str], None]]
    selection: tuple[str, ...]
    example: str
    more: Mapping[str, int] = field(default_factory=dict)
    more_of: str = ""
    """Further words of this one action, with their widths in bits."""


def parse_rule(text: str) -> FaultRule:
    """The rule that a line means.

    :raises FaultRuleError: it means none.
    """
    if len(text) > MOST_CHARACTERS:
        raise FaultRuleError(f"a rule has at most {MOST_CHARACTERS} characters, this one has {len(text)}")
    words = text.split()
    if not words or words[0] not in KINDS:
        what = f"{_short(words[0])} is nothing that a rule can be about" if words else "the rule is empty"
        raise FaultRuleError(f"{what}; a rule begins with {_listed(KINDS)}, as in: {KINDS['command'].example}")
    kind = KINDS[words[0]]
    rule = FaultRule(" ".join(words), words[0])
    rest = words[1:]
    if kind.codes is not None and rest and "=" not in rest[0] and rest[0] not in kind.actions:
        rule.codes = _codes(rule.kind, kind.codes, rest.pop(0))
    known = kind.fields(rule.codes)
    given: dict[str, str] = {}
    for word in rest:
        name, _, value = word.partition("=")
        if name in given:
            raise FaultRuleError(f"{name} is there twice")
        given[name] = value
    for name, value in given.items():
        if name in kind.actions:
            _act(rule, kind, name, value)
        elif name in kind.selection:
            _select(rule, name, value)
        elif name in known:
            rule.match[name] = _span(name, value, known[name])
        elif name in kind.more:
            rule.extra[name] = _number(name, value, kind.more[name])
        else:
            raise FaultRuleError(_unknown(rule, kind, name, known))
    _check(rule, kind, [name for name in given if name in kind.more])
    return rule


# ---- words that all kinds have ----


def _select(rule: FaultRule, name: str, value: str) -> None:
    if name in ("nth", "limit"):
        setattr(rule, name, _number(name, value, 48, least=1))
    elif name in ("skip", "seed"):
        setattr(rule, name, _number(name, value, 48))
    elif name == "probability":
        try:
            rule.probability = float(value)
        except ValueError:
            rule.probability = -1.0
        if not 0 <= rule.probability <= 1:
            raise FaultRuleError(f"probability={_short(value)}: give a number from 0 to 1, such as probability=0.01")
    elif name == "from":
        rule.from_ns = _time(name, value, MOST_TIME_NS)
    else:
        rule.until_ns = _time(name, value, MOST_TIME_NS)


def _act(rule: FaultRule, kind: _Kind, name: str, value: str) -> None:
    if rule.action:
        raise FaultRuleError(f"{rule.action} and {name}: a rule does one thing; make another rule for the other")
    rule.action = name
    kind.actions[name](rule, value)


def _check(rule: FaultRule, kind: _Kind, more: list[str]) -> None:
    if not rule.action:
        raise FaultRuleError(
            f"what shall happen?  A rule for {rule.kind} has one of {_listed(kind.actions)}, as in: {kind.example}"
        )
    if rule.nth is not None and (rule.skip or rule.limit is not None or rule.probability < 1):
        raise FaultRuleError("nth says which one is hit: skip, limit and probability do not go with it")
    if rule.from_ns >= rule.until_ns:
        raise FaultRuleError("until is a time behind from; both are counted from when the rule is made")
    if more and rule.action != kind.more_of:
        raise FaultRuleError(f"{more[0]} goes with {kind.more_of}, not with {rule.action}")


def _unknown(rule: FaultRule, kind: _Kind, name: str, known: Mapping[str, int]) -> str:
    there = [*known, *kind.selection, *kind.actions, *kind.more]
    near = get_close_matches(name, there, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    fields = f"it can be told by {_listed(known)}; " if known else ""
    return (
        f"a rule for {rule.kind} knows no {_short(name)}{hint}; {fields}chosen by {_listed(kind.selection)};"
        f" what happens: {_listed((*kind.actions, *kind.more))}"
    )


# ---- values ----


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _number(name: str, text: str, bits: int, least: int = 0) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        raise FaultRuleError(f"{name}={_short(text)}: give a number, decimal or as 0x4b") from None
    if not least <= value < 1 << bits:
        raise FaultRuleError(f"{name}={_short(text)}: it is {least} to {(1 << bits) - 1:#x}")
    return value


def _span(name: str, text: str, bits: int) -> Span:
    low, dots, high = text.partition("..")
    least = _number(name, low, bits)
    most = _number(name, high, bits) if dots else least
    if least > most:
        raise FaultRuleError(f"{name}={_short(text)}: the second number is the larger one")
    return least, most


def _time(name: str, text: str, most_ns: int) -> int:
    try:
        return quantities.time(text, most_ns)
    except ValueError as error:
        raise FaultRuleError(f"{name}={error}") from None


def _codes(kind: str, names: type[IntEnum], text: str) -> frozenset[int] | None:
    """The codes that a list of names means: `CREATE_CQ,CREATE_QP`, `DESTROY_*`, `0x500`, `any`."""
    found: set[int] = set()
    for part in text.split(","):
        if part.lower() == "any":
            return None
        found |= {_number(kind, part, 16)} if part[:1].isdigit() else _named(kind, names, part)
    return frozenset(found)


def _named(kind: str, names: type[IntEnum], text: str) -> set[int]:
    wanted = text.upper()
    found = {int(code) for code in names if fnmatchcase(code.name, wanted)}
    if not found:
        near = get_close_matches(wanted, [code.name for code in names], 3)
        hint = f"did you mean {_listed(near)}?" if near else f"there are {_listed(code.name for code in names)}"
        raise FaultRuleError(f"no {kind} is called {_short(text)}; {hint}  Also any, numbers, and names with *")
    return found


def _code(kind: str, names: type[IntEnum], text: str, bits: int) -> int:
    """One code, by its name or its number."""
    if text[:1].isdigit():
        return _number(kind, text, bits)
    found = _named(kind, names, text)
    if len(found) > 1:
        raise FaultRuleError(f"{kind}={_short(text)} means {len(found)} of them: name one")
    return found.pop()


def _integers(layout: type[Layout], most_bytes: int = 1 << 20) -> dict[str, int]:
    """The numbers in a structure, as far as so many bytes go, with their widths in bits."""
    return {item.name: item.width for item in layout.fields() if item.is_integer and item.end <= 8 * most_bytes}


def _common(layouts: Iterable[type[Layout]]) -> dict[str, int]:
    """The numbers that all of these structures have."""
    found: dict[str, int] | None = None
    for layout in layouts:
        here = _integers(layout, KEPT_BYTES)
        found = here if found is None else {name: max(bits, here[name]) for name, bits in found.items() if name in here}
    return found or {}


# ---- what there is for each kind ----


def command_layout(opcode: int) -> type[Layout]:
    """The input of a command as far as it is declared, at least what all commands have."""
    try:
        return layouts_of(Op(opcode).name)[0] or BareIn
    except ValueError:
        return BareIn


def event_layout(event_type: int) -> type[Layout] | None:
    """What an event of this type tells, if it is declared."""
    try:
        return DATA_LAYOUTS.get(EventType(event_type))
    except ValueError:
        return None


def _command_fields(codes: frozenset[int] | None) -> dict[str, int]:
    return _common([BareIn] if codes is None else [command_layout(code) for code in codes])


def _event_fields(codes: frozenset[int] | None) -> dict[str, int]:
    layouts = [event_layout(code) for code in codes or ()]
    data = _common([layout for layout in layouts if layout is not None]) if all(layouts) else {}
    return {"eqn": 8, "sub_type": 8} | data


def _completion_fields(_: frozenset[int] | None) -> dict[str, int]:
    return {"cqn": 24} | {name: bits for name, bits in _integers(Cqe64).items() if name not in _SET_BY_THE_QUEUE}


def _no_fields(_: frozenset[int] | None) -> dict[str, int]:
    return {}


def _interrupt_fields(_: frozenset[int] | None) -> dict[str, int]:
    return {"vector": 11}


def _none(rule: FaultRule, value: str) -> None:
    if value:
        raise FaultRuleError(f"{rule.action} takes no value")


def _late(rule: FaultRule, value: str) -> None:
    rule.value = _time("late", value, MOST_LATE_NS)


def _status(rule: FaultRule, value: str) -> None:
    rule.value = _code("status", Status, value, 8)
    if not rule.value:
        raise FaultRuleError("status=0 is success: give another one, such as status=NO_RES_ERR")


def _type(rule: FaultRule, value: str) -> None:
    rule.value = _code("type", EventType, value, 8)


def _syndrome(rule: FaultRule, value: str) -> None:
    rule.value = _code("syndrome", CqeSyndrome, value, 8)


def _flip(rule: FaultRule, value: str) -> None:
    """Which field of a completion, and which bits of it."""
    name, _, mask = value.partition(":")
    fields = {name: bits for name, bits in _integers(Cqe64).items() if name != "owner"}
    if name not in fields:
        raise FaultRuleError(f"flip={_short(value)}: a completion has no such field; it has {_listed(fields)}")
    rule.extra[name] = _number("flip", mask, fields[name], least=1) if mask else 1


def _flip_told(rule: FaultRule, value: str) -> None:
    """Which field of what an event tells, and which bits of it."""
    name, _, mask = value.partition(":")
    fields = {name: bits for name, bits in _event_fields(rule.codes).items() if name not in ("eqn", "sub_type")}
    if name not in fields:
        there = f"it has {_listed(fields)}" if fields else "name a type of event that tells something"
        raise FaultRuleError(f"flip={_short(value)}: such an event has no such field; {there}")
    rule.extra[name] = _number("flip", mask, fields[name], least=1) if mask else 1


def _damage(rule: FaultRule, value: str) -> None:
    """Which byte, and which bits of it."""
    at, _, mask = value.partition(":")
    rule.value = _number("damage", at, 20)
    rule.extra["mask"] = _number("damage", mask, 8, least=1) if mask else 0xFF


def _health(rule: FaultRule, value: str) -> None:
    """A syndrome of the health buffer; its other fields are words of their own."""
    rule.extra["synd"] = _number("synd", value, 8, least=1)


def _dma_fields(_: frozenset[int] | None) -> dict[str, int]:
    return {"addr": 64, "size": 32}


_HEALTH: Final = {
    name: bits for name, bits in _integers(HealthBuffer).items() if name not in ("synd", "severity_valid", "fw_ver")
}
TIMED: Final = ("health", "card", "link")
"""Kinds that happen at a time."""
_SET_BY_THE_QUEUE: Final = ("opcode", "owner", "signature")
_ENTRY: Final = {"lost": _none, "late": _late, "twice": _none}

KINDS: Final[dict[str, _Kind]] = {
    "command": _Kind(
        Op,
        _command_fields,
        _ENTRY | {"status": _status, "damage": _damage},
        _SELECTION,
        "command CREATE_MKEY nth=3 status=NO_RES_ERR syndrome=0x1234",
        {"syndrome": 32},
        "status",
    ),
    "event": _Kind(
        EventType,
        _event_fields,
        _ENTRY | {"type": _type, "flip": _flip_told},
        _SELECTION,
        "event PORT_CHANGE nth=1 lost",
    ),
    "completion": _Kind(
        CqeOpcode,
        _completion_fields,
        _ENTRY | {"syndrome": _syndrome, "flip": _flip},
        _SELECTION,
        "completion REQ qpn=0x4b nth=3 syndrome=REMOTE_ACCESS_ERR",
        {"vendor_error_syndrome": 8},
        "syndrome",
    ),
    "interrupt": _Kind(
        None, _interrupt_fields, {"lost": _none, "late": _late}, _SELECTION, "interrupt vector=2 nth=5 lost"
    ),
    "dma": _Kind(
        None, _dma_fields, {"fail": _none, "stale": _none, "damage": _damage}, _SELECTION, "dma size=64 nth=100 fail"
    ),
    "health": _Kind(
        None, _no_fields, {"stop": _none, "synd": _health}, _WINDOW, "health synd=1 rfr=1 severity=3 from=5s",
        _HEALTH, "synd",
    ),
    "card": _Kind(None, _no_fields, {"removed": _none}, _WINDOW, "card removed from=5s until=15s"),
    "link": _Kind(None, _no_fields, {"untrained": _none}, _WINDOW, "link untrained from=1s until=10s"),
}  # fmt: skip
"""What rules can be about."""
