"""The `vhca` command: reads the command line, runs one command and turns what went wrong into one line and a status.

Assumes nothing of the host: modules that need it are imported by the command that needs them, so `--help` works
everywhere. Guarantees: no traceback for trouble of the host (`-v` shows it); exit codes as :mod:`vhca.cli.status`.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import logging
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from vhca import __version__
from vhca.cli import status
from vhca.cli.commands import (
    adversary,
    bisect,
    build,
    capture,
    cards,
    ci,
    demo,
    doctor,
    explain,
    fabric,
    fault,
    fetch,
    findings,
    guest,
    kconfig,
    kernels,
    matrix,
    museum,
    rack,
    replay,
    run,
    serve,
    shell,
    trace,
    tshark,
    validate,
)

_COMMANDS = (
    demo,
    run,
    shell,
    matrix,
    bisect,
    validate,
    museum,
    adversary,
    serve,
    rack,
    replay,
    fabric,
    fault,
    findings,
    capture,
    guest,
    cards,
    trace,
    tshark,
    explain,
    doctor,
    kernels,
    kconfig,
    build,
    fetch,
    ci,
)
_DESCRIPTION = """\
The open virtual ConnectX HCA: InfiniBand adapters in software, for the unmodified mlx5 drivers of Linux guests.

A command with guests boots them in QEMU on one virtual InfiniBand fabric, a card in each, and needs no root and
no KVM.  Start with `vhca doctor` (what is missing here?) and `vhca demo` (does it all work?)."""
_EPILOG = """\
examples:
  vhca demo
  vhca run -- ibv_devinfo
  vhca run --guests 2 -- sh -c 'ping -c1 g1 && ibstat'
  vhca shell --kernel ~/linux
  vhca COMMAND --help

environment:
  VHCA_CACHE           where fetched parts are kept (else $XDG_CACHE_HOME/vhca or ~/.cache/vhca)
  VHCA_ACCEL           kvm or tcg, instead of finding out
  VHCA_QEMU            the QEMU to use (10.1.1 or newer); `cache` ignores the host's own
  VHCA_DEBIAN_MIRROR   the mirror to fetch packages from, instead of the one that the host's apt uses
  VHCA_KERNEL_ARCHIVE  a kernel archive to use if the packages of a kernel cannot be had"""


class _CommandParser(argparse.ArgumentParser):
    """The line of one command: what is wrong with it is said with that command's usage and what would be right."""

    runs_in_guest = False  # takes a command of the guest behind `--`

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse here what is left over: the parser above would show its own usage."""
        options, extra = super().parse_known_args(args, namespace)
        if extra:
            self.error(f"unrecognized arguments: {shlex.join(extra)}{self._hint(extra)}")
        return options, extra

    def _hint(self, extra: Sequence[str]) -> str:
        known = [option for option in self._option_string_actions if option.startswith("--")]
        if extra[0].startswith("-") and (near := difflib.get_close_matches(extra[0].split("=")[0], known, 1)):
            return f"; did you mean {near[0]}?"
        if self.runs_in_guest:
            return f"; what the guest shall run stands behind `--`: {self.prog} -- {shlex.join(extra)}"
        return ""

    def error(self, message: str) -> NoReturn:
        """Show the usage and what is wrong, and end."""
        if message.endswith("--qemu-arg: expected one argument"):
            message += "; one that begins with a dash is joined by =: --qemu-arg=-s"
        super().error(f"{message}\nTry: {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="vhca", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--version", action="version", version=f"vhca {__version__}")
    top.add_argument(
        "-v", "--verbose", action="count", default=0, help="show logs (-v: what happens; -vv: every event), tracebacks"
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_CommandParser)
    for module in _COMMANDS:
        command = commands.add_parser(
            module.NAME,
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument(
            "-v", "--verbose", action="count", default=argparse.SUPPRESS, help="show logs and tracebacks"
        )
        module.add_arguments(command)
        command.runs_in_guest = module in (run, shell, matrix, bisect, ci, adversary)
        command.set_defaults(execute=module.execute)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (without the program's name) and return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    ours, guest_command = split_at_dashes(words)
    options = parser().parse_args(ours)
    options.guest_command = guest_command
    options.line = words_of_command(ours)
    _configure_logging(options.verbose)
    signals: list[int] = []
    try:
        with _terminated_like_interrupted(signals):
            return int(options.execute(options))
    except KeyboardInterrupt:
        return status.of_command(-signals[0]) if signals else status.INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has gone; keep the interpreter from complaining about it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status.TROUBLE
    except Exception as error:
        return _explain(error, options.verbose)


def words_of_command(words: Sequence[str]) -> list[str]:
    """What stands behind the command's name."""
    names = {module.NAME for module in _COMMANDS}
    at = next((number for number, word in enumerate(words) if word in names), len(words))
    return list(words[at + 1 :])


def split_at_dashes(words: list[str]) -> tuple[list[str], list[str] | None]:
    """Cut a command line at its first `--`: our part, and the guest's (`None` without `--`).

    What is behind `tshark` is tshark's, unless it asks for our help.
    """
    if words[:1] == [tshark.NAME] and words[1:2] not in (["-h"], ["--help"]):
        return words[:1], words[2:] if words[1:2] == ["--"] else words[1:]
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _explain(error: Exception, verbose: int) -> int:
    from vhca.lab.errors import KernelPanic, LabError, printable

    trace = printable("".join(traceback.format_exception(error)))
    if verbose:
        print(trace, file=sys.stderr)
    known = isinstance(error, (LabError, OSError)) or type(error).__module__.startswith("vhca.")
    if not known and not verbose:
        print(trace, file=sys.stderr)  # a fault of ours: the traceback is what a report needs
    if isinstance(error, PermissionError):
        error = PermissionError(
            f"{error.filename}: permission denied\n  -> name a place that you may use (the cache's is VHCA_CACHE)"
        )
    text = f"vhca: {error}" if known else f"vhca: this is a fault of vhca: {error!r}"
    print(printable(text), file=sys.stderr)
    return status.KERNEL_PANIC if isinstance(error, KernelPanic) else status.TROUBLE


class _ForTerminals(logging.Formatter):
    """Lines may quote a guest or a client of a socket."""

    def format(self, record: logging.LogRecord) -> str:
        from vhca.lab.errors import printable

        return printable(super().format(record))


def _configure_logging(verbose: int) -> None:
    level = (logging.ERROR, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_ForTerminals("%(relativeCreated)9.0f ms %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


@contextlib.contextmanager
def _terminated_like_interrupted(got: list[int]) -> Iterator[None]:
    """Take SIGTERM and SIGHUP as Ctrl-C, so that guests and logs are cleared away; they are noted in `got`."""

    def interrupt(number: int, _frame: object) -> None:
        got.append(number)
        raise KeyboardInterrupt

    before = {}
    with contextlib.suppress(ValueError):  # not in the main thread
        for number in (signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
