"""Builds a small kernel for guests: tinyconfig and what a guest needs, out of a tree that is left as it is.

A build has a folder of its own in the cache (make's `O=`), kept, so that the next state of the same tree is built in
the time that its changes take. What is built goes to an entry of the cache that is laid out like an installed kernel,
one for each state of the source, configuration and compiler. Assumes a compiler and make; runs the Makefiles of the
source, as `make` in it would. Guarantees: an entry is complete; of two builds of one tree the second waits.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vhca.lab import kconfig
from vhca.lab.build_tools import BuildTools, find_build_tools
from vhca.lab.built_kernels import KEY_DIGITS, KIND, release_of
from vhca.lab.cache import Cache, Progress, free_bytes, space_remedy
from vhca.lab.errors import KernelError, LabError, last_lines
from vhca.lab.kernel_source import Source, find_source

_RECIPE: Final = "1"  # part of every key: raise it when the code below makes something else of the same source
_WORK: Final = "kernel-work"
_KEPT: Final = {KIND: 6, _WORK: 3, "kernel-source": 2}
_NEEDED_BYTES: Final = 3_000_000_000
_TOLD_EVERY: Final = 250  # files
_COMPILED: Final = re.compile(r"\s+(?:CC|AS|LD|AR|HOSTCC)\b")
_COMPLAINT: Final = re.compile(r"error:|Error \d|No such file|not found|undefined|No rule to make|\*\*\*|cannot ")
_COMPLAINTS_MAX: Final = 12
_TO_THE_END_S: Final = 10.0


@dataclass(slots=True, frozen=True)
class Built:
    """A kernel that was built.

    :ivar place: a folder laid out like an installed kernel; `--kernel` takes it, and its name.
    :ivar release: what `uname -r` says of it.
    :ivar lacks: options that a guest needs and this source does not have, for people.
    :ivar fresh: was it built now, not found?
    """

    place: Path
    release: str
    lacks: Sequence[str]
    fresh: bool

    @property
    def name(self) -> str:
        """What `--kernel` takes for it."""
        return self.place.name


def build_kernel(
    source: str | Path,
    *,
    debug: bool = False,
    jobs: int | None = None,
    extra_options: str = "",
    cache: Cache | None = None,
    progress: Progress | None = None,
) -> Built:
    """Build the kernel of a tree, or of Debian's package `linux-source-X.Y`, unless it was built before.

    :param debug: with what finds faults of a driver (:data:`vhca.lab.kconfig.DEBUG`).
    :param jobs: how many compilers at a time; as many as there are processors if not given.
    :param extra_options: lines of a configuration to put on top.
    :raises LabError: something is missing, or the build failed; with the compiler's words.
    """
    cache = cache if cache is not None else Cache()
    progress = progress if progress is not None else Progress()
    groups = (*kconfig.GUEST, *(kconfig.DEBUG if debug else ()))
    options = f'{kconfig.fragment(groups)}CONFIG_LOCALVERSION="-vhca{"-debug" * debug}"\n{extra_options}\n'
    found = find_source(source, cache, progress)
    tools = find_build_tools(cache, progress)
    key = hashlib.sha256(repr((_RECIPE, found.state, options, tools.compiler)).encode()).hexdigest()[:KEY_DIGITS]
    name = f"{found.label}{'-debug' * debug}-{key}"
    fresh = not cache.path(KIND, name).exists()

    def build(place: Path) -> None:
        work = hashlib.sha256(repr((str(found.tree), options, tools.compiler)).encode()).hexdigest()[:16]
        with cache.lock(f"{_WORK}-{work}", lambda: progress.step("another run builds this tree; waiting for it")):
            _Build(found, cache.folder(_WORK, work), tools, jobs or os.cpu_count() or 1, progress).run(options, place)

    place = cache.obtain(KIND, name, build, progress)
    for kind, keep in _KEPT.items():
        cache.prune(kind, keep)
    release = release_of(place)
    lacks = kconfig.missing(groups, (place / "boot" / f"config-{release}").read_text())
    return Built(place, release, lacks, fresh)


class _Build:
    """One run of `make` after the other, in one folder."""

    def __init__(self, source: Source, work: Path, tools: BuildTools, jobs: int, progress: Progress) -> None:
        self._source = source
        self._work = work
        self._tools = tools
        self._jobs = jobs
        self._progress = progress
        self._log = work / "build.log"

    def run(self, options: str, place: Path) -> None:
        """Configure, build, and lay the result out at `place`."""
        tree = self._source.tree
        if used := [n for n in (".config", "include/config", "arch/x86/include/generated") if (tree / n).exists()]:
            raise KernelError(
                f"{tree} was built in (it has {used[0]}), and then a build elsewhere would take half of that",
                f"boot what was built there (--kernel {tree}); or `make mrproper` in it; or build a clean copy:"
                f" git -C {tree} worktree add ../clean",
            )
        if free_bytes(self._work) < _NEEDED_BYTES:
            raise LabError(f"a build takes {_NEEDED_BYTES / 1e9:.0f} GB", space_remedy(self._work))
        self._log.unlink(missing_ok=True)
        os.utime(self._work)  # pruning goes by the time of last use
        self._progress.step(f"configuring {self._source.label}")
        self._make("tinyconfig")
        config = self._work / ".config"
        with config.open("a") as stream:
            stream.write(options)
        self._make("olddefconfig")
        self._progress.step(f"building {self._source.label} with {self._tools.compiler}, {self._jobs} at a time")
        self._make("bzImage", "modules", listener=self._counter())
        self._source.check()
        self._progress.step("putting the kernel and its modules together")
        self._lay_out(place)

    def _counter(self) -> Callable[[str], None]:
        files = 0

        def listen(line: str) -> None:
            nonlocal files
            if _COMPILED.match(line):
                files += 1
                if files % _TOLD_EVERY == 0:
                    self._progress.step(f"{files} files, now {line.split()[-1]}")

        return listen

    def _lay_out(self, place: Path) -> None:
        release = (self._work / "include/config/kernel.release").read_text().strip()
        self._make("modules_install", f"INSTALL_MOD_PATH={place / 'usr'}", "DEPMOD=true")
        for source, target in (
            ("arch/x86/boot/bzImage", f"boot/vmlinuz-{release}"),
            (".config", f"boot/config-{release}"),
            ("System.map", f"boot/System.map-{release}"),
            ("vmlinux", f"usr/lib/debug/boot/vmlinux-{release}"),
        ):
            (place / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._work / source, place / target)

    def _make(self, *targets: str, listener: Callable[[str], None] = lambda line: None) -> None:
        # An empty LOCALVERSION keeps a "+" of trees between releases away: the state is in the name of the entry.
        command = ["make", "-C", str(self._source.tree), f"O={self._work}", f"-j{self._jobs}", "LOCALVERSION="]
        command += [*self._tools.variables, *targets]
        run_make(command, self._tools.environment, self._log, listener)


def run_make(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    listener: Callable[[str], None] = lambda line: None,
) -> None:
    """Run `make`, with all that it says going to the end of `log` and, line by line, to `listener`.

    :raises LabError: it failed; with its complaints.
    """
    complaints: deque[str] = deque(maxlen=_COMPLAINTS_MAX)
    last: deque[str] = deque(maxlen=_COMPLAINTS_MAX)
    with log.open("ab") as file, _started(command, environment) as process:
        assert process.stdout is not None
        for data in process.stdout:
            file.write(data)
            line = data.decode("utf-8", "replace").rstrip()
            last.append(line)
            if _COMPLAINT.search(line):
                complaints.append(line)
            listener(line)
        status = process.wait()
    if status:
        words = last_lines("\n".join(complaints or last), _COMPLAINTS_MAX, "  ")
        raise LabError(f"make {command[-1]} ended with {status}:\n{words}", f"the whole is in {log}")


@contextlib.contextmanager
def _started(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a group of its own, which ends with the body, whatever it started."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _end(process)
        if process.stdout is not None:
            process.stdout.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the group, kindly first: make removes what is half written."""
    for number, patience_s in ((signal.SIGTERM, _TO_THE_END_S), (signal.SIGKILL, _TO_THE_END_S)):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
