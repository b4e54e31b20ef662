"""Building kernels: out of a tree whose Makefile only pretends, so that the rest of it is real."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.lab.test_kernels import bzimage
from vhca.cli import status
from vhca.cli.main import main
from vhca.lab import kernel_build, kernels, pins
from vhca.lab.build_tools import BuildTools, find_build_tools, make_scripts
from vhca.lab.built_kernels import find_built, release_of, symbols, work_folder
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import KernelError, LabError
from vhca.lab.kernel_build import Built, build_kernel
from vhca.lab.kernel_list import offers
from vhca.lab.kernel_source import find_source, is_package, tree_state

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="this host has no make")

RELEASE = "6.19.0-vhca"
#: What the targets of a kernel's Makefile leave in O=, in a few lines.
MAKEFILE = r"""
tinyconfig:
	@test -d $(O)
	echo "CONFIG_TINY=y" > $(O)/.config
	echo run >> $(O)/runs
olddefconfig:
	mkdir -p $(O)/include/config && echo 6.19.0-vhca > $(O)/include/config/kernel.release
bzImage:
	mkdir -p $(O)/arch/x86/boot && cp image $(O)/arch/x86/boot/bzImage
	echo map > $(O)/System.map && echo elf > $(O)/vmlinux
	@for i in $$(seq 251); do echo "  CC      drivers/file$$i.o"; done
	cat code.c | grep -q right || { echo "code.c:1:2: error: not right" >&2; exit 3; }
modules:
	@test "$(LOCALVERSION)" = ""
modules_install:
	mkdir -p $(INSTALL_MOD_PATH)/lib/modules/6.19.0-vhca/kernel
	echo x > $(INSTALL_MOD_PATH)/lib/modules/6.19.0-vhca/kernel/mlx5_core.ko
	echo kernel/mlx5_core.ko > $(INSTALL_MOD_PATH)/lib/modules/6.19.0-vhca/modules.order
	ln -s $(O) $(INSTALL_MOD_PATH)/lib/modules/6.19.0-vhca/build
"""


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    place = tmp_path / "my linux"
    for folder in ("arch/x86", "scripts/kconfig"):
        (place / folder).mkdir(parents=True)
    (place / "Kconfig").touch()
    (place / "Makefile").write_text(MAKEFILE)
    (place / "image").write_bytes(bzimage(RELEASE))
    (place / "code.c").write_text("right\n")
    return place


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the host has, nothing is fetched."""
    environment = {"PATH": "/usr/bin:/bin"}
    monkeypatch.setattr(kernel_build, "find_build_tools", lambda *_: BuildTools("cc 1", (), environment))


def build(tree: Path, cache: Cache, **more: object) -> Built:
    return build_kernel(tree, cache=cache, progress=Progress(quiet=True), **more)  # type: ignore[arg-type]


