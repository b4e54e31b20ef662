"""`vhca replay`: play what a card was told again, without a guest."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vhca.cli import status
from vhca.cli.options import whole

if TYPE_CHECKING:
    from vhca.replay.file import Reader
    from vhca.replay.player import Played, Player

NAME: Final = "replay"
SUMMARY: Final = "play the recording of a card again, without QEMU, and stop where it differs"
DESCRIPTION: Final = """\
Play the recording of a card (`--record` of run, shell, demo and serve; `--vhca-record` of pytest) on the firmware that
is installed here: it is told what the recorded one was told (commands, doorbells, packets, time, memory that it read)
and must do the same, byte for byte.  The first difference ends it.  No guest, kernel or QEMU is needed.

RUN is a recording (h0.vhcarec), or a folder of them, which are played one after the other."""


EPILOG: Final = f"""\
examples:
  vhca replay run/                                         # does this firmware do the same?
  vhca replay run/h0.vhcarec --list | less
  vhca replay run/h0.vhcarec --list --until 1.5s           # the first 1.5 s
  vhca replay run/h0.vhcarec --break-on cqe.syndrome=0x13 --dump 'qp 0x47' --dump cq
  vhca replay run/h0.vhcarec --until 1200 --dump counters

what --break-on takes (FIELD=VALUE: a number, or a name of the manual):
  command.opcode     a command is executed
  command.status     a command ends with this status
  command.syndrome   a command ends with this syndrome
  doorbell.sq        the send queue of this queue pair is rung for
  doorbell.cq        this completion queue is armed
  doorbell.eq        this event queue is updated
  packet.opcode      a packet comes or goes: RC_ACKNOWLEDGE, or the beginning of such a name
  packet.qpn         a packet for this queue pair comes or goes
  packet.psn         a packet or burst with this sequence number comes or goes
  cqe.opcode         a completion is written
  cqe.syndrome       a completion with this error is written
  cqe.qpn            a completion of this queue pair is written
  cqe.cqn            a completion is written into this queue
  event.type         an event is written
  event.eqn          an event is written into this queue
  write.address      this byte of the host's memory is written
  read.address       this byte of the host's memory is read
  interrupt.vector   this interrupt is raised
  health.field       this field of the health buffer is set: synd, rfr ...
  reset.reason       the card is reset: flr, software, lost_connection ...

what --dump takes: counters, objects, trace, or a kind of object (qp, cq, srq, eq, mkey, pd, uar, dct, ...), with the
number of one or without

exit codes:
  0    the same, up to the end or to where it was to stop
  1    it differs, or the recording is damaged
{status.EPILOG_COMMON}"""

_TIMES: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def moment(text: str) -> tuple[str, int]:
    """A type for the number of a step, or a time since the first one: 1200, 1.5s, 20ms."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?)(s|ms|us|ns)?", text)
    if match is None or (match[2] is None and "." in match[1]):
        raise argparse.ArgumentTypeError(f"{text!r}: give the number of a step (1200), or a time (1.5s, 20ms, 7us)")
    return ("step", int(match[1])) if match[2] is None else ("time", int(float(match[1]) * _TIMES[match[2]]))


def break_condition(text: str) -> Callable[[Played], bool]:
    """A type for `FIELD=VALUE`."""
    from vhca.replay.breaks import BreakError, condition

    try:
        return condition(text)
    except BreakError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def dump(text: str) -> tuple[str, int | None]:
    """A type for what is to be shown: a kind, or a kind and a number."""
    kind, _, number = text.strip().partition(" ")
    try:
        return kind, int(number, 0) if number else None
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give a kind, or a kind and a number: qp, 'qp 0x47'") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a recording, or a folder with recordings")
    parser.add_argument(
        "--until", type=moment, metavar="STEP|TIME", help="stop behind this step, or so long after the first one"
    )
    parser.add_argument(
        "--break-on",
        type=break_condition,
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="stop behind the first step of which this holds (see below); may be given again: whichever comes first",
    )
    parser.add_argument(
        "--dump",
        type=dump,
        action="append",
        default=[],
        metavar="OBJECT",
        help="show this where it stops; may be given again",
    )
    parser.add_argument("--list", action="store_true", help="print each step, what it reads, and what it does")
    parser.add_argument(
        "--last", type=whole(0, 10_000), default=5, metavar="N",
        help="steps that are shown where it stops (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--firmware", default="firmware", metavar="PACKAGE", help="the program to play it on (default: %(default)s)"
    )


def recordings(path: Path) -> list[Path]:
    """The recordings that are meant.

    :raises LabError: there are none.
    """
    from vhca.lab.errors import LabError
    from vhca.replay.file import SUFFIX

    if not path.is_dir():
        return [path]
    found = sorted(path.glob(f"*{SUFFIX}"))
    if not found:
        raise LabError(f"{path}: there are no recordings (*{SUFFIX}) in this folder", "name one that --record made")
    return found


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    return max([_one(path, options) for path in recordings(options.run)])


