"""From C sources to a library in the cache, with the compiler of this host or one that comes as a Python package.

A library depends on nothing but libc, and on no header of Python's. It is built when it is first asked for and kept
under a hash of everything that went into it, so a change of the sources is another library.
"""

import contextlib
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from vhca.folders import default_root

FLAGS: Final = ("-std=c11", "-O3", "-fPIC", "-shared", "-pthread", "-fno-strict-aliasing")
COMPILERS: Final = ("cc", "gcc", "clang")
PACKAGE: Final = "ziglang"
TIMEOUT_S: Final = 120
# Libraries of one name that stay in the cache: of versions and compilers that are used in turn.
KEPT: Final = 8


class NativeError(Exception):
    """There is no library; the text says why and what to do."""


def compiler() -> list[str]:
    """A C compiler: `$CC`, the host's, or that of the package `ziglang`; NativeError if there is none."""
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    for name in COMPILERS:
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec(PACKAGE) is not None:
        return [sys.executable, "-m", PACKAGE, "cc"]
    raise NativeError(f"no C compiler here\n  -> apt install gcc, or pip install {PACKAGE} (100 MB)")


def library(name: str, sources: Path, headers: Mapping[str, str], flags: Sequence[str] = ()) -> Path:
    """The library `name` made of all C files in `sources` and of generated `headers`; NativeError if it cannot be."""
    files = sorted(sources.glob("*.[ch]"))
    command = compiler()
    told = hashlib.sha256(repr((command, FLAGS, tuple(flags), sorted(headers.items()))).encode())
    for file in files:
        told.update(file.name.encode() + b"\0" + file.read_bytes())
    folder = default_root() / "native"
    path = folder / f"{name}-{told.hexdigest()[:16]}.so"
    if path.exists():
        # What is used is not old; somebody else's cache may be read only.
        with contextlib.suppress(OSError):
            os.utime(path)
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-") as work:
            for header, text in headers.items():
                (Path(work) / header).write_text(text)
            made = Path(work) / path.name
            inputs = [str(file) for file in files if file.suffix == ".c"]
            _compile([*command, *FLAGS, *flags, "-I", work, "-I", str(sources), *inputs, "-o", str(made)])
            made.rename(path)
        _forget_old(folder, name)
    except OSError as error:
        raise NativeError(f"{folder}: {error}\n  -> set VHCA_CACHE to a folder that can be written") from error
    return path


def _forget_old(folder: Path, name: str) -> None:
    """Keep the newest libraries of this name; whoever has loaded another one keeps that."""
    made = []
    for path in folder.glob(f"{name}-*.so"):
        # Another process may do the same.
        with contextlib.suppress(FileNotFoundError):
            made.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(made)[:-KEPT]:
        path.unlink(missing_ok=True)


def _compile(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NativeError(f"{command[0]} did not end in {TIMEOUT_S} s") from None
    except OSError as error:
        raise NativeError(f"{command[0]}: {error.strerror}\n  -> let CC name a C compiler, or unset it") from error
    if done.returncode:
        said = "\n".join(done.stderr.splitlines()[:20])
        raise NativeError(f"{shlex.join(command[:4])} ... failed:\n{said}")
