"""Modules of somebody's own, and dumps of memory, with stand-ins for guest and machine."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vhca.cli.main import parser
from vhca.lab import vmcore
from vhca.lab.errors import Completed, GuestError, KernelPanic, LabError, QemuError
from vhca.lab.kernels import Kernel
from vhca.lab.own_modules import load, needed_of, own_module, with_replaced

RELEASE = "6.19.0-x"


def module_file(path: Path, name: str = "mine", depends: str = "", vermagic: str = f"{RELEASE} SMP ") -> Path:
    """An ELF file with nothing but what a module says of itself."""
    info = b"".join(
        f"{key}={value}\0".encode() for key, value in (("name", name), ("depends", depends), ("vermagic", vermagic))
    )
    names = b"\0.modinfo\0.shstrtab\0"
    table = 64 + len(info) + len(names)
    head = b"\x7fELF\x02\x01".ljust(0x28, b"\0") + struct.pack("<Q", table)
    head = head.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, 3, 2)
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, 64, len(info), 0, 0, 1, 0)
    sections += struct.pack("<IIQQQQIIQQ", 10, 3, 0, 0, 64 + len(info), len(names), 0, 0, 1, 0)
    path.write_bytes(head + info + names + sections)
    return path


def kernel_with(*names: str, builtin: Sequence[str] = ()) -> Kernel:
    modules = {name: Path(f"/k/{name}.ko") for name in names}
    return Kernel(RELEASE, Path("/k/vmlinuz"), modules, frozenset(builtin), None, "id", "here")


def test_what_a_file_says_of_itself(tmp_path: Path) -> None:
    module = own_module(module_file(tmp_path / "a-b.ko", "a-b", "ib-core,mlx5_core"), ["x=1"])
    assert (module.name, list(module.needs), list(module.parameters)) == ("a_b", ["ib_core", "mlx5_core"], ["x=1"])


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x02\x01" + bytes(80), b"text"])
def test_a_file_that_is_no_module(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.ko").write_bytes(content)
    with pytest.raises(LabError, match="is no module of a kernel"):
        own_module(tmp_path / "x.ko")


@pytest.mark.parametrize(("name", "says"), [("none.ko", "cannot read"), ("x.ko.xz", "cannot be unpacked")])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "x.ko.xz").write_bytes(b"no xz")
    with pytest.raises(LabError, match=says):
        own_module(tmp_path / name)


def test_a_replacement_changes_the_kernel_s_identity_by_its_content(tmp_path: Path) -> None:
    kernel = kernel_with("mine", "other")
    first = with_replaced(kernel, [own_module(module_file(tmp_path / "mine.ko"))])
    assert first.modules == {"mine": tmp_path / "mine.ko", "other": Path("/k/other.ko")}
    second = with_replaced(kernel, [own_module(module_file(tmp_path / "mine.ko", depends="other"))])
    assert len({kernel.identity, first.identity, second.identity}) == 3
    assert "with another mine" in first.origin


@pytest.mark.parametrize(
    ("kernel", "vermagic", "says"),
    [
        (kernel_with("other"), RELEASE, r"has no such module\n.*--insmod"),
        (kernel_with("other", builtin=["mine"]), RELEASE, "has it built in"),
        (kernel_with("mine"), "6.1.0 SMP", "was built for 6.1.0, the kernel is 6.19.0-x"),
    ],
)
def test_a_replacement_that_cannot_be(tmp_path: Path, kernel: Kernel, vermagic: str, says: str) -> None:
    with pytest.raises(LabError, match=says):
        with_replaced(kernel, [own_module(module_file(tmp_path / "mine.ko", vermagic=vermagic))])


class _Guest:
    name = "g0"

    def __init__(self, refuses: str = "") -> None:
        self.did: list[str] = []
        self._refuses = refuses
        self._log = ["mine: an old word"]

    def copy_in(self, source: Path, target: str) -> None:
        self.did.append(f"copy {source.name}")

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        assert timeout_s > 0
        if "dmesg" in argv:
            return Completed(argv, 0, "\n".join(self._log), "")
        self.did.append(" ".join(argv))
        if argv[0] == "insmod" and self._refuses in argv[1]:
            self._log += ["mine: Unknown symbol x", "eth0: up"]
            return Completed(argv, 1, "", "insmod: ERROR: could not insert module")
        return Completed(argv, 0, "", "")


def test_modules_are_loaded_in_their_order_with_what_they_need(tmp_path: Path) -> None:
    first = own_module(module_file(tmp_path / "base.ko", "base", "ib_core"))
    second = own_module(module_file(tmp_path / "mine.ko", "mine", "base,ib_core"), ["x=1"])
    assert needed_of(kernel_with("ib_core", "base"), [first, second]) == ["ib_core"]
    guest = _Guest(refuses="nothing")
    load(guest, [first, second])
    words = [line for line in guest.did if not line.startswith("mkdir")]
    assert [line.split("/")[0] + line.rpartition("/")[2] for line in words] == [
        "modprobe -q -a ib_core" * 2, "copy base.ko" * 2, "insmod 0-base.ko",
        "modprobe -q -a ib_core" * 2, "copy mine.ko" * 2, "insmod 1-mine.ko x=1",
    ]  # fmt: skip


def test_what_the_kernel_says_of_a_module_that_it_refuses(tmp_path: Path) -> None:
    module = own_module(module_file(tmp_path / "mine.ko"))
    with pytest.raises(GuestError) as caught:
        load(_Guest(refuses="mine"), [module])
    text = str(caught.value)
    assert "could not insert module\n  mine: Unknown symbol x" in text
    assert "old word" not in text
    assert "eth0" not in text


def test_the_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = module_file(tmp_path / "my mine.ko")
    words = ["run", "--insmod", f"'{path}' x=1 y=2", "--replace-module", str(path), "--vmcore"]
    options = parser().parse_args(words)
    assert [(m.path, list(m.parameters)) for m in options.insmod] == [(path, ["x=1", "y=2"])]
    assert [m.path for m in options.replace_module] == [path]
    assert options.vmcore
    for wrong in ("", "'", str(tmp_path), str(tmp_path / "none.ko")):
        with pytest.raises(SystemExit):
            parser().parse_args(["run", "--insmod", wrong])
    assert "cannot read the module" in capsys.readouterr().err


# ---- dumps ----


class _Machine:
    name = "g0"

    def __init__(self, size: int = 1 << 20, fails: bool = False) -> None:
        self._size, self._fails = size, fails

    def qmp(self, command: str, **arguments: Any) -> Any:
        if command == "query-memory-size-summary":
            return {"base-memory": self._size}
        assert command == "dump-guest-memory"
        Path(arguments["protocol"].removeprefix("file:")).write_bytes(b"core")
        if self._fails:
            raise QemuError("QEMU has ended")
        return {}


def test_a_dump_takes_its_name_when_it_is_whole(tmp_path: Path) -> None:
    place = vmcore.place_of(tmp_path / "g0-console.log", "g0")
    place.write_bytes(b"an older one")
    assert vmcore.dump(_Machine(), place).read_bytes() == b"core"
    assert place.stat().st_mode & 0o777 == 0o600
    with pytest.raises(QemuError):
        vmcore.dump(_Machine(fails=True), place)
    assert [path.name for path in tmp_path.iterdir()] == ["g0.vmcore"]


def test_no_dump_is_begun_that_would_fill_the_disk(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="are free"):
        vmcore.dump(_Machine(size=1 << 60), tmp_path / "g0.vmcore")
    assert list(tmp_path.iterdir()) == []


def test_a_panic_says_where_the_memory_is() -> None:
    assert str(KernelPanic("g0", "Kernel panic", "", "/c", "the memory of g0 is in /x")).endswith(
        "\nthe memory of g0 is in /x"
    )
