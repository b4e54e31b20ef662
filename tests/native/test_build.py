"""The engine in C: how it is built, chosen and left out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firmware.native import declarations
from tests.native.__main__ import CREW, MEMORY, PAIRS, THREADS, build
from vhca.native import NativeError, choice, compiler, library
from vhca.native import build as builder
from vhca.native.build import KEPT

SOURCE = '#include "three.h"\nint answer(void) { return THREE; }\n'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VHCA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "answer.c").write_text(SOURCE)
    try:
        compiler()
    except NativeError as error:
        pytest.skip(str(error))
    return folder


def test_a_library_is_built_once(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = library("answer", sources, {"three.h": "#define THREE 3\n"})
    assert path.parent == sources.parent / "cache" / "native"
    monkeypatch.setattr(builder, "_compile", lambda command: pytest.fail("compiled again"))
    assert library("answer", sources, {"three.h": "#define THREE 3\n"}) == path


def test_other_sources_headers_and_flags_are_another_library(sources: Path) -> None:
    paths = {library("answer", sources, {"three.h": "#define THREE 3\n"})}
    paths.add(library("answer", sources, {"three.h": "#define THREE 4\n"}))
    paths.add(library("answer", sources, {"three.h": "#define THREE 3\n"}, ["-DMORE"]))
    (sources / "answer.c").write_text(SOURCE + "int more;\n")
    paths.add(library("answer", sources, {"three.h": "#define THREE 3\n"}))
    assert len(paths) == 4
    assert not list((sources.parent / "cache" / "native").glob(".tmp-*"))


def test_the_newest_libraries_are_kept(sources: Path) -> None:
    folder = sources.parent / "cache" / "native"
    other = folder / "other-0123456789abcdef.so"
    folder.mkdir(parents=True)
    other.touch()
    paths = [library("answer", sources, {"three.h": f"#define THREE {number}\n"}) for number in range(KEPT)]
    assert all(path.exists() for path in paths)
    for number, path in enumerate(paths):
        os.utime(path, ns=(number, number))
    paths.append(library("answer", sources, {"three.h": "#define THREE 30\n"}))
    assert [path.exists() for path in paths] == [False] + [True] * KEPT
    assert other.exists()


def test_what_the_compiler_says_is_told(sources: Path) -> None:
    with pytest.raises(NativeError, match="THREE"):
        library("answer", sources, {"three.h": ""})


def test_a_compiler_that_hangs_or_is_none_is_told(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(NativeError, match=r"/nowhere/cc: .*\n.*let CC name a C compiler"):
        library("answer", sources, {"three.h": ""})
    monkeypatch.setenv("CC", "sleep 60;")
    monkeypatch.setattr(builder, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(builder, "FLAGS", ())
    monkeypatch.setenv("CC", "sh -c 'sleep 60'")
    with pytest.raises(NativeError, match="did not end"):
        library("answer", sources, {"three.h": "x"})


def test_a_host_without_compiler_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NativeError, match="apt install gcc"):
        compiler()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert compiler() == [sys.executable, "-m", "ziglang", "cc"]
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert compiler() == ["/bin/cc"]
    monkeypatch.setenv("CC", "ccache 'my cc'")
    assert compiler() == ["ccache", "my cc"]


def test_the_engine_is_chosen_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("python", "native", ""):
        monkeypatch.setenv("VHCA_ENGINE", word)
        assert choice() == word
    monkeypatch.setenv("VHCA_ENGINE", "c")
    with pytest.raises(NativeError, match="there are python and native"):
        choice()


@pytest.mark.parametrize(("engine", "there"), [("python", "False"), ("native", "True")])
def test_a_program_has_the_engine_that_was_chosen(engine: str, there: str, sources: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", "from firmware.native.library import loaded; print(loaded().there)"],
        env={"VHCA_ENGINE": engine, "PATH": "/usr/bin:/bin", "VHCA_CACHE": str(sources.parent / "cache")},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == there


def test_who_insists_on_an_engine_that_cannot_be_is_told(sources: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", "from firmware.native.library import loaded; loaded()"],
        env={"VHCA_ENGINE": "native", "CC": "/nowhere/cc", "VHCA_CACHE": str(sources.parent / "cache")},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode
    assert "/nowhere/cc" in told.stderr


def test_formats_in_c_are_those_of_their_declarations() -> None:
    text = declarations.formats_h()
    for line in (
        "#define CTRL_SEGMENT_WQE_INDEX_SHIFT 8", "#define CTRL_SEGMENT_WQE_INDEX_MASK 0xffffu",
        "#define CQE64_BYTE_CNT_AT 0x2c", "#define CQE64_OPCODE_SHIFT 4", "#define WQE_RDMA_READ 0x10",
        "#define CQE_RESP_SEND_IMM 0x3", "#define ACCESS_REMOTE_ATOMIC 0x10", "#define TERMINATOR_LKEY 0x100",
    ):  # fmt: skip
        assert line in text.splitlines()


def test_random_trains_touch_nothing_that_is_not_theirs(tmp_path: Path) -> None:
    try:
        program = build(tmp_path)
    except (NativeError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no compiler with sanitizers here: {error}")
    done = subprocess.run([program, "3", "2000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    assert int(done.stdout.split()[0]) > 500


@pytest.mark.parametrize("sanitizers", [MEMORY, THREADS])
def test_threads_share_nothing(tmp_path: Path, sanitizers: tuple[str, ...]) -> None:
    """Pairs of cards side by side, on several threads; what TSan finds makes it end with another status."""
    try:
        program = build(tmp_path, sanitizers)
    except (NativeError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no compiler with sanitizers here: {error}")
    done = subprocess.run([program, "3", "20", str(PAIRS), str(CREW)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    assert int(done.stdout.split()[0]) > 100
