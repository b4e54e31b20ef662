"""Files that are kept from run to run: names, who holds them, what is listed and removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from vhca.cli.commands.guest import kept_table
from vhca.lab import GuestConfig, LabError, kept
from vhca.lab.cache import Cache


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a b", "-x", "x" * 65])
def test_a_name_that_is_no_folder_of_ours_is_refused(name: str, cache: Cache) -> None:
    with pytest.raises(LabError, match="no name for kept files"):
        GuestConfig(keep=name).checked()
    with pytest.raises(LabError, match="no name for kept files"):
        kept.claim(cache, name, "x")


def test_a_name_is_held_by_one_run_at_a_time(cache: Cache) -> None:
    first = kept.claim(cache, "work", "packages of trixie")
    with pytest.raises(LabError, match=f"kept as work are in use, by process {os.getpid()}"):
        kept.claim(cache, "work", "packages of trixie")
    with pytest.raises(LabError, match="in use"):
        kept.discard(cache, "work")
    kept.claim(cache, "other", "packages of trixie").close()
    assert [(one.name, one.in_use) for one in kept.entries(cache)] == [("other", False), ("work", True)]
    first.close()
    kept.claim(cache, "work", "packages of trixie").close()


def test_what_lies_over_one_root_is_not_put_over_another(cache: Cache) -> None:
    kept.claim(cache, "work", "packages of trixie").close()
    with pytest.raises(LabError, match="lie over packages of trixie, not over /srv/root"):
        kept.claim(cache, "work", "/srv/root")
    kept.claim(cache, "work", "packages of trixie").close()


@pytest.mark.skipif(not (shutil.which("mke2fs") or Path("/sbin/mke2fs").exists()), reason="needs e2fsprogs")
def test_an_image_is_bounded_sparse_private_and_stays(cache: Cache) -> None:
    held = kept.claim(cache, "work", "packages of trixie")
    image = held.image("g0")
    status = image.stat()
    assert status.st_size == kept.IMAGE_BYTES
    assert status.st_blocks * 512 < kept.IMAGE_BYTES // 10
    assert (status.st_mode & 0o777, held.folder.stat().st_mode & 0o777) == (0o600, 0o700)
    with image.open("r+b") as stream:
        stream.seek(1 << 20)
        stream.write(b"kept")
    assert held.image("g0").stat().st_ino == status.st_ino
    held.close()
    cache.prune("images", 0)
    (entry,) = kept.entries(cache)
    assert (entry.guests, entry.over) == (["g0"], "packages of trixie")
    assert "packages of trixie" in "\n".join(kept_table([entry]))
    kept.discard(cache, "work")
    assert kept.entries(cache) == []
    assert kept_table([]) == ["nothing is kept"]
    with pytest.raises(LabError, match="nothing is kept as work"):
        kept.discard(cache, "work")


def test_a_host_without_the_program_is_told(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_args, **_named: None)
    held = kept.claim(cache, "work", "x")
    with pytest.raises(LabError, match="install the package e2fsprogs"):
        held.image("g0")
    held.close()