def test_a_tree_becomes_a_kernel_that_guests_can_have(
    tree: Path, cache: Cache, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree_state(tree)
    built = build_kernel(tree, debug=True, cache=cache, progress=Progress())
    assert (built.release, built.fresh) == (RELEASE, True)
    assert built.name.startswith("my-linux-debug-")
    assert "250 files, now drivers/file250.o" in capsys.readouterr().err
    config = (built.place / f"boot/config-{RELEASE}").read_text()
    assert config.startswith("CONFIG_TINY=y\n# a guest")
    assert "CONFIG_KASAN=y" in config
    assert 'CONFIG_LOCALVERSION="-vhca-debug"' in config
    assert symbols(built.place).read_text() == "elf\n"
    assert work_folder(built.place) is not None
    for name in (built.name, "my-linux-debug", str(built.place)):
        kernel = kernels.resolve(name, cache, Progress(quiet=True))
        assert (kernel.release, list(kernel.modules)) == (RELEASE, ["mlx5_core"])
    assert tree_state(tree) == before
    own = [offer for offer in offers(cache, Progress(quiet=True), mirror=False)[0] if offer.origin == "built"]
    assert [(offer.release, offer.spec, offer.state) for offer in own] == [(RELEASE, built.name, "built")]


def test_the_same_is_not_built_twice_and_a_change_is_built_in_the_same_folder(tree: Path, cache: Cache) -> None:
    first = build(tree, cache)
    again = build(tree, cache)
    assert (again.place, again.fresh) == (first.place, False)
    (tree / "code.c").write_text("right, too\n")
    changed = build(tree, cache)
    assert changed.fresh
    assert changed.place != first.place
    other = build(tree, cache, extra_options="CONFIG_X=y")
    assert other.place not in (first.place, changed.place)
    runs = [len(path.read_text().splitlines()) for path in sorted(cache.path("kernel-work").glob("*/runs"))]
    assert sorted(runs) == [1, 2]
    assert find_built("my-linux", cache) == other.place
    assert find_built(first.name, cache) == first.place
    assert find_built("my", cache) is None


def test_what_a_compiler_says_is_passed_on_and_nothing_is_kept(tree: Path, cache: Cache) -> None:
    (tree / "code.c").write_text("wrong\n")
    with pytest.raises(LabError, match=r"code.c:1:2: error: not right(.|\n)*build.log"):
        build(tree, cache)
    assert list(cache.path("kernel-builds").iterdir()) == []


def test_a_tree_that_is_changed_meanwhile_gives_no_kernel(tree: Path, cache: Cache) -> None:
    with (tree / "Makefile").open("a") as makefile:
        makefile.write('modules: touched\ntouched:\n\techo "right " >> code.c\n')
    with pytest.raises(KernelError, match="was changed while it was built"):
        build(tree, cache)


def test_a_tree_that_was_built_in_is_refused_with_what_to_do(tree: Path, cache: Cache) -> None:
    (tree / ".config").touch()
    with pytest.raises(KernelError, match=r"was built in \(it has .config\)(.|\n)*make mrproper"):
        build(tree, cache)


@pytest.mark.parametrize("spec", ["no/such", "linux-6.19"])
def test_a_source_that_is_none(spec: str, cache: Cache) -> None:
    with pytest.raises(KernelError, match="no such folder, and no package"):
        find_source(spec, cache, Progress(quiet=True))
    assert not is_package(spec)


def test_a_folder_that_is_no_kernel(tmp_path: Path, cache: Cache) -> None:
    with pytest.raises(KernelError, match="it has no Makefile"):
        find_source(tmp_path, cache, Progress(quiet=True))


def test_the_source_that_no_index_lists_is_known() -> None:
    assert is_package("linux-source-6.19")
    assert pins.KERNEL_SOURCES["linux-source-6.19"].name.startswith("linux-source-6.19_")


@pytest.mark.skipif(shutil.which("git") is None, reason="this host has no git")
def test_the_state_of_a_git_tree(tree: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        subprocess.run(["git", "-C", str(tree), *who, *words], check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    states = [tree_state(tree)]
    (tree / "code.c").touch()  # a time alone changes nothing
    assert tree_state(tree) == states[0]
    (tree / "code.c").write_text("right or wrong\n")
    states.append(tree_state(tree))
    (tree / "new.c").write_text("new\n")
    states.append(tree_state(tree))
    (tree / "new.c").write_text("newer\n")
    states.append(tree_state(tree))
    git("add", ".")
    git("commit", "-m", "more")
    states.append(tree_state(tree))
    assert len(set(states)) == len(states)


def test_a_host_without_a_compiler_is_told_what_to_install(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name in ("gcc", "make") else f"/usr/bin/{name}")
    with pytest.raises(LabError, match=r"needs gcc, make, which this host does not have(.|\n)*apt install"):
        find_build_tools(cache, Progress(quiet=True))


def test_tools_of_packages_are_started_with_what_they_came_with(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    tool = tmp_path / "usr/bin/bison"
    tool.write_text('#!/bin/sh\necho "$1 $M4 $BISON_PKGDATADIR $LD_LIBRARY_PATH"\n')
    tool.chmod(0o755)
    make_scripts(tmp_path)
    said = subprocess.run([tmp_path / "bin/bison", "a b"], capture_output=True, text=True, check=True).stdout
    where = f"{tmp_path}/bin/.."
    assert said.startswith(f"a b {where}/bin/m4 {where}/usr/share/bison {where}/usr/lib/x86_64-linux-gnu:")


def test_the_command_prints_the_name_and_what_is_lacking(
    tree: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("VHCA_CACHE", str(cache.root))
    (tmp_path / "mine").write_text("CONFIG_MINE=y\nCONFIG_SMP=n\n")
    assert main(["build", "--source", str(tree), "--config", str(tmp_path / "mine")]) == status.OK
    out, err = capsys.readouterr()
    (place,) = cache.path("kernel-builds").iterdir()
    assert out == f"{place.name}\n"
    assert "CONFIG_SMP: n, wanted y (a guest of this project boots)" in err
    assert "CONFIG_MINE=y" in (place / f"boot/config-{release_of(place)}").read_text()
    assert main(["kernels", "--cached", "--json"]) == status.OK
    assert place.name in [offer["spec"] for offer in json.loads(capsys.readouterr().out)]
    with pytest.raises(SystemExit):
        main(["build", "--source", str(tree), "--config", str(tmp_path / "none")])
