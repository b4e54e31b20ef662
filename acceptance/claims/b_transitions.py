"""Claims B16 and B17: the whole matrix of transitions, from user space, against the table of the specification.

The table below is that of the required and optional attributes of volume 1, 11.2.5.2, for five services. Every call
is made from the state that it starts from; ib_modify_qp_is_ok is traced meanwhile, so that its answer, the driver's
and the table's can be compared call by call.
"""

from __future__ import annotations

import enum
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from acceptance.claims.bench import Bench, Result
from acceptance.claims.framework import Findings, claim
from acceptance.claims.trace import Probe
from acceptance.claims.verdict import Verdict

STATES: Final = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
_GUEST_FILE: Final = "/tmp/b16.json"


class Attr(enum.IntFlag):
    """Bits of the attribute mask of modify_qp."""

    STATE = 1 << 0
    CUR_STATE = 1 << 1
    EN_SQD_ASYNC_NOTIFY = 1 << 2
    ACCESS_FLAGS = 1 << 3
    PKEY_INDEX = 1 << 4
    PORT = 1 << 5
    QKEY = 1 << 6
    AV = 1 << 7
    PATH_MTU = 1 << 8
    TIMEOUT = 1 << 9
    RETRY_CNT = 1 << 10
    RNR_RETRY = 1 << 11
    RQ_PSN = 1 << 12
    MAX_QP_RD_ATOMIC = 1 << 13
    ALT_PATH = 1 << 14
    MIN_RNR_TIMER = 1 << 15
    SQ_PSN = 1 << 16
    MAX_DEST_RD_ATOMIC = 1 << 17
    PATH_MIG_STATE = 1 << 18
    CAP = 1 << 19
    DEST_QPN = 1 << 20


class Service(enum.Flag):
    """Service types, to be combined in rules."""

    RC = enum.auto()
    UC = enum.auto()
    UD = enum.auto()
    XRC_SEND = enum.auto()
    XRC_RECV = enum.auto()


S = Service
_NUMBERS: Final = {"2": "RC", "3": "UC", "4": "UD", "9": "XRC_SEND", "10": "XRC_RECV"}
_ALL: Final = S.RC | S.UC | S.UD | S.XRC_SEND | S.XRC_RECV
_CONNECTED: Final = S.RC | S.UC | S.XRC_SEND | S.XRC_RECV
_RELIABLE: Final = S.RC | S.XRC_SEND | S.XRC_RECV
_ASKS: Final = S.RC | S.XRC_SEND
_ANSWERS: Final = S.RC | S.XRC_RECV


class Rule(NamedTuple):
    """A transition: what it requires and what else it may carry, each with the services that this holds for."""

    required: dict[Attr, Service]
    optional: dict[Attr, Service]
    services: Service = _ALL


_ONCE_CONNECTED: Final = {
    Attr.CUR_STATE: _ALL,
    Attr.QKEY: S.UD,
    Attr.ALT_PATH: _CONNECTED,
    Attr.ACCESS_FLAGS: _CONNECTED,
    Attr.PATH_MIG_STATE: _CONNECTED,
    Attr.MIN_RNR_TIMER: _ANSWERS,
}
_INITIAL: Final = {Attr.PKEY_INDEX: _ALL, Attr.PORT: _ALL, Attr.QKEY: S.UD, Attr.ACCESS_FLAGS: _CONNECTED}