def _one(path: Path, options: argparse.Namespace) -> int:
    from vhca.chip.card import load_firmware
    from vhca.replay.file import Reader, RecordingError
    from vhca.replay.player import Player

    with Reader(path) as reader:
        if reader.head.get("firmware") != options.firmware:
            raise RecordingError(
                f"{path}: another program than {options.firmware} was recorded; name it with --firmware"
            )
        _about(reader, options.firmware)
        image = load_firmware(options.firmware)
        watched = options.list or bool(options.break_on)
        player = Player(reader, image, watched=watched)
        return _Session(options, reader, player, image).run()


def _about(reader: Reader, package: str) -> None:
    from vhca.lab.errors import printable
    from vhca.replay.identity import firmware_hash

    head = reader.head
    print(f"{printable(str(reader.path))}: card {printable(str(head.get('card')))[:40]}")
    if faults := head.get("faults"):
        print(printable(f"  with faults: {faults}")[:1000])
    if head.get("firmware_hash") != firmware_hash(package):
        print("  the firmware has changed since: it is played until something differs")


class _Session:
    """A recording that is played for people."""

    def __init__(self, options: argparse.Namespace, reader: Reader, player: Player, image: Any) -> None:
        self._options = options
        self._reader = reader
        self._player = player
        self._image = image
        self._first_ns: int | None = None
        self._recent: list[Played] = []

    def run(self) -> int:
        """Play it; the exit status."""
        from vhca.replay.file import RecordingError

        last: Played | None = None
        stopped = ""
        try:
            for played in self._player.play():
                if self._is_behind(played):
                    stopped = "where it was to stop"
                    break
                last = played
                self._show(played)
                if played.difference is None and any(holds(played) for holds in self._options.break_on):
                    stopped = "on what it was to break on"
                    break
        except RecordingError as error:
            self._say(f"damaged: {error}")
            return status.FAILED
        return self._end(last, stopped)

    def _is_behind(self, played: Played) -> bool:
        if self._first_ns is None and played.step.now_ns:
            self._first_ns = played.step.now_ns
        if self._options.until is None:
            return False
        kind, number = self._options.until
        if kind == "step":
            return bool(played.number > number)
        return self._first_ns is not None and played.step.now_ns - self._first_ns > int(number)

    def _show(self, played: Played) -> None:
        if self._options.list:
            self._say(*self._lines(played))
            return
        self._recent.append(played)
        del self._recent[: -self._options.last or len(self._recent)]

    def _lines(self, played: Played) -> list[str]:
        from vhca.replay.words import about_effect, about_input, about_step

        since = max(played.step.now_ns - (self._first_ns or 0), 0)
        number = " " * 8 if played.step.call == "note" else f"{played.number:8}"
        lines = [f"{number} {since / 1e9:13.6f} {about_step(played.step)}"]
        lines += [f"{'':24}<- {about_input(given)}" for given in played.step.inputs]
        lines += [f"{'':24}-> {about_effect(effect)}" for effect in played.done]
        if played.step.raised and played.step.call != "note":
            lines.append(f"{'':24}the program failed: {played.step.raised}")
        return lines

    def _say(self, *lines: str) -> None:
        from vhca.lab.errors import printable

        for line in lines:
            print(printable(line))

    def _end(self, last: Played | None, stopped: str) -> int:
        if last is None:
            self._say(f"nothing was played: the recording is {self._reader.ending or 'stopped at once'}")
            return status.OK
        if stopped or last.difference is not None:
            for played in self._recent:
                self._say(*self._lines(played))
        if (difference := last.difference) is not None:
            since = max(last.step.now_ns - (self._first_ns or 0), 0) / 1e9
            self._say(
                f"step {last.number} at {since:.6f} s ({last.step.call}) differs: {difference.what}",
                f"  expected: {difference.expected}",
                f"  got:      {difference.got}",
            )
        else:
            self._say(f"{last.number} steps played, the same{self._how_ended(stopped)}")
        for kind, number in self._options.dump:
            self._say(*self._dumped(kind, number))
        return status.OK if last.difference is None else status.FAILED

    def _how_ended(self, stopped: str) -> str:
        reader = self._reader
        if stopped:
            return f"; stopped {stopped}"
        text = str(reader.last.get("text", ""))[:200]
        return {
            "end": "",
            "cut off": "; the recording is cut off there: its process was killed, or the file is not whole",
        }.get(reader.ending, f"; the recording ends there ({reader.ending}): {text}")

    def _dumped(self, kind: str, number: int | None) -> Sequence[str]:
        program = self._player.program
        if kind == "trace":
            return [*self._player.trace]
        if program is None:
            return [f"{kind}: there is no program yet"]
        if kind in ("counters", "objects"):
            found = program.counters() if kind == "counters" else program.objects()
            return [f"{name} = {value}" for name, value in sorted(found.items()) if value]
        describe = getattr(self._image, "describe", None)
        if describe is None:
            return [f"{kind}: this program does not show its objects"]
        try:
            lines: list[str] = describe(program, kind, number)
        except LookupError as error:
            print(f"vhca replay: --dump {kind}: {error.args[0]}", file=sys.stderr)
            return []
        return lines
