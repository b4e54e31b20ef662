"""UCX for guests: what is packed, and how it is started."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from vhca.lab import ucx
from vhca.lab.cache import Cache, Progress
from vhca.lab.packages import PackageStore

LIBRARIES = "usr/lib/x86_64-linux-gnu"
NEEDED = {
    "ucx_perftest": ["libucp.so.0", "libc.so.6"],
    "libucp.so.0": ["libucs.so.0", "libucp.so.0"],
    "libuct_ib.so.0": ["libibverbs.so.1", "libucs.so.0"],
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Unpacked packages; a library is there under its full name, with a link."""
    root = tmp_path / "root"
    for folder in ("usr/bin", f"{LIBRARIES}/ucx"):
        (root / folder).mkdir(parents=True)
    for program in ("ucx_info", "ucx_perftest"):
        (root / "usr/bin" / program).write_bytes(program.encode())
    for name in ("libuct_ib", "libuct_ib_mlx5", "libuct_rdmacm", "libuct_cma", "libuct_rocm"):
        (root / LIBRARIES / "ucx" / f"{name}.so.0").write_bytes(name.encode())
    for name in ("libucp", "libucs", "libmpi_java"):
        (root / LIBRARIES / f"{name}.so.0.0.0").write_bytes(name.encode())
        (root / LIBRARIES / f"{name}.so.0").symlink_to(f"{name}.so.0.0.0")
    monkeypatch.setattr(ucx, "needed_libraries", lambda path: NEEDED.get(path.name))
    return root


def test_what_is_asked_for_is_packed_and_no_more(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackageStore, "plan_alone", lambda *_: [])
    monkeypatch.setattr(PackageStore, "fetch", lambda *_: [])

    def place(debs: object, folder: Path, *_: object) -> None:
        shutil.copytree(root, folder, symlinks=True, dirs_exist_ok=True)

    monkeypatch.setattr(ucx, "unpack", place)
    archive = ucx.find_ucx(Cache(tmp_path / "cache"), Progress(quiet=True))
    with tarfile.open(archive) as packed:
        members = {member.name: member for member in packed.getmembers()}
    assert set(members) == {
        "usr/bin/ucx_info",
        "usr/bin/ucx_perftest",
        f"{LIBRARIES}/libucp.so.0",
        f"{LIBRARIES}/libucs.so.0",
        *(f"{LIBRARIES}/ucx/{name}.so.0" for name in ("libuct_ib", "libuct_ib_mlx5", "libuct_rdmacm", "libuct_cma")),
    }
    assert members[f"{LIBRARIES}/libucp.so.0"].isfile()


def test_the_command_finds_its_libraries_and_settings() -> None:
    assert ucx.command("ucx_info", "-d", UCX_TLS="rc_x") == [
        "env",
        f"LD_LIBRARY_PATH=/opt/ucx/{LIBRARIES}",
        "UCX_TLS=rc_x",
        "/opt/ucx/usr/bin/ucx_info",
        "-d",
    ]
