"""Kernels that guests can have here: of the cache, of the mirror, of the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vhca.lab import pins
from vhca.lab.built_kernels import built, release_of
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import PackageError
from vhca.lab.kernel_index import Search, fetch_bytes, matches, short, version_key
from vhca.lab.kernels import cached_releases, installed_images


@dataclass(slots=True, frozen=True)
class Offer:
    """A kernel: its release, what `--kernel` takes for it, where it comes from, and how much there is to fetch."""

    release: str
    spec: str
    # suites of the mirror; "pool" for one that no index lists whole; "host"; "built" here; "" if nobody knows any more
    origin: str
    cached: bool
    fetch_bytes: int | None  # None: nothing, or not known

    @property
    def state(self) -> str:
        """What taking it costs, for people."""
        if self.origin == "host":
            return "installed"
        if self.origin == "built":
            return "built"
        if self.cached:
            return "cached"
        return f"{self.fetch_bytes / 1e6:.0f} MB to fetch" if self.fetch_bytes else "to fetch"


def offers(cache: Cache, progress: Progress, *, mirror: bool = True, root: Path = Path("/")) -> tuple[list[Offer], str]:
    """All of them, oldest first, then those of the host and those built here; and what could not be asked, for people.

    That is empty if nothing is. `mirror`: ask it; without it only what needs no network is found. `root`: of the host's
    own kernels.
    """
    cached = set(cached_releases(cache))
    found: dict[str, Offer] = {}
    trouble = ""
    if mirror:
        search = Search(cache, progress)
        try:
            for kernels in search.kernels():
                sizes = fetch_bytes(kernels)
                for listed in kernels:
                    name, there = listed.release, listed.release in cached
                    found[name] = Offer(name, short(name), listed.suite, there, None if there else sizes[name])
            for release, files in pins.KERNELS.items():
                size = sum(file.size_bytes for file in files)
                found.setdefault(release, Offer(release, short(release), "pool", release in cached, size))
        except PackageError as error:
            trouble = f"the mirror cannot be asked: {error}"
        if search.unreached:
            trouble = f"the mirror has no index of {', '.join(search.unreached)}"
    for release in cached - found.keys():
        found[release] = Offer(release, short(release), "", True, None)
    listed_first = sorted(found.values(), key=lambda offer: version_key(offer.release))
    own = [Offer(release_of(place), place.name, "built", True, None) for place in built(cache)]
    return [*_told_apart(listed_first), *_of_host(root), *own], trouble


def _told_apart(offers: list[Offer]) -> list[Offer]:
    """With specs that mean one of them: two suites may have builds of one version."""
    meant = [[other for other in offers if matches(offer.spec, other.release)] for offer in offers]
    return [
        offer
        if len(others) == 1
        else Offer(offer.release, offer.release, offer.origin, offer.cached, offer.fetch_bytes)
        for offer, others in zip(offers, meant, strict=True)
    ]


def _of_host(root: Path) -> Iterator[Offer]:
    """Those that are installed here; a container has none."""
    images = dict(installed_images(root))
    for release in sorted(images, key=version_key):
        yield Offer(release, str(images[release]), "host", False, None)


def chosen(offers: Iterable[Offer], version: str) -> list[Offer]:
    """Those that a version means, as `--kernel` reads it."""
    return [offer for offer in offers if matches(version, offer.release)]
