"""The kernel's text: headers and, on request, the whole source of the release under test.

Assumes a mirror that still has the files below in its pool. Guarantees: what is read is the text of the very
package version that the guests boot, checked by SHA-256; nothing is fetched for a release that is not listed.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from pathlib import Path
from typing import Final

from vhca.lab import Cache, PackageError, Progress
from vhca.lab.packages import PackageStore, PoolFile, unpack

_LINUX: Final = "pool/main/l/linux"
#: Kernel release -> the package with its headers (11 MB).
HEADERS: Final = {
    "6.1.0-50-amd64": PoolFile(
        f"{_LINUX}/linux-headers-6.1.0-50-common_6.1.176-1_all.deb",
        "7f6f7bee50efbc36dc02c976be5982b96cf36abe544f03f09368e98cfcc5ac3b",
        10367932,
    ),
    "6.12.117+deb13-amd64": PoolFile(
        f"{_LINUX}/linux-headers-6.12.117+deb13-common_6.12.117-1_all.deb",
        "ac1203a8778a01e09c0ef94d87a3607672c0fc3d5369540c3f1580269b277611",
        11398724,
    ),
    "6.19.14+deb13-amd64": PoolFile(
        f"{_LINUX}/linux-headers-6.19.14+deb13-common_6.19.14-1~bpo13+1_all.deb",
        "708c2e462fc44467137271f7086513db77d5a144ea58b5140d86cefe0cf2097f",
        10884352,
    ),
    "7.2.12+deb13-amd64": PoolFile(
        f"{_LINUX}/linux-headers-7.2.12+deb13-common_7.2.12-1~bpo13+1_all.deb",
        "8456354805802dd3f44839693e5eb966fc75ac1ef5af4a7ffb0b368245580ce5",
        11127820,
    ),
    "7.3.4+deb13-amd64": PoolFile(
        f"{_LINUX}/linux-headers-7.3.4+deb13-common_7.3.4-1~bpo13+1_all.deb",
        "886647d4a7b05d2aedd22f8e16917c5b75e97e8946966d6bac48962c40b19a06",
        11206644,
    ),
}
#: Kernel release -> the package with its source (160 MB).
SOURCES: Final = {
    "6.19.14+deb13-amd64": PoolFile(
        f"{_LINUX}/linux-source-6.19_6.19.14-1~bpo13+1_all.deb",
        "027344f5c615c16df534878d7e434639d3bf7702c67bd41123be815e0953133b",
        160237128,
    ),
}
_KEPT: Final = ("drivers/infiniband/", "include/rdma/", "include/uapi/rdma/")


def kernel_text(release: str, cache: Cache, progress: Progress, *, whole: bool) -> Path | None:
    """A folder laid out as the kernel's source: include/rdma, and with `whole` drivers/infiniband too.

    None if no package is listed for this release. Raises :class:`PackageError` if it cannot be had.
    """
    package = (SOURCES if whole else HEADERS).get(release)
    if package is None:
        return None

    def build(place: Path) -> None:
        store = PackageStore(cache, progress, "kernel-text")
        debs = store.fetch_pool([package], f"{'source' if whole else 'headers'} of {release}")
        root = place.with_name("root")
        unpack(debs, root, progress, "unpacking the kernel's text")
        if whole:
            _extract(root, place, progress)
        else:
            (headers,) = (root / "usr/src").glob("linux-headers-*-common")
            shutil.copytree(headers / "include/rdma", place / "include/rdma")
        store.clear()

    return cache.obtain("kernel-text", f"{package.sha256[:16]}", build, progress)


def _extract(root: Path, place: Path, progress: Progress) -> None:
    """Take the parts that are kept out of the source package's archive."""
    archives = list((root / "usr/src").glob("linux-source-*.tar.xz"))
    if len(archives) != 1:
        raise PackageError("the source package does not hold one archive of the source")
    progress.step("reading the kernel's source (a minute)")
    with tarfile.open(archives[0]) as archive:
        for member in archive:
            inside = member.name.partition("/")[2]
            if member.isfile() and inside.startswith(_KEPT):
                stream = archive.extractfile(member)
                assert stream is not None
                target = place / inside
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(stream.read())


def line_of(text: str, pattern: str) -> list[int]:
    """Numbers (from 1) of the lines that match a regular expression from their beginning."""

    compiled = re.compile(pattern)
    return [number for number, line in enumerate(text.splitlines(), 1) if compiled.match(line)]
