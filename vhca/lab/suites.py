"""Suites: which releases of Debian a guest's userland can be made of, and where apt finds the packages of each.

A guest has one suite: its own programs and the packages that are asked for by name are of the same, so their versions
fit each other.
"""

from __future__ import annotations

from typing import Final

from vhca.lab import pins
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import PackageError
from vhca.lab.packages import SUITES, PackageStore

# By suite, those whose indexes are read; the suite's own packages come first.
_SOURCES: Final = {
    "trixie": SUITES,
    "trixie-backports": SUITES,
    "bookworm": ("bookworm",),
    "bookworm-backports": ("bookworm", "bookworm-backports"),
    "forky": ("forky",),
    "sid": ("sid",),
    "experimental": ("sid", "experimental"),
}
NAMES: Final = tuple(_SOURCES)


def checked(suite: str | None) -> str:
    """The name of a suite, by default the usual one; `PackageError` if guests cannot be made of it."""
    if suite is None:
        return pins.GUEST_SUITE
    if suite not in _SOURCES:
        raise PackageError(f"guests cannot be made of a suite {suite!r}", f"there are {', '.join(NAMES)}")
    return suite


def store_of(suite: str, cache: Cache, progress: Progress, shelf: str) -> PackageStore:
    """apt over the indexes of a suite. Those of other releases than the usual one may be late."""
    sources = _SOURCES[suite]
    return PackageStore(cache, progress, shelf, sources, late=sources != SUITES)


def guest_without(suite: str) -> frozenset[str]:
    """Packages that guests of this suite go without."""
    if _SOURCES[suite] == SUITES:
        return pins.GUEST_WITHOUT
    return pins.GUEST_WITHOUT - pins.OTHER_SUITES_WITH | pins.OTHER_SUITES_WITHOUT


def extra_without(suite: str) -> frozenset[str]:
    """Packages that others, asked for by name, do not bring with them."""
    return pins.EXTRA_WITHOUT if _SOURCES[suite] == SUITES else pins.EXTRA_WITHOUT | pins.OTHER_SUITES_WITHOUT
