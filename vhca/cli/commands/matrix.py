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
from vhca.cli.options import memory, seconds, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from vhca.cli.cells import Cell
    from vhca.lab import Progress

NAME: Final = "matrix"
SUMMARY: Final = "run a command in guests of several kernels, and say how each went"
DESCRIPTION: Final = """\
Do `vhca run` once for each of several kernels and print a table of the outcomes.  The options beside those of the
matrix are those of `vhca run`, and mean the same for each; kernels that are not in the cache are fetched first.
--capture and --record write files for each kernel, beside its logs.

--on places the runs on a Dask cluster: each worker runs as many guests at a time as it has threads, fetches what its
cache lacks, and hands back what a run printed, its logs and captures.  A run whose worker dies is tried on another;
the table says so.  Ctrl-C ends the runs there with their guests.  Paths are those of the workers."""
EPILOG: Final = f"""\
examples:
  vhca matrix --kernels 6.1,6.12,6.19,7.2 -- ibv_devinfo
  vhca matrix --kernels 6.19,~/linux --guests 2 --share . --junit matrix.xml -- /mnt/share/test.sh
  vhca matrix --kernels 6.12,6.19 --jobs 2 --timeout 5m --log-dir logs --fail-on-kernel-bug -- rmmod mlx5_ib
  vhca matrix --kernels 6.12,6.19,7.2 --on dask://build1 --log-dir logs -- ibv_devinfo

exit codes:
  0    the command ended with 0 on every kernel
  1    on some it did not; the table says how it ended
{status.EPILOG_COMMON}"""
_NOT_OF_SEVERAL: Final = ("gdb", "console", "stdin")
_FILES_OF_RUNS: Final = ("capture", "record")
"""Options whose value is a file or folder: each run has its own, in the folder of its logs."""
_CELL_TIMEOUT_S: Final = 3600.0
_BRING_MIB: Final = 256


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
        group.add_argument(
            "--on",
            type=cluster,
            metavar="dask://HOST[:PORT]",
            help="run on the workers of the Dask cluster whose scheduler is there (default port: 8786)",
        ),
        group.add_argument(
            "--cell-timeout",
            type=seconds,
            metavar="S",
            help="with --on: end a run that takes longer, with its fetching and booting (default: 1h)",
        ),
        group.add_argument(
            "--bring",
            type=memory(1),
            metavar="SIZE",
            help=f"with --on: bring at most this much of a run's files here (default: {_BRING_MIB}M)",
        ),
    ]


def cluster(text: str) -> str:
    """A type for a Dask cluster: the address of its scheduler, without a protocol."""
    from vhca.cli.cluster import address

    try:
        return address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
    if why := _refused_of_cluster(options):
        return why
    given = {name: getattr(options, name) for name in _NOT_OF_SEVERAL}
    if used := [name for name, value in given.items() if value is not None and value is not False]:
        return f"--{used[0]} is for one run: use `vhca run`"
    return ""


def _refused_of_cluster(options: argparse.Namespace) -> str:
    if getattr(options, "on", None) is None:
        given = [name for name in ("cell_timeout", "bring") if getattr(options, name, None) is not None]
        return f"--{given[0].replace('_', '-')} is for --on" if given else ""
    return "--jobs is for this machine: a cluster runs as many as it has workers for" if options.jobs else ""


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if why := refused(options):
        print(f"vhca matrix: {why}", file=sys.stderr)
        return status.USAGE
    from vhca.lab import Progress

    progress = Progress(sys.stderr, quiet=options.quiet)
    own = add_own_arguments(argparse.ArgumentParser(add_help=False))
    folder = log_folder(options)
    words = words_for_cells(options, own)

    def tell(cell: Cell) -> None:
        progress.step(f"{cell.release}: {cell.word}{f' on {cell.where}' if cell.where else ''}")

    cells = (
        _on_cluster(options, words, folder, progress, tell)
        if options.on
        else _here(options, words, folder, progress, tell)
    )
    bad = [cell for cell in cells if cell.code]
    show_ends(bad)
    print(table(cells))
    if options.junit is not None:
        options.junit.write_text(junit(cells, options.guest_command), encoding="utf-8")
    leave(options, folder, failed=bool(bad))
    return status.FAILED if bad else status.OK


def _here(
    options: argparse.Namespace, words: list[str], folder: Path, progress: Progress, tell: Callable[[Cell], None]
) -> list[Cell]:
    jobs = min(options.jobs or jobs_at_once(options.guests, options.memory), len(options.kernels))
    progress.step(f"{len(options.kernels)} kernels, {jobs} at a time")
    runner = Runner(words, options.guest_command, folder, progress, options.modules, files_of_runs(options))
    return runner.run_all(options.kernels, jobs, tell)


def _on_cluster(
    options: argparse.Namespace, words: list[str], folder: Path, progress: Progress, tell: Callable[[Cell], None]
) -> list[Cell]:
    from vhca.cli.cluster import ClusterRunner, Work, check_workers, connect

    work = Work(
        words,
        files_of_runs(options),
        options.guest_command,
        options.modules,
        options.guests,
        options.cell_timeout or _CELL_TIMEOUT_S,
        (options.bring or _BRING_MIB) << 20,
    )
    with connect(options.on) as client:
        workers = check_workers(client)
        progress.step(f"{len(options.kernels)} kernels on {workers} worker{'s' if workers > 1 else ''} of {options.on}")
        return ClusterRunner(client, work, folder, progress).run_all(options.kernels, tell)


def files_of_runs(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Options that name a file of each run, and the file's name."""
    given = {name: getattr(options, name) for name in _FILES_OF_RUNS}
    return [(f"--{name}", Path(value).name) for name, value in given.items() if value is not None]


def words_for_cells(options: argparse.Namespace, own: list[argparse.Action]) -> list[str]:
    """What of the command line is for each `vhca run`; where its files go, this command says."""
    files = argparse.ArgumentParser(add_help=False)
    return words_of_run(
        options.line, [*own, *(files.add_argument(f"--{name}") for name in ("log-dir", *_FILES_OF_RUNS))]
    )


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
