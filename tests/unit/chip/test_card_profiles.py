"""Kinds of cards: what comes with the package, files of one's own, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from firmware.model.capabilities import GENERAL
from vhca.chip.card_profiles import ALIASES, ProfileError, built_in, capability, find
from vhca.cli import status
from vhca.cli.main import main
from vhca.hw.identity import BOARD_ID, DEVICE_ID, FW_VERSION


def test_the_usual_card_is_one_of_them() -> None:
    usual = built_in()["cx6"].card
    assert (usual.device_id, usual.board_id, usual.fw_version) == (DEVICE_ID, BOARD_ID, FW_VERSION)


def test_each_says_where_it_is_from() -> None:
    for profile in built_in().values():
        assert {"device_id", "identity", "link"} <= profile.sources.keys()
        assert bool(profile.card.capabilities) == ("capabilities" in profile.sources)


def test_no_two_are_taken_for_the_same() -> None:
    assert len({profile.card.device_id for profile in built_in().values()}) == len(built_in())


@pytest.mark.parametrize(
    ("text", "meant"),
    [("dct=0", ("dct", 0)), ("odp=0", ("pg", 0)), ("log_max_qp=0xc", ("log_max_qp", 12)), (" pg =1", ("pg", 1))],
)
def test_capabilities(text: str, meant: tuple[str, int]) -> None:
    assert capability(text) == meant


@pytest.mark.parametrize("text", ["", "dct", "dct=", "dct=no", "=1", "dct=-1", "a b=1"])
def test_what_is_no_capability(text: str) -> None:
    with pytest.raises(ProfileError, match="such as dct=0"):
        capability(text)


def test_other_names_of_features_are_those_of_capabilities_that_the_program_has() -> None:
    assert set(ALIASES.values()) <= GENERAL.keys()


def test_a_file_of_one_s_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[old]\ndevice_id = 0x1013\nlink = "2xFDR"\nfw_version = [12, 1, 2]\n[old.capabilities]\ndct = 0\n')
    profile = find(str(path))
    assert (profile.name, profile.card.device_id, profile.card.capabilities) == ("old", 0x1013, {"dct": 0})
    assert (profile.card.link.width, profile.card.link.speed) == (2, "FDR")
    path.write_text(path.read_text() + "[new]\n")
    assert find(f"{path}:new").card.device_id == DEVICE_ID
    with pytest.raises(ProfileError, match="it has old, new"):
        find(str(path))
    with pytest.raises(ProfileError, match="it has old, new"):
        find(f"{path}:other")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "not TOML"),
        ("a = 1", "a profile is a table"),
        ("[a]\nspeed = 1", "no word 'speed'"),
        ("[a]\nlink = 'fast'", "such as 4xEDR"),
        ("[a]\nlink = '3xEDR'", "a link has"),
        ("[a]\nlink = 4", "such as 4xEDR"),
        ("[a]\nfw_version = 12", "not enough values"),
        ("[a]\nfw_version = [1, 2, 'x']", "a:"),
        ("[a]\ndevice_id = 'x'", "a:"),
        ("[a]\nboard_id = 7", "a:"),
        ("[a]\ncapabilities = 7", "a:"),
        ("[a.capabilities]\ndct = 'no'", "not a whole number"),
        ("[a.capabilities]\ndct = true", "not a whole number"),
        ("[a.sources]\nx = 1", "are texts"),
        ("[a]\nmodel = 1", "are texts"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=why) as raised:
        find(str(path))
    assert str(raised.value).startswith(str(path))


@pytest.mark.parametrize("name", ["cx9", "", "/nowhere/at.toml"])
def test_what_is_not_there_is_said(name: str) -> None:
    with pytest.raises(ProfileError, match=r"there are cx4, cx5|cannot read"):
        find(name)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cards"]) == status.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(built_in())
    assert main(["cards", "cx7"]) == status.OK
    said = capsys.readouterr().out
    assert "ConnectX-7" in said
    assert "0x1021" in said
    with pytest.raises(SystemExit):
        main(["cards", "cx9"])
    assert "there are cx4" in capsys.readouterr().err
