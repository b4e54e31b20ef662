"""The cache: complete or absent, built once, whoever asks."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest

from vhca.folders import default_root
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import LabError


def test_an_entry_is_built_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    built: list[Path] = []

    def build(place: Path) -> None:
        built.append(place)
        place.write_text("x")

    threads = [threading.Thread(target=cache.obtain, args=("kind", "key", build)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert cache.path("kind", "key").read_text() == "x"


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def build(place: Path) -> None:
        place.mkdir()
        (place / "half").write_text("x")
        raise LabError("broken")

    with pytest.raises(LabError, match="broken"):
        cache.obtain("kind", "key", build)
    assert list(cache.path("kind").iterdir()) == []


def test_what_a_killed_build_left_is_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (tmp_path / "kind/.tmp-key-dead/entry").mkdir(parents=True)
    cache.obtain("kind", "key", lambda place: place.touch())
    assert [p.name for p in (tmp_path / "kind").iterdir()] == ["key"]


def test_a_waiting_run_says_so(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    told = threading.Event()
    with cache.lock("name"):
        other = threading.Thread(target=lambda: cache.lock("name", told.set).__enter__())
        other.start()
        assert told.wait(10)
    other.join(10)
    assert not other.is_alive()


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    import os

    cache = Cache(tmp_path)
    for age, name in enumerate(["new", "middle", "old"]):
        path = cache.obtain("images", name, lambda place: place.touch())
        os.utime(path, (1000 - age, 1000 - age))
    cache.prune("images", 2)
    assert sorted(p.name for p in (tmp_path / "images").iterdir()) == ["middle", "new"]
    cache.prune("absent", 2)


def test_the_root_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VHCA_CACHE", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    monkeypatch.setenv("HOME", "/three")
    assert default_root() == Path("/one")
    monkeypatch.delenv("VHCA_CACHE")
    assert default_root() == Path("/two/vhca")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_root() == Path("/three/.cache/vhca")


def test_a_root_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LabError, match="VHCA_CACHE"):
        Cache(tmp_path / "file").folder("x")


def test_progress_without_a_terminal_is_plain_lines() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress.step("begin")
    for done in range(101):
        progress.bar("job", done, 100)
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("begin")
    assert [line.split()[-2] for line in lines[1:]] == ["25", "50", "75", "100"]
    assert "\r" not in stream.getvalue()
    quiet = io.StringIO()
    Progress(quiet, quiet=True).step("hush")
    assert quiet.getvalue() == ""


def test_an_entry_that_is_not_sound_is_made_again_with_a_word(tmp_path: Path) -> None:
    said = io.StringIO()
    cache = Cache(tmp_path)

    def obtain() -> Path:
        return cache.obtain(
            "kind",
            "key",
            lambda place: void(place.write_text("whole")),
            Progress(said),
            lambda place: place.read_text() == "whole",
        )

    def void(_: object) -> None:
        return None

    place = obtain()
    obtain()
    assert said.getvalue() == ""
    place.write_text("who")
    assert obtain().read_text() == "whole"
    assert "is damaged; it is made again" in said.getvalue()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    def build(place: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(LabError, match=f"free for {tmp_path}.*VHCA_CACHE"):
        Cache(tmp_path).obtain("kind", "key", build)
