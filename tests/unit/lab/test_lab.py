"""The lab without guests: what it refuses, and that it takes down whatever it had set up."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vhca.chip.rack import Rack
from vhca.chip.rack_config import CardConfig, RackConfig
from vhca.fabric.topology import Builder, Cable, End, NodeSpec
from vhca.lab import folders
from vhca.lab import lab as bench
from vhca.lab.cache import Cache, Progress
from vhca.lab.devices import Hca
from vhca.lab.errors import GuestError, LabError, printable
from vhca.lab.guest import Guest, GuestConfig, Surroundings
from vhca.lab.kernels import Kernel
from vhca.lab.lab import Lab
from vhca.lab.prepare import Prepared
from vhca.lab.qemu import Qemu
from vhca.lab.vmlinux import BootFile


class FakeHca:
    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.node_guid = 1
        self.socket_path = folder / f"{name}.sock"

    def counters(self) -> dict[str, int]:
        return {}

    def objects(self) -> dict[str, int]:
        return {}

    def trace_tail(self, lines: int = 100) -> list[str]:
        return []


class FakeRack:
    def __init__(self, count: int, folder: Path) -> None:
        self.folder = folder
        self._hcas = [FakeHca(f"hca{i}", folder) for i in range(count)]
        self.calls: list[str] = []

    @property
    def hcas(self) -> Sequence[Hca]:
        return self._hcas

    @property
    def fabric(self) -> None:
        return None

    def start(self) -> None:
        self.calls.append("start")
        (self.folder / "hca0.log").write_text("the card's words")

    def wait_active(self, timeout_s: float) -> None:
        self.calls.append("wait_active")

    def stop(self) -> None:
        self.calls.append("stop")


#: A "QEMU" that says something and ends.
PREPARED = Prepared(
    Qemu((sys.executable, "-c", "print('no such machine')"), (11, 0, 0), {}, "host"),
    Kernel("6.19.0", Path("/k"), {}, frozenset(), None, "id", "test"),
    BootFile(Path("/k"), False, "bzImage"),
    Path("/image"),
)


@pytest.fixture
def broken_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "prepare", lambda *_args, **_named: PREPARED)


@pytest.mark.usefixtures("broken_machine")
def test_a_machine_that_ends_is_explained_and_everything_is_taken_down(tmp_path: Path) -> None:
    racks: list[FakeRack] = []

    def factory(cards: Sequence[CardConfig], folder: Path) -> FakeRack:
        racks.append(FakeRack(len(cards), folder))
        return racks[0]

    lab = Lab(
        guests=2,
        hcas_per_guest=2,
        log_dir=tmp_path / "logs",
        rack_factory=factory,
        progress=Progress(quiet=True),
        cache=Cache(tmp_path / "cache"),
    )
    with pytest.raises(GuestError, match="no such machine"):
        lab.start()
    (rack,) = racks
    assert rack.calls == ["start", "stop"]
    assert [h.name for h in lab.guests[1].hcas] == ["hca2", "hca3"]
    assert not rack.folder.exists()
    assert (tmp_path / "logs/hca0.log").read_text() == "the card's words"
    assert not any(guest.alive for guest in lab.guests)
    words = (tmp_path / "logs/g1-qemu.log").read_text()
    assert words.count("vfio-user-pci") == 2
    assert str(lab.hcas[2].socket_path) in words
    lab.stop()  # again is no error


@pytest.mark.usefixtures("broken_machine")
def test_each_guest_gets_the_cards_that_were_described_for_it(tmp_path: Path) -> None:
    wanted: list[CardConfig] = []

    def factory(cards: Sequence[CardConfig], folder: Path) -> FakeRack:
        wanted.extend(cards)
        return FakeRack(len(cards), folder)

    usual, small, slow = (CardConfig(description=name) for name in ("usual", "small", "slow"))
    lab = Lab(
        guests=3,
        card=usual,
        guest_cards=[[small, slow], [], [usual]],
        spare_hcas=1,
        log_dir=tmp_path / "logs",
        rack_factory=factory,
        progress=Progress(quiet=True),
    )
    with pytest.raises(GuestError, match="no such machine"):
        lab.start()
    assert [card.cable for card in wanted] == ["g0/1", "g0/2", "g2/1", None]
    assert [replace(card, cable=None) for card in wanted] == [small, slow, usual, usual]
    assert [[h.name for h in guest.hcas] for guest in lab.guests] == [["hca0", "hca1"], [], ["hca2"]]
    assert [h.name for h in lab.hcas] == ["hca0", "hca1", "hca2", "hca3"]


def test_all_cards_of_a_lab_are_like_one_description(tmp_path: Path) -> None:
    described = CardConfig(memory=1 << 28)
    lab = Lab(guests=2, hcas_per_guest=2, card=described, spare_hcas=1)
    rack = lab._own_rack(lab._cards, tmp_path)
    assert isinstance(rack, Rack)
    assert [replace(card.config, cable=None) for card in rack.hcas] == [described] * 5
    assert rack.fabric.knows("g1/2")
    assert not rack.fabric.knows("g2/1")
    rack.loop.close()


def test_guests_take_the_places_of_hosts_that_are_called_like_them(tmp_path: Path) -> None:
    builder = Builder()
    builder.add_node(NodeSpec("leaf", "switch", 8))
    for port, name in enumerate(("h0", "g1", "h2", "n"), 1):
        builder.add_node(NodeSpec(name, "host", 1))
        builder.add_cable(Cable(End("leaf", port), End(name, 1)))
    rack = RackConfig(topology=builder.topology())
    lab = Lab(guests=3, guest_cards=[[CardConfig()], [CardConfig()], [CardConfig(host="n")]], rack=rack)
    made = lab._own_rack(lab._cards, tmp_path)
    assert isinstance(made, Rack)
    assert [card.info.node_description for card in made.hcas] == ["h0", "g1", "n"]
    made.loop.close()


@pytest.mark.usefixtures("broken_machine")
def test_logs_stay_after_a_failure_only_and_are_named_even_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lab = Lab(guests=1, hcas_per_guest=0, progress=Progress(quiet=True))
    with pytest.raises(GuestError, match="ended"):
        lab.start()
    assert (lab.log_dir / "g0-qemu.log").exists()
    assert list(tmp_path.iterdir()) == [lab.log_dir]
    assert capsys.readouterr().err == f"the logs of this run are in {lab.log_dir}\n"


@pytest.mark.usefixtures("broken_machine")
def test_socket_folders_of_killed_programs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_SOCKET_FOLDER_MAX", 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pid_max = int(Path("/proc/sys/kernel/pid_max").read_text())
    names = [f"vhca-{pid_max + 1}-dead", f"vhca-{os.getpid()}-alive", "vhca-lab-logs", "vhca-1x-other"]
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(GuestError):
        Lab(guests=1, hcas_per_guest=0, log_dir=tmp_path / "logs", progress=Progress(quiet=True)).start()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*names[1:], "logs"])


@pytest.mark.parametrize(
    "settings",
    [
        {"guests": 0},
        {"guests": 5000},
        {"hcas_per_guest": -1},
        {"hcas_per_guest": 17},
        {"spare_hcas": 255},
        {"guest_cards": [[CardConfig()]]},
        {"guest_cards": [[CardConfig()], [CardConfig()] * 17]},
    ],
)
def test_impossible_labs_are_refused_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(LabError, match="->"):
        Lab(**settings)


def test_more_cards_than_a_switch_has_ports_are_refused_at_once() -> None:
    with pytest.raises(LabError, match="256 cards: one switch joins them, and it has 254 ports"):
        Lab(guests=64, hcas_per_guest=4)
    assert Lab(guests=127, hcas_per_guest=2).guest_count == 127


@pytest.mark.usefixtures("broken_machine")
def test_logs_go_to_a_private_folder_only(tmp_path: Path) -> None:
    lab = Lab(guests=1, hcas_per_guest=0, log_dir=tmp_path / "new/logs", progress=Progress(quiet=True))
    with pytest.raises(GuestError):
        lab.start()
    assert (tmp_path / "new/logs").stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in lab.log_dir.iterdir()} == {0o600}
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(LabError, match=r"may write to .*open"):
        Lab(guests=1, hcas_per_guest=0, log_dir=tmp_path / "open", progress=Progress(quiet=True)).start()
    assert not list((tmp_path / "open").iterdir())


@pytest.mark.usefixtures("broken_machine")
def test_what_a_guest_prints_reaches_no_terminal_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import os; os.write(1, b'\\x1b]0;owned\\x07 QEMU\\n')"
    fake = Qemu((sys.executable, "-c", script), (11, 0, 0), {}, "host")
    own = Kernel("6.19.0", Path("/k"), {}, frozenset(), None, "id", "test")
    boot = BootFile(Path("/k"), False, "bzImage")
    monkeypatch.setattr(bench, "prepare", lambda *_args, **_named: Prepared(fake, own, boot, Path("/image")))
    monkeypatch.setattr("vhca.lab.guest.tail", lambda path, _count: path.name + "\n\x1b[2J\u202e console\n")
    with pytest.raises(GuestError) as caught:
        Lab(guests=1, hcas_per_guest=0, log_dir=tmp_path / "logs", progress=Progress(quiet=True)).start()
    assert r"\x1b[2J\u202e console" in str(caught.value)
    assert printable(str(caught.value)) == str(caught.value)


def test_a_share_must_exist(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="not there"):
        Lab(guest=GuestConfig(share=tmp_path / "absent"))
    assert Lab(guest=GuestConfig(share=tmp_path)).guest_config.share == tmp_path.resolve()


def test_a_guest_needs_some_memory() -> None:
    with pytest.raises(LabError, match="too little"):
        Lab(guest=GuestConfig(memory_mib=64))


def test_what_is_not_started_says_so(tmp_path: Path) -> None:
    lab = Lab(guests=1)
    assert (lab.hcas, lab.guests) == ([], [])
    with pytest.raises(LabError, match="no fabric"):
        lab.fabric  # noqa: B018
    guest = Guest(0, GuestConfig(), Surroundings(PREPARED, 1, tmp_path, "tcg"), [])
    with pytest.raises(GuestError, match="not started"):
        guest.run(["true"])
    with pytest.raises(GuestError, match="not started"):
        guest.qmp("query-status")
    assert guest.console_log == ""
    assert not guest.alive


def test_of_failed_runs_the_newest_ten_folders_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    ended = 1 << 30  # no process has this number
    for age in range(15):
        folder = tmp_path / f"vhca-lab-{ended}-{age}"
        folder.mkdir()
        os.utime(folder, (10_000 - age, 10_000 - age))
    running = tmp_path / f"vhca-lab-{os.getpid()}-x"
    running.mkdir()
    os.utime(running, (1, 1))
    (tmp_path / "vhca-lab-notes").mkdir()
    new = folders.for_new_logs()
    assert new.stat().st_mode & 0o777 == 0o700
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*(f"vhca-lab-{ended}-{age}" for age in range(10)), running.name, "vhca-lab-notes", new.name}
