"""Folders and logs that another user of the machine can neither read, nor swap, nor send elsewhere."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from vhca.private_files import PrivateLog, UnsafeFolder, create_private, own_folder

NOBODY = 65534


@pytest.fixture(params=[0, 0o077, 0o027])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_for_its_owner_alone(tmp_path: Path, umask: int) -> None:
    folder = own_folder(tmp_path / "a/b")
    assert mode(folder) == 0o700
    assert mode(tmp_path / "a") == 0o755 & ~umask
    assert own_folder(folder) == folder


@pytest.mark.parametrize("rights", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, rights: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(rights)
    with pytest.raises(UnsafeFolder, match=r"may write to .*\n  -> .*chmod go-w"):
        own_folder(folder)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(UnsafeFolder, match="may write to"):
        own_folder(tmp_path / "link")


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = own_folder(tmp_path / "theirs")
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(UnsafeFolder, match=r"belongs to user \d+[\s\S]*a folder of yours"):
        own_folder(folder)


def test_a_folder_that_anybody_may_replace_is_refused(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(0o777)
    with pytest.raises(UnsafeFolder, match="anybody may replace"):
        own_folder(parent / "mine")
    parent.chmod(0o1777)  # as the folder for temporary files is
    assert own_folder(parent / "mine") == parent / "mine"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnsafeFolder, match="no folder"):
        own_folder(tmp_path / "file")


def test_a_private_file_is_new_whatever_was_there(tmp_path: Path, umask: int) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "hard link").hardlink_to(victim)
    (tmp_path / "dangling").symlink_to(tmp_path / "not-there")
    for name in ("none", "file", "link", "hard link", "dangling"):
        path = tmp_path / name
        descriptor = create_private(path)
        os.write(descriptor, b"new")
        os.close(descriptor)
        assert path.read_bytes() == b"new"
        assert not path.is_symlink()
        assert mode(path) == 0o600
    assert victim.read_text() == "precious"
    assert not (tmp_path / "not-there").exists()


def test_a_link_that_comes_in_between_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: path.symlink_to(victim))
    with pytest.raises(FileExistsError):
        create_private(tmp_path / "log")
    assert victim.read_text() == "precious"


def test_a_log_takes_a_bounded_part_of_the_disk(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "h0.log"
    victim = tmp_path / "victim"
    victim.write_text("precious")
    handler = PrivateLog(path, 1000)
    logger = logging.Logger("h0")
    logger.addHandler(handler)
    for number in range(100):
        logger.info("line %d of %s", number, "x" * 20)
    # what takes its place while it is written is replaced at the next turn, not followed
    path.unlink()
    path.symlink_to(victim)
    for number in range(100):
        logger.info("line %d of %s", number, "x" * 20)
    handler.close()
    files = [path, tmp_path / "h0.log.1"]
    assert all(file.stat().st_size <= 1000 and mode(file) == 0o600 for file in files if not file.is_symlink())
    assert "line 99" in path.read_text()
    assert victim.read_text() == "precious"


def test_a_full_disk_costs_lines_and_one_warning(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    handler = PrivateLog(tmp_path / "log", 1000)
    handler.setStream(open("/dev/full", "w"))  # noqa: SIM115 (closed by the handler)
    logger = logging.Logger("h0")
    logger.addHandler(handler)
    for _ in range(3):
        logger.info("words")
    assert handler.lost == 3
    words = f"{tmp_path / 'log'} loses lines: [Errno 28] No space left on device"
    assert [record.getMessage() for record in caplog.records] == [words]
    assert capsys.readouterr().err == ""
