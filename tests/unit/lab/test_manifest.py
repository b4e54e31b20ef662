"""The manifest of a guest says what is in the image's sources."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from vhca.cli.commands.guest import report
from vhca.lab import image, manifest, pins
from vhca.lab.cache import Cache, Progress
from vhca.lab.kernels import Kernel


def _package(root: Path, name: str, **files: str) -> None:
    folder = root / "usr/share/doc" / name
    folder.mkdir(parents=True)
    (folder / "copyright").touch()
    for file, text in files.items():
        (folder / file.replace("_", ".")).write_bytes(gzip.compress(text.encode()))


def test_versions_are_those_of_the_changelogs(tmp_path: Path) -> None:
    _package(tmp_path, "strace", changelog_Debian_gz="strace (6.13+ds-1) unstable; urgency=medium\n")
    _package(
        tmp_path,
        "bash",
        changelog_Debian_amd64_gz="bash (5.2.37-2+b3) sid; urgency=low, binary-only=yes\n",
        changelog_Debian_gz="bash (5.2.37-2) unstable\n",
    )
    (tmp_path / "usr/share/doc/another/tests").mkdir(parents=True)
    _package(tmp_path, "silent", changelog_gz="\x00 nothing of use")
    assert manifest.packages(tmp_path) == [("bash", "5.2.37-2+b3"), ("silent", "?"), ("strace", "6.13+ds-1")]


def test_the_list_names_modules_loaded_built_in_and_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel("6.19.0", tmp_path, {}, frozenset({"mlx5_core"}), None, "id", "a tree")
    monkeypatch.setattr(manifest, "guest_root", lambda *_: tmp_path)
    monkeypatch.setattr(manifest, "programs", lambda _: (["ibstat", "sh"], ["vi"]))
    found = manifest.manifest(kernel, Cache(tmp_path / "cache"), Progress(quiet=True))
    assert found.builtin == ["mlx5_core"]
    assert "mlx5_ib" in found.absent
    text = report(found)
    for words in ("6.19.0 (a tree)", pins.GUEST_SUITE, "programs (2):\n  ibstat sh", "(1):\n  vi", "mlx5_ib ib_umad"):
        assert words in text


def test_programs_are_the_image_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("usr/bin/ls", "usr/sbin/opensm", "usr/share/x/tool", "usr/sbin/arpd"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(image, "_busybox_applets", lambda _: ["ls", "vi"])
    assert image.programs(tmp_path) == (["ls", "opensm", "sh", "wait-for"], ["vi"])


def test_the_guest_says_what_it_is_made_of_and_does_not_claim_to_be_debian() -> None:
    lines = image._TEXTS["etc/os-release"].format(suite=pins.GUEST_SUITE).splitlines()
    assert "ID=vhca" in lines
    assert "ID_LIKE=debian" in lines
    assert f"VERSION_CODENAME={pins.GUEST_SUITE}" in lines
