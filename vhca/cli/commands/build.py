"""`vhca build`: make a small kernel for guests out of its source."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from vhca.cli import status
from vhca.cli.options import whole

NAME: Final = "build"
SUMMARY: Final = "build a small kernel for guests"
DESCRIPTION: Final = """\
Build a kernel that has what a guest needs and little else: tinyconfig, and on it what `vhca kconfig` prints.  With
--debug it finds faults of a driver (KASAN, lockdep, DMA-API debugging, kmemleak, fault injection) and has debug
information; guests are slower with it.

The source is a tree of yours, which is left as it is, or Debian's package of a source, fetched from the mirror.  What
is built is kept by the tree's state (commit and changes), the configuration and the compiler: the same is not built
twice, and of a tree that changed only what depends on the change.  The host needs gcc and make; flex, bison, bc and
libelf come from packages, into the cache, if it has none; ccache is used if it is there.  The last line of what is
printed is the kernel's name, for --kernel.

--module builds a module of yours for such a kernel, in its own folder, and prints the files that came of it."""
EPILOG: Final = f"""\
examples:
  vhca build --source linux-source-6.19 --debug
  vhca build --source ~/linux
  vhca build --source ~/linux --config my.config -j 8
  vhca run --kernel linux-source-6.19-debug -- dmesg
  vhca build --module ~/mine --kernel linux-source-6.19-debug
  vhca run --kernel linux-source-6.19-debug --insmod ~/mine/mine.ko -- dmesg
  vhca run --kernel "$(vhca build --source ~/linux)" -- uname -r
  vhca kernels --cached

exit codes:
  0    built, or there already
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--source", metavar="TREE", help="a kernel's source: a folder, or a package: linux-source-6.19")
    what.add_argument(
        "--module",
        metavar="DIR",
        help="a folder with a module of yours: build it there, for the kernel that --kernel names",
    )
    parser.add_argument(
        "--kernel",
        metavar="SPEC",
        help="with --module: one that was built here, a build tree, or one whose headers are installed",
    )
    parser.add_argument("--debug", action="store_true", help="with what finds faults of a driver")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="options of your own (lines of a .config), put on top"
    )
    parser.add_argument(
        "-j", "--jobs", type=whole(1, 1024), metavar="N", help="compilers at a time (default: one for each processor)"
    )
    parser.set_defaults(refuse=parser.error)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.lab import Progress
    from vhca.lab.kernel_build import build_kernel

    if options.module is not None:
        return _module(options)
    own = ""
    if options.config is not None:
        try:
            own = options.config.expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            options.refuse(f"--config {options.config}: {error}")
    progress = Progress(sys.stderr)
    built = build_kernel(options.source, debug=options.debug, jobs=options.jobs, extra_options=own, progress=progress)
    progress.step(f"{'built' if built.fresh else 'there already'}: {built.release}, in {built.place}")
    if built.lacks:
        progress.say("  this source does not have all that a guest is given by `vhca kconfig`:")
        for line in built.lacks:
            progress.say(f"    {line}")
    print(built.name)
    return status.OK


def _module(options: argparse.Namespace) -> int:
    from vhca.lab import Cache, Progress
    from vhca.lab.kernels import resolve
    from vhca.lab.module_build import build_module

    if options.kernel is None:
        options.refuse("--module takes --kernel, too: for which kernel?")
    progress = Progress(sys.stderr)
    cache = Cache()
    for path in build_module(options.module, resolve(options.kernel, cache, progress), cache, progress):
        print(path)
    return status.OK
