"""Package sets and suites: what a name stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from vhca.lab import extras, pins, sets, suites
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import PackageError
from vhca.lab.guest_system import guest_root_place
from vhca.lab.packages import SUITES


def test_a_set_is_its_packages_and_modules_and_other_names_are_themselves() -> None:
    names = ["nvme-cli", "mpi", "storage"]
    assert sets.packages_of(names)[:3] == ["nvme-cli", "openmpi-bin", "python3-mpi4py"]
    assert sets.modules_of(names) == ["rpcrdma", "nfsd", "nfsv4"]
    assert sets.modules_of(["nvme-cli"]) == []


def test_every_package_of_a_set_has_a_name_of_a_package() -> None:
    for name in sets.SETS:
        assert extras.checked(sets.packages_of([name]))


def test_tools_are_named_in_one_word_and_others_refused() -> None:
    assert sets.tools("gdb, perf,trace-cmd,bpftrace") == list(sets.TOOLS)
    with pytest.raises(PackageError, match="there is no tool mpi, vi"):
        sets.tools("gdb,mpi,vi")


def test_a_suite_has_indexes_and_a_root_of_its_own(tmp_path: Path) -> None:
    cache, quiet = Cache(tmp_path), Progress(quiet=True)
    assert suites.checked(None) == pins.GUEST_SUITE
    assert len({guest_root_place(cache, suite) for suite in suites.NAMES}) == len(suites.NAMES)
    assert suites.store_of("trixie", cache, quiet, "x").suites == SUITES
    assert suites.store_of("experimental", cache, quiet, "x").suites == ("sid", "experimental")
    for suite in suites.NAMES:
        assert suites.guest_without(suite) >= pins.GUEST_WITHOUT - pins.OTHER_SUITES_WITH
    with pytest.raises(PackageError, match="cannot be made of a suite 'woody'"):
        suites.checked("woody")


def test_what_a_tool_needs_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(extras, "guest_root", lambda *_: tmp_path / "base")
    monkeypatch.setattr(extras, "compile_python", lambda *_: None)
    monkeypatch.setattr(extras, "wanted_files", lambda *_: {})
    monkeypatch.setattr(extras, "_fetch", lambda names, without, *_: asked.append([*names, *without]))
    for names in (["nvme-cli"], ["perf"]):
        extras.packages_archive(names, Cache(tmp_path / "cache"), Progress(quiet=True))
    assert "libperl5.40" in asked[0]
    assert "linux-perf" in asked[1]
    assert "libperl5.40" not in asked[1]