RULES: Final[dict[tuple[str, str], Rule]] = {
    ("RESET", "RESET"): Rule({}, {}),
    ("RESET", "INIT"): Rule(_INITIAL, {}),
    ("INIT", "INIT"): Rule({}, _INITIAL),
    ("INIT", "RTR"): Rule(
        {
            Attr.AV: _CONNECTED,
            Attr.PATH_MTU: _CONNECTED,
            Attr.DEST_QPN: _CONNECTED,
            Attr.RQ_PSN: _CONNECTED,
            Attr.MAX_DEST_RD_ATOMIC: _ANSWERS,
            Attr.MIN_RNR_TIMER: _ANSWERS,
        },
        {Attr.PKEY_INDEX: _ALL, Attr.QKEY: S.UD, Attr.ALT_PATH: _CONNECTED, Attr.ACCESS_FLAGS: _CONNECTED},
    ),
    ("RTR", "RTS"): Rule(
        {
            Attr.SQ_PSN: _ALL,
            Attr.TIMEOUT: _RELIABLE,
            Attr.RETRY_CNT: _ASKS,
            Attr.RNR_RETRY: _ASKS,
            Attr.MAX_QP_RD_ATOMIC: _ASKS,
        },
        _ONCE_CONNECTED,
    ),
    ("RTS", "RTS"): Rule({}, _ONCE_CONNECTED),
    ("RTS", "SQD"): Rule({}, {Attr.EN_SQD_ASYNC_NOTIFY: _ALL}),
    ("SQE", "RTS"): Rule({}, {Attr.CUR_STATE: S.UC | S.UD, Attr.QKEY: S.UD, Attr.ACCESS_FLAGS: S.UC}),
    **{(state, "RESET"): Rule({}, {}) for state in STATES[1:]},
    **{(state, "ERR"): Rule({}, {}) for state in STATES[1:]},
}
#: Attributes that the kernel's user interface takes out of a mask before anybody looks: they mean nothing for XRC.
_TAKEN_OUT: Final = {
    S.XRC_SEND: Attr.MAX_DEST_RD_ATOMIC | Attr.MIN_RNR_TIMER,
    S.XRC_RECV: Attr.MAX_QP_RD_ATOMIC | Attr.RETRY_CNT | Attr.RNR_RETRY,
}
#: SQD cannot be reached with mlx5 (claim B13); SQE exists for unreliable services only.
SOURCES: Final = ("RESET", "INIT", "RTR", "RTS", "SQE", "ERR")


def masks(service: Service, source: str, target: str) -> tuple[Attr, Attr] | None:
    """(required, optional) of a transition, None if there is none."""
    rule = RULES.get((source, target))
    if rule is None:
        return None
    required, optional = Attr(0), Attr(0)
    for attr, services in rule.required.items():
        required |= attr if services & service else Attr(0)
    for attr, services in rule.optional.items():
        optional |= attr if services & service else Attr(0)
    return required, optional


def allowed(service: Service, source: str, target: str, mask: Attr) -> bool:
    """What the table says of one call."""
    found = masks(service, source, target)
    if found is None:
        return False
    required, optional = found
    return required & ~mask == 0 and mask & ~(required | optional | Attr.STATE) == 0


@dataclass(slots=True, frozen=True)
class Call:
    """One call of modify_qp."""

    service: Service
    source: str
    target: str
    mask: Attr

    @property
    def effective(self) -> Attr:
        """The mask that reaches the core."""
        return self.mask & ~_TAKEN_OUT.get(self.service, Attr(0))

    def __str__(self) -> str:
        names = "|".join(str(attr.name) for attr in Attr if attr & self.mask)
        return f"{self.service.name} {self.source}->{self.target} {names}"


def calls() -> Iterator[Call]:
    """Every pair of states with: all that is required, one of it missing each time, one more each time."""
    everything = Attr(sum(Attr))
    for service in Service:
        for source in SOURCES:
            if source == "SQE" and not service & (S.UC | S.UD):
                continue
            for target in STATES:
                found = masks(service, source, target)
                base = Attr.STATE | (found[0] if found is not None else Attr(0))
                variants = [base, Attr.STATE, everything]
                variants += [base ^ attr for attr in Attr if attr is not Attr.STATE]
                for mask in dict.fromkeys(variants):
                    yield Call(service, source, target, mask)


_PROBES: Final = (
    Probe("decides", "ib_modify_qp_is_ok", "cur=$arg1:s32 next=$arg2:s32 type=$arg3:s32 mask=$arg4:u32"),
    Probe("ok", "ib_modify_qp_is_ok", "ok=$retval:u8", on_return=True),
)


