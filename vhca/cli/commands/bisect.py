"""`vhca bisect`: between two kernels, the first one on which a command does not work."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vhca.cli import status
from vhca.cli.cells import Runner, table
from vhca.cli.commands import run
from vhca.cli.commands.matrix import files_of_runs, leave, log_folder, refused, show_ends, words_for_cells

if TYPE_CHECKING:
    from vhca.cli.cells import Cell
    from vhca.lab import Progress

NAME: Final = "bisect"
SUMMARY: Final = "find the first packaged kernel on which a command fails"
DESCRIPTION: Final = """\
Do `vhca run` on packaged kernels between a good and a bad one, by halves, and say which is the first bad one.  A run
that ends with 0 is good, one that ends with 125 (trouble) is skipped, any other is bad, as `git bisect run` has it.
The good one may be the newer one: then the first kernel is found on which the command does not work, going back.

Kernels are those that `vhca kernels` lists; each is fetched when its turn comes.  Options beside those of the bisection
are those of `vhca run`.  To search a git tree, see docs/kernels.md: `git bisect run` does it with `vhca run`."""
EPILOG: Final = f"""\
examples:
  vhca bisect --good 6.18 --bad 6.19 -- rmmod mlx5_ib
  vhca bisect --good 6.1 --bad 7.3 --cached --share . -- /mnt/share/test.sh

exit codes:
  0    the first bad kernel was found, or those that it is among
  1    the good kernel is not good, or the bad one is not bad
{status.EPILOG_COMMON}"""
_NOT_A_VERDICT: Final = (126, 127)  # the command cannot be run at all: nothing is learnt


class Verdict(StrEnum):
    """What a run says of its kernel."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"


def verdict(code: int) -> Verdict:
    """Read an exit status as `git bisect run` does."""
    if code == status.OK:
        return Verdict.GOOD
    return Verdict.SKIP if code == status.TROUBLE else Verdict.BAD


def narrow(count: int, test: Callable[[int], Verdict]) -> tuple[int, int]:
    """Of `count` kernels in a row, the first good and the last bad: the last good one, and the first known to be bad.

    What is between the two was skipped. `test` is asked for each number at most once.
    """
    good, bad, skipped = 0, count - 1, set[int]()
    while left := [number for number in range(good + 1, bad) if number not in skipped]:
        middle = min(left, key=lambda number: abs(2 * number - good - bad))
        found = test(middle)
        if found is Verdict.GOOD:
            good = middle
        elif found is Verdict.BAD:
            bad = middle
        else:
            skipped.add(middle)
    return good, bad


def add_own_arguments(group: argparse._ActionsContainer) -> list[argparse.Action]:
    """Describe the options that are not `vhca run`'s."""
    return [
        group.add_argument(
            "--good", required=True, metavar="VERSION", help="a kernel on which the command ends with 0"
        ),
        group.add_argument("--bad", required=True, metavar="VERSION", help="a kernel on which it does not"),
        group.add_argument("--cached", action="store_true", help="only kernels that are in the cache"),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    add_own_arguments(parser.add_argument_group("bisection"))
    run.add_arguments(parser)
    parser.usage = "vhca bisect --good VERSION --bad VERSION [options] -- CMD ARG..."
    parser.allow_abbrev = False


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if why := refused(options):
        print(f"vhca bisect: {why}", file=sys.stderr)
        return status.USAGE
    from vhca.lab import Progress

    progress = Progress(sys.stderr, quiet=options.quiet)
    row = _row(options, progress)
    own = add_own_arguments(argparse.ArgumentParser(add_help=False))
    folder = log_folder(options)
    words = words_for_cells(options, own)
    runner = Runner(words, options.guest_command, folder, progress, options.modules, files_of_runs(options))
    cells: list[Cell] = []
    code = _search(row, runner, cells, progress)
    leave(options, folder, failed=code != status.OK)
    return code


def _row(options: argparse.Namespace, progress: Progress) -> list[str]:
    """The releases from the good one to the bad one."""
    from vhca.lab import Cache, LabError
    from vhca.lab.kernel_list import chosen, offers

    found, trouble = offers(Cache(), progress, mirror=not options.cached, root=Path("/nonexistent"))
    if trouble:
        progress.say(f"  {trouble}")
    if options.cached:
        found = [offer for offer in found if offer.cached]
    ends = []
    for name in (options.good, options.bad):
        meant = chosen(found, name)
        if not meant:
            raise LabError(f"there is no packaged kernel {name}", "see `vhca kernels`")
        ends.append(found.index(meant[-1]))
    good, bad = ends
    if good == bad:
        raise LabError(f"{options.good} and {options.bad} are the same kernel: {found[good].release}")
    step = 1 if good < bad else -1
    return [offer.release for offer in found[good : (bad + step if bad + step >= 0 else None) : step]]


def _search(row: Sequence[str], runner: Runner, cells: list[Cell], progress: Progress) -> int:
    """Test both ends, then the kernels between; prints what was found."""
    from vhca.lab import LabError

    def test(number: int) -> Verdict:
        progress.step(f"{row[number]} ({len(cells) + 1} of at most {_steps(len(row))})")
        cell = runner.run(row[number])
        cells.append(cell)
        if cell.code in _NOT_A_VERDICT:
            show_ends([cell])
            raise LabError(f"{row[number]}: the command is {cell.word}: that says nothing of the kernel")
        found = verdict(cell.code)
        progress.step(f"{row[number]}: {found} ({cell.word})")
        return found

    for number, wanted in ((0, Verdict.GOOD), (len(row) - 1, Verdict.BAD)):
        if (found := test(number)) is not wanted:
            show_ends(cells[-1:])
            print(f"vhca bisect: {row[number]} is not {wanted}: it is {found}", file=sys.stderr)
            return status.FAILED
    good, bad = narrow(len(row), test)
    print(table(sorted(cells, key=lambda cell: row.index(cell.release))))
    if bad == good + 1:
        print(f"first bad: {row[bad]}, last good: {row[good]}")
    else:
        print(f"first bad: one of {', '.join(row[good + 1 : bad + 1])} (some were skipped), last good: {row[good]}")
    return status.OK


def _steps(kernels: int) -> int:
    """How many runs there are if none is skipped."""
    return 2 + max(0, (kernels - 2).bit_length())
