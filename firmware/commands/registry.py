"""The command processor: finds the handler of an opcode, checks lengths, turns refusals into status and syndrome.

A handler is registered with its input and output layouts; it gets a private view of the input and returns the output.
Refusals are raised as :class:`CommandError`: its text is traced, and the syndrome that the host sees is the CRC-32 of
that text, so that a syndrome in a guest's kernel log can be found in the trace and in the source.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from firmware.model.counters import Count, CountOf
from firmware.model.hca import Hca
from firmware.model.pages import ENTRY_BYTES
from firmware.programs import refused_command
from vhca.layout import Layout
from vhca.wire.connectx.cmd import Op, Status

I = TypeVar("I", bound=Layout)  # noqa: E741
# Status and syndrome: the least that any output holds.
HEADER_BYTES = 8


class CommandError(Exception):
    """A command is refused: `status` is the output's status byte, the text says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.syndrome = zlib.crc32(reason.encode())


def refuse(status: int, reason: str) -> NoReturn:
    """Refuse the command at hand. `reason` is a constant text: its CRC is the syndrome."""
    raise CommandError(status, reason)


@dataclass(slots=True)
class Command(Generic[I]):
    """One command under way: `view` is the checked input, `data` its bytes (input and variable tail)."""

    opcode: int
    op_mod: int
    uid: int
    view: I
    data: bytes
    out_size: int

    @property
    def tail(self) -> memoryview:
        """What follows the fixed part of the input: page lists, register data, memory key entries. Not to be kept."""
        return memoryview(self.data)[self.view.SIZE :]


Handler = Callable[[Hca, Command[I]], Layout | bytes]


@dataclass(slots=True)
class Entry:
    """One opcode's row: its handler and the sizes of its fixed parts in bytes."""

    handler: Callable[[Hca, Command[Layout]], Layout | bytes]
    layout: type[Layout]
    in_size: int
    out_size: int


COMMANDS: dict[int, Entry] = {}
_OPS = frozenset(int(op) for op in Op)


def command(
    op: Op, layout: type[I], out_size: int = HEADER_BYTES, *, in_size: int | None = None
) -> Callable[[Handler[I]], Handler[I]]:
    """Register the decorated function for `op`; `layout` is its input, `out_size` what its output takes at least.

    `in_size` is for commands that grew: what is missing behind it reads as zeros.
    """

    def register(handler: Handler[I]) -> Handler[I]:
        if op in COMMANDS:
            raise AssertionError(f"two handlers for {op.name}")
        COMMANDS[op] = Entry(handler, layout, in_size or layout.SIZE, out_size)  # type: ignore[arg-type]
        return handler

    return register


def execute(hca: Hca, data: bytes, out_size: int) -> bytes:
    """Run one command; returns the whole output, whatever the input was. Never raises for what a guest sent."""
    opcode = int.from_bytes(data[0:2], "big")
    if hca.history is not None:
        hca.history.begin(data, hca.now_ns)
    try:
        output = _dispatch(hca, opcode, data, out_size)
        status = output[0]
        reason = ""
    except CommandError as error:
        status, reason = error.status, str(error)
        output = bytes((status, 0, 0, 0)) + error.syndrome.to_bytes(4, "big") + bytes(8)
    hca.count[Count.COMMANDS] += 1
    if status:
        hca.count[Count.COMMANDS_REFUSED] += 1
    if hca.trace is not None:
        details: dict[str, object] = {"op": name_of(opcode), "op_mod": int.from_bytes(data[6:8], "big")}
        uid = int.from_bytes(data[2:4], "big")
        if uid:
            details["uid"] = uid
        details["in"] = data[8:16].hex()
        details["out"] = output[8:16].hex()
        if status:
            details["status"] = f"{status:#04x}"
            details["syndrome"] = f"{int.from_bytes(output[4:8], 'big'):#010x}"
            details["why"] = reason
        hca.trace("command", details)
    return output


def name_of(opcode: int) -> str:
    """The opcode's name, or its number if it has none."""
    try:
        return Op(opcode).name
    except ValueError:
        return f"{opcode:#06x}"


def _dispatch(hca: Hca, opcode: int, data: bytes, out_size: int) -> bytes:
    entry = COMMANDS.get(opcode)
    if entry is None:
        # Names are bounded: a guest may try all numbers.
        if opcode in _OPS:
            hca.count_of.add(CountOf.COMMAND_UNKNOWN, opcode)
        else:
            hca.count[Count.COMMAND_UNKNOWN] += 1
        refuse(Status.BAD_OP, "opcode is not implemented by this device")
    if len(data) < entry.in_size:
        refuse(Status.BAD_INP_LEN, "command input is shorter than its fixed part")
    if out_size < entry.out_size:
        refuse(Status.BAD_OUTP_LEN, "command output buffer is shorter than the output")
    data = data.ljust(entry.layout.SIZE, b"\0")
    view = entry.layout.from_bytes(data)
    uid = int.from_bytes(data[2:4], "big")
    if uid and (reason := refused_command(hca, opcode, uid)):
        if hca.history is not None and hca.uctxs.get(uid) is None:
            hca.history.missing("uctx", uid)
        refuse(Status.BAD_PARAM, reason)
    request = Command(opcode, int.from_bytes(data[6:8], "big"), uid, view, data, out_size)
    result = entry.handler(hca, request)
    return result if isinstance(result, bytes) else result.to_bytes()


def page_list(tail: memoryview, count: int) -> bytes:
    """The first `count` entries of a page list, packed as they came; refuses a short list."""
    if count * ENTRY_BYTES > len(tail):
        refuse(Status.BAD_INP_LEN, "page list is shorter than the queue needs")
    return bytes(tail[: count * ENTRY_BYTES])
