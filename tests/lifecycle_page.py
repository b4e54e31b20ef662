"""The page about the life cycle of a queue pair, made from the firmware's table.

`python -m tests.lifecycle_page docs/qp-states.md` writes the page; `--check` writes nothing and exits with 1 if the
page does not say what the table says.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from firmware.model.qp import RST, ST_DCT, STATE_NAMES
from firmware.transport.attributes import COMMON_CHECKS
from firmware.transport.lifecycle import (
    EVERY,
    STATES,
    TRANSITIONS,
    Attribute,
    QpEvent,
    Services,
    Transition,
)
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.qpc import ServiceType

INTRODUCTION = """\
# The life cycle of a queue pair

This page is made from the table in `firmware/transport/lifecycle.py`; change that and run `make formats`.

States and commands have the device's names; verbs call RST *reset* and SQER *SQE*.  A transition happens by a command
of the driver, or by an event in the device: SEND_ERROR, ERROR and, for DC, CONNECT and DISCONNECT.
"""

TABLES = """\
## Transitions

*Required* attributes are taken from the command whatever its mask says, *optional* ones if the mask flags them; any
other flag is refused.  Services in brackets are those that an attribute is for, if it is not for all.  *Does* is what
the card does on the way, with them and by itself.

"""


def services(chosen: Services, among: Services = EVERY) -> str:
    """Names of services, empty if they are all."""
    if set(chosen) == set(among):
        return ""
    return ", ".join(ServiceType(service).name for service in chosen)


def cause(row: Transition) -> str:
    """The command or event of a row, with the services that it is for."""
    only = services(row.services)
    return f"{row.cause.name} ({only})" if only else row.cause.name


def everywhere(rows: Sequence[Transition]) -> dict[Op | QpEvent, int]:
    """Causes that lead from every state to one and the same, and that one: in a drawing they would hide the rest."""
    found = {}
    for reason in dict.fromkeys(row.cause for row in rows):
        same = [row for row in rows if row.cause is reason]
        if {row.source for row in same} == set(STATES) and len({row.target for row in same}) == 1:
            found[reason] = same[0].target
    return found


def unreachable() -> list[int]:
    """States that no chain of transitions leads to from RST."""
    reached = {RST}
    while more := {row.target for row in TRANSITIONS if row.source in reached} - reached:
        reached |= more
    return [state for state in STATES if state not in reached]


def diagram(rows: Sequence[Transition], first: str) -> Iterator[str]:
    """A drawing of these rows."""
    left_out = everywhere(rows)
    arrows: dict[tuple[int, int], list[str]] = {}
    for row in rows:
        if row.cause not in left_out:
            label = row.cause.name if row.services == (ST_DCT,) else cause(row)
            arrows.setdefault((row.source, row.target), []).append(label)
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {STATE_NAMES[RST]} : {first}"
    for (source, target), labels in arrows.items():
        yield f"    {STATE_NAMES[source]} --> {STATE_NAMES[target]} : {'<br>'.join(labels)}"
    yield "```"
    if left_out:
        ends = " and ".join(f"{reason.name} to {STATE_NAMES[target]}" for reason, target in left_out.items())
        yield ""
        yield f"Not drawn is what leads from every state: {ends}."


def attributes(row: Transition, optional: bool) -> str:
    """The required or the optional attributes of a row, each with its services if it is not for all."""
    chosen = row.optional if optional else row.required
    texts = []
    for attribute, which in chosen.items():
        only = services(which, row.services)
        texts.append(f"{attribute.name} ({only})" if only else attribute.name)
    return ", ".join(texts)


def refusals(row: Transition) -> str:
    """Why a command may be refused; what every command checks is told once."""
    own = [check.reason for check in row.checks if check not in COMMON_CHECKS]
    return "; ".join((["for the reasons above"] if row.checks else []) + own)


def steps(row: Transition) -> str:
    """What the card does, in sentences."""
    return " ".join((inspect.getdoc(step) or "").split("\n", 1)[0] for step in (*row.before, *row.after))


def table(rows: Iterable[Transition]) -> Iterator[str]:
    """The rows; those that differ in their source alone are one."""
    groups: dict[tuple[object, ...], list[Transition]] = {}
    for row in rows:
        same = (row.cause, row.target, row.services, attributes(row, False), attributes(row, True), row.checks,
                row.before, row.after)  # fmt: skip
        groups.setdefault(same, []).append(row)
    for group in groups.values():
        row = group[0]
        sources = ", ".join(STATE_NAMES[one.source] for one in group)
        yield f"### {sources} to {STATE_NAMES[row.target]}: {cause(row)}"
        yield ""
        if isinstance(row.cause, QpEvent):
            yield f"- When: {row.cause.value}."
        for title, text in (
            ("Required", attributes(row, False)),
            ("Optional", attributes(row, True)),
            ("Refused", refusals(row)),
            ("Does", steps(row)),
        ):
            if text:
                yield f"- {title}: {text}{'' if text.endswith('.') else '.'}"
        yield ""


def attribute_fields() -> Iterator[str]:
    """Which fields of the context an attribute stands for."""
    yield "| attribute | fields of the context | bit of `opt_param_mask` |"
    yield "|---|---|---|"
    for attribute in Attribute:
        names = ", ".join(f"`{name}`" for name in attribute.fields)
        yield f"| {attribute.name} | {names} | {'' if attribute.flag is None else attribute.flag.value} |"


def render() -> str:
    """The page."""
    own = [row for row in TRANSITIONS if row.services != (ST_DCT,)]
    dynamic = [row for row in TRANSITIONS if ST_DCT in row.services]
    never = " and ".join(STATE_NAMES[state] for state in unreachable())
    lines = [
        INTRODUCTION,
        *diagram(own, "CREATE_QP"),
        "",
        f"**No transition leads to {never}.**  Only a command RTS2SQD would, and the interface that the driver speaks",
        "does not have it.  What rows say of these states is therefore never done.",
        "",
        "The target's side of a DC connection is no queue pair of the host's; no command reaches it.",
        "",
        *diagram(dynamic, "a request for the target"),
        "",
        TABLES.rstrip("\n"),
        "",
        "All commands that configure a queue pair are refused for these reasons:",
        "",
        *(f"- {check.reason}" for check in COMMON_CHECKS),
        "",
        *table(TRANSITIONS),
        "## Attributes",
        "",
        *attribute_fields(),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or check it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.lifecycle_page", description="Write the life cycle's page.")
    parser.add_argument("page", type=Path, help="where the page lives, usually docs/qp-states.md")
    parser.add_argument("--check", action="store_true", help="only tell whether the page is up to date")
    options = parser.parse_args(arguments)
    page: Path = options.page
    wanted = render()
    if page.is_file() and page.read_text("utf-8") == wanted:
        return 0
    if options.check:
        print(f"{page} is stale; run: python -m tests.lifecycle_page {page}", file=sys.stderr)
        return 1
    page.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
