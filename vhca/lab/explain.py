"""Says what the numbers mean that a guest prints when something failed: syndromes of commands, statuses of completions.

Assumes any text, such as the kernel's log or a program's output. Guarantees: pure but for the firmware's own list of
refusals; each line is answered at most once, in the order of the text.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from vhca.wire.connectx.cmd import Op, Status

#: What finds the text of a syndrome and its place in the firmware: `FirmwareImage.explain`.
Explainer = Callable[[int], tuple[str, str] | None]

_REFUSED: Final = re.compile(r"status [\w ]*\((?P<status>0x[0-9a-f]+)\), syndrome \((?P<syndrome>0x[0-9a-f]+)\)")
_COMMAND: Final = re.compile(r"(?P<name>\w+)\(0x[0-9a-f]+\) op_mod")
_COMPLETION: Final = re.compile(r"(?:WC error:?|[Ff]ailed status|\bwc status:?) (?P<status>\d+)\b")
_LINE_MAX: Final = 400

_STATUS: Final[dict[int, str]] = {
    Status.INTERNAL_ERR: "the card failed inside",
    Status.BAD_OP: "the card does not know the command, or not in this mode",
    Status.BAD_PARAM: "a field of the command has a value that the card does not take",
    Status.BAD_SYS_STATE: "the card is not in a state in which this can be asked",
    Status.BAD_RES: "an object that the command names does not exist, or is not the asker's",
    Status.RES_BUSY: "an object that the command names is in use for something else",
    Status.LIM_ERR: "a limit of the card, or its memory, is used up",
    Status.BAD_RES_STATE: "an object that the command names is not in a state that allows it",
    Status.IX_ERR: "an index is beyond its table",
    Status.NO_RES_ERR: "the card has none left of what is asked for",
    Status.BAD_QP_STATE: "the queue pair is not in a state that the command starts from",
    Status.BAD_PKT: "a management datagram is malformed",
    Status.BAD_SIZE_OUTS_CQES: "a completion queue holds more than its new size would",
    Status.BAD_INP_LEN: "the command's input is too short or too long",
    Status.BAD_OUTP_LEN: "the buffer for the command's output is too short",
}
# By `ibv_wc_status`: its name, and whose fault it usually is.
_COMPLETIONS: Final = {
    1: ("LOC_LEN_ERR", "the message does not fit: into the receive buffer, or (UD) into the MTU"),
    2: ("LOC_QP_OP_ERR", "the request is malformed, or not of a kind that this queue pair carries out"),
    3: ("LOC_EEC_OP_ERR", "obsolete (reliable datagrams)"),
    4: ("LOC_PROT_ERR", "a local key (lkey) is wrong: of another PD, deregistered, too short, or without the right"),
    5: ("WR_FLUSH_ERR", "not tried: the queue pair was in the error state already; an earlier completion says why"),
    6: ("MW_BIND_ERR", "a memory window could not be bound: its region's rights or bounds do not allow it"),
    7: ("BAD_RESP_ERR", "the answer of the other side made no sense"),
    8: ("LOC_ACCESS_ERR", "a receive buffer was not writable when a remote request wanted it"),
    9: ("REM_INV_REQ_ERR", "the other side does not take the request: too long for its receive, or not allowed there"),
    10: ("REM_ACCESS_ERR", "a remote key (rkey) or address is wrong: of another PD, deregistered or without the right"),
    11: ("REM_OP_ERR", "the other side could not carry it out: its own receive was at fault"),
    12: ("RETRY_EXC_ERR", "no answer after all tries: wrong LID, QPN or PSN, cable down, or the peer's queue is gone"),
    13: ("RNR_RETRY_EXC_ERR", "the other side had no receive posted, for longer than all tries took"),
    14: ("LOC_RDD_VIOL_ERR", "obsolete (reliable datagrams)"),
    15: ("REM_INV_RD_REQ_ERR", "obsolete (reliable datagrams)"),
    16: ("REM_ABORT_ERR", "the other side gave the operation up"),
    17: ("INV_EECN_ERR", "obsolete (reliable datagrams)"),
    18: ("INV_EEC_STATE_ERR", "obsolete (reliable datagrams)"),
    19: ("FATAL_ERR", "the card failed; its driver resets it"),
    20: ("RESP_TIMEOUT_ERR", "the other side took longer than allowed"),
    21: ("GENERAL_ERR", "anything else"),
}


@dataclass(slots=True, frozen=True)
class Explanation:
    """One line of the text and what its numbers mean."""

    line: str
    meanings: tuple[str, ...]


def firmware_explainer(firmware: str = "firmware") -> Explainer:
    """The list of refusals of a firmware image."""
    explain: Explainer = importlib.import_module(f"{firmware}.boot").explain
    return explain


def syndrome(number: int, explainer: Explainer) -> tuple[str, ...]:
    """What the syndrome of a refused command means; empty if no command of the firmware is refused with it."""
    found = explainer(number)
    return () if found is None else (found[0], f"refused by {found[1]}")


def completion(number: int) -> tuple[str, ...]:
    """What a status of a work completion means; empty if there is none with this number."""
    found = _COMPLETIONS.get(number)
    return () if found is None else (f"IBV_WC_{found[0]}: {found[1]}",)


# By the name of an error completion's syndrome: the `ibv_wc_status` that libraries make of it.
_SYNDROMES: Final = {
    "LOCAL_LENGTH_ERR": 1, "LOCAL_QP_OP_ERR": 2, "LOCAL_PROT_ERR": 4, "WR_FLUSH_ERR": 5, "MW_BIND_ERR": 6,
    "BAD_RESP_ERR": 7, "LOCAL_ACCESS_ERR": 8, "REMOTE_INVAL_REQ_ERR": 9, "REMOTE_ACCESS_ERR": 10, "REMOTE_OP_ERR": 11,
    "TRANSPORT_RETRY_EXC_ERR": 12, "RNR_RETRY_EXC_ERR": 13, "REMOTE_ABORTED_ERR": 16,
}  # fmt: skip


def completion_error(name: str) -> str:
    """What the syndrome of an error completion means, by its name in the manual; empty if there is none."""
    number = _SYNDROMES.get(name)
    return "" if number is None else completion(number)[0]


def in_text(text: str, explainer: Explainer) -> Iterator[Explanation]:
    """The lines of a log or of a program's output that have something to explain."""
    for line in text.replace("\r", "").split("\n"):
        meanings: tuple[str, ...] = ()
        if match := _REFUSED.search(line):
            meanings = _refusal(line, int(match["status"], 16), int(match["syndrome"], 16), explainer)
        elif match := _COMPLETION.search(line):
            meanings = completion(int(match["status"]))
        if meanings:
            yield Explanation(line.strip()[:_LINE_MAX], meanings)


def _refusal(line: str, status: int, number: int, explainer: Explainer) -> tuple[str, ...]:
    command = _COMMAND.search(line)
    name = command["name"] if command is not None and command["name"] in Op.__members__ else "the command"
    general = _STATUS.get(status, "")
    first = f"{name}: {general or f'status {status:#x}'}"
    return (first, *(syndrome(number, explainer) or ("no command of this firmware is refused with that syndrome",)))