def carry_out(bench: Bench, work: list[Call]) -> Result:
    """Make calls in the first guest."""
    required = {
        str(service.name): {
            after: int(Attr.STATE | (masks(service, before, after) or (Attr(0),))[0])
            for before, after in itertools.pairwise(STATES[:4])
        }
        for service in Service
    }
    cases = [[call.service.name, call.source, call.target, int(call.mask)] for call in work]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cases.json")
        path.write_text(json.dumps({"required": required, "cases": cases}))
        bench.guest(0).copy_in(path, _GUEST_FILE)
    return bench.script("claims/b16.py", "--cases", _GUEST_FILE, timeout_s=900, quiet=True)


def _summary(work: list[Call], outcomes: list[str | None]) -> str:
    """The matrix as text: for each pair of states, calls taken and refused."""
    lines = []
    for service in Service:
        for source in SOURCES:
            cells = []
            for target in STATES:
                chosen = [
                    outcome
                    for call, outcome in zip(work, outcomes, strict=True)
                    if (call.service, call.source, call.target) == (service, source, target)
                ]
                taken = chosen.count(None)
                cells.append(f"{target} {taken}/{len(chosen)}")
            lines.append(f"{service.name} {source}: " + ", ".join(cells))
    return "\n".join(lines)


@claim("B16", "transitions happen only by ib_modify_qp, each with its required attributes; ib_modify_qp_is_ok decides")
def b16(bench: Bench) -> Verdict:
    """Every pair of states with every attribute missing or added, for five services; the core's answer is traced."""
    work = list(calls())
    with bench.trace(_PROBES, quiet=True, buffer_kib=16384) as trace:
        seen = carry_out(bench, work)
    outcomes: list[str | None] = seen["outcomes"]
    bench.record("g0", f"guest-tests/claims/b16.py: {len(work)} calls (taken/made)", _summary(work, outcomes))
    bench.record("g0", "how the calls ended", dict(Counter(str(outcome) for outcome in outcomes)))
    asked: dict[tuple[str, int, int, int], bool] = {}
    for question, answer in zip(trace.named("decides"), trace.named("ok"), strict=False):
        fields = question.arguments
        key = (_NUMBERS.get(fields["type"], "?"), int(fields["cur"]), int(fields["next"]), int(fields["mask"]))
        asked[key] = answer.arguments["ok"] not in ("0", "0x0")
    bench.record(
        "g0", "trace of ib_modify_qp_is_ok", f"{len(trace.named('decides'))} calls, {len(asked)} different ones"
    )
    found = Findings()
    _judge(found, work, outcomes, asked)
    found.check("a refused call changes no state", not seen["moved"], f"{seen['moved'][:5]}")
    before, after = seen["by_itself"]
    found.check(
        "a state changes by modify_qp only",
        before == after,
        f"an error moves a queue pair without any modify_qp: {before} -> {after} by a send with a wrong lkey (and"
        " RTS -> SQE on UC and UD)",
    )
    return found.verdict(f"{len(work)} calls for five services end as the table of the specification says")


