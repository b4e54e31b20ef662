"""Which kernels the mirror has: asks its suites one after the other, the usual ones first.

A kernel is one package, or three (image, modules, the rest); it is offered if the index of a suite has all of them.
Guarantees: nothing but indexes is fetched; a suite that the mirror does not have is named, and is no error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from vhca.lab import pins
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import PackageError
from vhca.lab.packages import SUITES, PackageStore

_IMAGE_PACKAGE: Final = re.compile(r"linux-image-(\d+\.\d+(?:\.\d+)?\S*?-amd64)$")
_FLAVOUR: Final = re.compile(r"-(rt|cloud)-|unsigned")
_PARTS: Final = ("binary", "modules", "base")


@dataclass(slots=True, frozen=True)
class Listed:
    """A kernel that the mirror can deliver: its release, and the packages of `store` that it is made of."""

    release: str
    packages: tuple[str, ...]
    store: PackageStore

    @property
    def suite(self) -> str:
        """Where it comes from; the usual suites share an index, and are named together."""
        return ", ".join(self.store.suites)


class Search:
    """The kernels of all suites. `known` are the releases that were heard of, `unreached` the suites that were not."""

    def __init__(self, cache: Cache, progress: Progress) -> None:
        self._cache = cache
        self._progress = progress
        self.known: set[str] = set()
        self.unreached: list[str] = []

    def kernels(self, named: str = "") -> Iterator[list[Listed]]:
        """Suite by suite, the kernels that can be delivered, oldest first.

        `named`: a release that is wanted although it is a variant (real-time, cloud). The usual suites must be there:
        `PackageError` if not.
        """
        seen: set[str] = set()
        for suites in (SUITES, *((suite,) for suite in pins.OTHER_KERNEL_SUITES)):
            # mirrors are late with suites that are renewed each day; an old list of kernels is a list of kernels
            store = PackageStore(self._cache, self._progress, "kernel", suites, late=suites != SUITES)
            try:
                names = store.names("linux-image-")
            except PackageError:
                if suites == SUITES:
                    raise
                self.unreached += suites
                continue
            releases = [match[1] for name in names if (match := _IMAGE_PACKAGE.match(name))]
            plain = [r for r in releases if r == named or not _FLAVOUR.search(r)]
            self.known.update(short(release) for release in plain)
            wanted = sorted({r for r in plain if r not in seen}, key=version_key)
            found = _deliverable(store, wanted)
            seen.update(listed.release for listed in found)
            yield found


def _deliverable(store: PackageStore, releases: Sequence[str]) -> list[Listed]:
    """Those whose files the index really has: it lists some of a kernel's packages without the others."""
    split = {release: tuple(f"linux-{part}-{release}" for part in _PARTS) for release in releases}
    whole = {release: f"linux-image-{release}" for release in releases}
    asked = [name for release in releases for name in (*split[release], whole[release])]
    have = store.candidates(asked) if asked else set()
    found = []
    for release in releases:
        if have.issuperset(split[release]):
            found.append(Listed(release, split[release], store))
        elif whole[release] in have and not have.intersection(split[release]):
            found.append(Listed(release, (whole[release],), store))
    return found


def fetch_bytes(kernels: Sequence[Listed]) -> dict[str, int]:
    """How much there is to fetch for each release, of kernels of one suite."""
    sizes: dict[str, int] = {}
    if names := [name for listed in kernels for name in listed.packages]:
        sizes = {file.name: file.size_bytes for file in kernels[0].store.plan_alone(names)}
    return {listed.release: sum(sizes.get(name, 0) for name in listed.packages) for listed in kernels}


def matches(version: str, release: str) -> bool:
    """Does `6.19` or `6.19.14` mean this release? Whole numbers must agree, from the left."""
    return release == version or (
        release.startswith(version) and len(release) > len(version) and release[len(version)] in ".+-"
    )


def version_key(release: str) -> list[int]:
    """What releases are sorted by: the numbers before the distribution's own."""
    return [int(number) for number in re.findall(r"\d+", short(release))]


def short(release: str) -> str:
    """A release as people write it: `6.12.107`, `6.1.0-50`."""
    return release.split("+")[0].removesuffix("-amd64")
