"""Modules of somebody's own in a guest: loaded when it has booted, or in the place of one of its kernel's.

Assumes files that the caller named. Guarantees: a file that is no module of this kernel is refused, by us before the
boot if it is to replace one, else by the kernel, whose words are passed on.
"""

from __future__ import annotations

import hashlib
import lzma
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from vhca.lab.elf import modinfo, read_module
from vhca.lab.errors import Completed, GuestError, LabError, last_lines
from vhca.lab.kernels import Kernel, module_name

_FOLDER: Final = "/usr/lib/vhca/modules"
_LOAD_S: Final = 60.0
_WORDS_MAX: Final = 12
_DMESG: Final = ("/usr/bin/busybox", "dmesg")


@dataclass(slots=True, frozen=True)
class OwnModule:
    """A module file of the host's.

    :ivar name: what the kernel calls it.
    :ivar needs: the modules that it says it depends on.
    :ivar vermagic: what it was built for: release and options.
    :ivar parameters: for the module, when it is loaded.
    """

    path: Path
    name: str
    needs: Sequence[str]
    vermagic: str
    parameters: Sequence[str] = ()


class Runs(Protocol):
    """What is asked of a guest here."""

    name: str

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        """Run a command to its end."""

    def copy_in(self, source: Path, target: str) -> None:
        """Copy a file into the guest."""


def own_module(path: str | Path, parameters: Sequence[str] = ()) -> OwnModule:
    """The module in this file; `LabError` if there is none."""
    place = Path(path).expanduser()
    info = _told(place)
    if "vermagic" not in info:
        raise LabError(
            f"{place} is no module of a kernel: it does not say for which", "give a .ko file, as make left it"
        )
    name = info.get("name", [place.name])[0]
    needs = [module_name(word) for text in info.get("depends", []) for word in text.split(",") if word]
    return OwnModule(place.resolve(), module_name(name), needs, info["vermagic"][0], tuple(parameters))


def _told(place: Path) -> Mapping[str, list[str]]:
    try:
        return modinfo(read_module(place))
    except OSError as error:
        raise LabError(f"cannot read the module {place}: {error.strerror}", "give a .ko file") from error
    except (lzma.LZMAError, EOFError, subprocess.SubprocessError) as error:
        raise LabError(f"{place} cannot be unpacked: {error}", "give the .ko file itself") from error


# ---- in the place of another ----


def with_replaced(kernel: Kernel, modules: Sequence[OwnModule]) -> Kernel:
    """The kernel with these modules in the place of its own of the same names.

    :raises LabError: it has no such module, or one was built for another kernel.
    """
    if not modules:
        return kernel
    files = dict(kernel.modules)
    digest = hashlib.sha256(kernel.identity.encode())
    for module in modules:
        if module.name not in kernel.modules:
            has = "has it built in" if module.name in kernel.builtin else "has no such module"
            raise LabError(
                f"{module.path.name} cannot replace {module.name}: kernel {kernel.release} {has}",
                "load it as one more with --insmod" if has.endswith("module") else "build a kernel with it as a module",
            )
        if module.vermagic.split()[:1] != [kernel.release]:
            raise LabError(
                f"{module.path.name} was built for {module.vermagic.split()[0]}, the kernel is {kernel.release}",
                "build it against this kernel, its headers or its tree (docs/kernel-debugging.md)",
            )
        files[module.name] = module.path
        digest.update(f"{module.name} ".encode() + hashlib.sha256(module.path.read_bytes()).digest())
    names = ", ".join(sorted(module.name for module in modules))
    origin = f"{kernel.origin}, with another {names}"
    return replace(kernel, modules=files, identity=digest.hexdigest()[:20], origin=origin)


# ---- loaded ----


def needed_of(kernel: Kernel, modules: Sequence[OwnModule]) -> list[str]:
    """What the image must have for these modules to load: those of the kernel's modules that they need."""
    own = {module.name for module in modules}
    return sorted({name for module in modules for name in module.needs if name in kernel.modules} - own)


def load(guest: Runs, modules: Sequence[OwnModule]) -> None:
    """Load these modules, one after the other, with those of the kernel's that they need.

    :raises GuestError: one was refused; with the kernel's words.
    """
    if not modules:
        return
    guest.run(["mkdir", "-p", _FOLDER], timeout_s=_LOAD_S)
    own = {module.name for module in modules}
    for number, module in enumerate(modules):
        if needs := [name for name in module.needs if name not in own]:
            # one that is built in, or not there, is no matter here: the kernel says what it misses
            guest.run(["modprobe", "-q", "-a", *needs], timeout_s=_LOAD_S)
        target = f"{_FOLDER}/{number}-{module.path.name}"
        guest.copy_in(module.path, target)
        before = _log(guest)
        done = guest.run(["insmod", target, *module.parameters], timeout_s=_LOAD_S)
        if done.returncode:
            said = [line for line in _log(guest)[len(before) :] if module.name in line.replace("-", "_")]
            text = "\n".join([*(done.stderr or done.stdout).strip().splitlines(), *said])
            raise GuestError(
                f"{guest.name}: the kernel refused {module.path.name}:\n{last_lines(text, _WORDS_MAX, '  ')}",
                f"it was built for {module.vermagic.split()[0]}; build it against the kernel that boots",
            )


def _log(guest: Runs) -> list[str]:
    return guest.run([*_DMESG], timeout_s=_LOAD_S).stdout.splitlines()
