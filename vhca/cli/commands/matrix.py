"""`vhca matrix`: the same run on several kernels, and a table of how it went."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vhca.cli import status
from vhca.cli.cells import Runner, jobs_at_once, junit, kernel_names, table, words_of_run
from vhca.cli.commands import run
from vhca.cli.options import whole

if TYPE_CHECKING:
    from vhca.cli.cells import Cell

NAME: Final = "matrix"
SUMMARY: Final = "run a command in guests of several kernels, and say how each went"
DESCRIPTION: Final = """\
Do `vhca run` once for each of several kernels and print a table of the outcomes.  The options beside those of the
matrix are those of `vhca run`, and mean the same for each; kernels that are not in the cache are fetched first."""
EPILOG: Final = f"""\
examples:
  vhca matrix --kernels 6.1,6.12,6.19,7.2 -- ibv_devinfo
  vhca matrix --kernels 6.19,~/linux --guests 2 --share . --junit matrix.xml -- /mnt/share/test.sh
  vhca matrix --kernels 6.12,6.19 --jobs 2 --timeout 5m --log-dir logs --fail-on-kernel-bug -- rmmod mlx5_ib

exit codes:
  0    the command ended with 0 on every kernel
  1    on some it did not; the table says how it ended
{status.EPILOG_COMMON}"""
_NOT_OF_SEVERAL: Final = ("capture", "gdb", "console", "stdin")


def add_own_arguments(group: argparse._ActionsContainer) -> list[argparse.Action]:
    """Describe the options that are not `vhca run`'s."""
    return [
        group.add_argument(
            "--kernels", type=kernel_names, required=True, metavar="A,B,...", help="kernels, as --kernel takes one"
        ),
        group.add_argument(
            "--jobs",
            type=whole(1, 64),
            metavar="N",
            help="how many runs at the same time (default: a processor for each guest, as far as memory goes)",
        ),
        group.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML, a test case for each kernel"),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    add_own_arguments(parser.add_argument_group("matrix"))
    run.add_arguments(parser)
    parser.usage = "vhca matrix --kernels A,B,... [options] -- CMD ARG..."
    parser.allow_abbrev = False


def refused(options: argparse.Namespace) -> str:
    """What of the options makes no sense for several runs; empty if all do."""
    from vhca import DEFAULT_KERNEL

    if not options.guest_command:
        return f"what shall be run?  Write it behind `--`: vhca {options.command} ... -- ibv_devinfo"
    if options.kernel != DEFAULT_KERNEL:
        return "--kernel is for one run: the kernels are named together"
    given = {name: getattr(options, name) for name in _NOT_OF_SEVERAL}
    if used := [name for name, value in given.items() if value is not None and value is not False]:
        return f"--{used[0]} is for one run: use `vhca run`"
    return ""


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if why := refused(options):
        print(f"vhca matrix: {why}", file=sys.stderr)
        return status.USAGE
    from vhca.lab import Progress

    progress = Progress(sys.stderr, quiet=options.quiet)
    own = add_own_arguments(argparse.ArgumentParser(add_help=False))
    folder = log_folder(options)
    runner = Runner(words_for_cells(options, own), options.guest_command, folder, progress, options.modules)
    jobs = min(options.jobs or jobs_at_once(options.guests, options.memory), len(options.kernels))

    def tell(cell: Cell) -> None:
        progress.step(f"{cell.release}: {cell.word}")

    progress.step(f"{len(options.kernels)} kernels, {jobs} at a time")
    cells = runner.run_all(options.kernels, jobs, tell)
    bad = [cell for cell in cells if cell.code]
    show_ends(bad)
    print(table(cells))
    if options.junit is not None:
        options.junit.write_text(junit(cells, options.guest_command), encoding="utf-8")
    leave(options, folder, failed=bool(bad))
    return status.FAILED if bad else status.OK


def words_for_cells(options: argparse.Namespace, own: list[argparse.Action]) -> list[str]:
    """What of the command line is for each `vhca run`; its logs go where this command says."""
    logs = argparse.ArgumentParser(add_help=False).add_argument("--log-dir")
    return words_of_run(options.line, [*own, logs])


def log_folder(options: argparse.Namespace) -> Path:
    """Where the runs' output and logs go."""
    if options.log_dir is None:
        return Path(tempfile.mkdtemp(prefix=f"vhca-{options.command}-"))
    folder: Path = options.log_dir.expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def leave(options: argparse.Namespace, folder: Path, failed: bool) -> None:
    """Keep the logs if that was asked for, or if something failed, and say where they are."""
    if options.log_dir is None and not failed and not options.keep_logs:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"vhca {options.command}: output and logs of each run are in {folder}", file=sys.stderr)


def show_ends(cells: list[Cell]) -> None:
    """Print the ends of what runs said."""
    from vhca.lab.errors import printable

    for cell in cells:
        print(f"--- {cell.release}: {cell.word}; the end of its output:\n{printable(cell.tail)}\n", file=sys.stderr)