def _judge(
    found: Findings, work: list[Call], outcomes: list[str | None], asked: dict[tuple[str, int, int, int], bool]
) -> None:
    """Compare three answers for each call: the table's, the core's, what user space got."""
    untrue, overruled, stricter, missed = [], [], Counter[str](), 0
    for call, outcome in zip(work, outcomes, strict=True):
        if outcome == "unreached":
            missed += 1
            continue
        key = (str(call.service.name), STATES.index(call.source), STATES.index(call.target), int(call.effective))
        core = asked.get(key)
        if core is not None and core != allowed(call.service, call.source, call.target, call.effective):
            untrue.append(f"{call}: core {core}")
        if core is False and outcome is None:
            overruled.append(str(call))
        elif core is True and outcome is not None:
            stricter[_why(call, outcome)] += 1
        elif core is None and outcome is None:
            overruled.append(f"{call} (the core was not asked)")
    found.note(
        "The user interface takes attributes out of the mask that XRC has no use for (min_rnr_timer of an initiator,"
        " retry_cnt of a target, ...) before the core is asked: they are neither refused nor needed"
    )
    found.check("every state was reached", not missed, f"{missed} calls could not be made")
    found.check(
        f"ib_modify_qp_is_ok answers as the table does: {len(asked)} different calls",
        asked and not untrue,
        f"{len(untrue)} answers differ: {'; '.join(untrue[:6])}",
    )
    found.check(
        "what ib_modify_qp_is_ok refuses is refused, also when a single attribute is missing or too much",
        not overruled,
        f"{len(overruled)} calls were taken all the same: {'; '.join(overruled[:6])}",
    )
    found.check(
        "what ib_modify_qp_is_ok allows is carried out",
        not stricter,
        "ib_modify_qp_is_ok has the first word, not the last: the mlx5 driver refuses some of what it allows: "
        + "; ".join(f"{what} ({count} calls)" for what, count in sorted(stricter.items())),
    )


def _why(call: Call, outcome: str) -> str:
    """A name for calls that the core allows and the driver does not."""
    if call.target == "SQD":
        return f"RTS->SQD: {outcome}, it has no such transition"
    return (
        f"{call.service.name} {call.source}->{call.target} with "
        + "|".join(str(attr.name) for attr in Attr if attr & call.mask & ~Attr.STATE)
        + f": {outcome}"
    )


_NAMED: Final = {
    "RTR": Attr.DEST_QPN | Attr.RQ_PSN | Attr.PATH_MTU,
    "RTS": Attr.TIMEOUT | Attr.RETRY_CNT | Attr.SQ_PSN,
}
_BEFORE: Final = {"RTR": "INIT", "RTS": "RTR"}


@claim("B17", "RTR needs dest_qp_num, rq_psn, path MTU; RTS needs timeout, retry count, sq_psn")
def b17(bench: Bench) -> Verdict:
    """INIT to RTR and RTR to RTS on RC, UC and UD, each time without one attribute."""
    work = [
        Call(service, _BEFORE[target], target, call_mask)
        for service in (S.RC, S.UC, S.UD)
        for target in ("RTR", "RTS")
        for call_mask in _without_each(service, target)
    ]
    outcomes: list[str | None] = carry_out(bench, work)["outcomes"]
    bench.record(
        "g0", "guest-tests/claims/b16.py", "\n".join(f"{c}: {o or 'ok'}" for c, o in zip(work, outcomes, strict=True))
    )
    found = Findings()
    needs: dict[tuple[Service, str], Attr] = {}
    for call, outcome in zip(work, outcomes, strict=True):
        full = masks(call.service, call.source, call.target)
        assert full is not None
        missing = full[0] & ~call.mask
        if missing:
            needs[call.service, call.target] = needs.get((call.service, call.target), Attr(0)) | (
                missing if outcome == "EINVAL" else Attr(0)
            )
        else:
            found.check(f"{call.service.name} {call.target}: with all of them it works", outcome is None, str(outcome))
    for target, named in _NAMED.items():
        real = needs[S.RC, target]
        found.check(
            f"RC {target}: {_names(named)} are needed",
            named & ~real == 0,
            f"RC {target} works without {_names(named & ~real)}",
        )
        found.note(f"RC {target} needs {_names(real & ~named)} too")
    for service in (S.UC, S.UD):
        for target in ("RTR", "RTS"):
            real = needs.get((service, target), Attr(0))
            found.note(f"{service.name} {target} needs {_names(real) or 'nothing'}")
    return found.verdict("on RC each of the named attributes is needed: without it modify_qp answers EINVAL")


def _without_each(service: Service, target: str) -> list[Attr]:
    found = masks(service, _BEFORE[target], target)
    assert found is not None
    full = found[0] | Attr.STATE
    return [full, *(full ^ attr for attr in Attr if attr & found[0])]


def _names(mask: Attr) -> str:
    return ", ".join(str(attr.name) for attr in Attr if attr & mask)
