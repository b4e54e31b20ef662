"""Rack files and keys: what is read, what is refused, and that GUIDs are unique whatever the rack."""

import os
import stat
from pathlib import Path

import pytest

from vhca.cli import status
from vhca.cli.main import main
from vhca.fabric import shapes, topology_toml
from vhca.fabric.topology import TopologyError
from vhca.trunk.keys import KeyFileError, KeyPair, is_key, load, save
from vhca.trunk.rack_file import RackFile, RackFileError, load_rack_file, read_rack_file
from vhca.trunk.sockets import new_keys

KEY = "1" * 40
RACK = '[[rack]]\nname = "{}"\nkey = "' + KEY + '"\n'
A, B, C = (RACK.format(name) for name in "ABC")
ADDRESS = 'address = "tcp://127.0.0.1:7471"\n'
RING = topology_toml.write(shapes.ring(3, 6))


def read(text: str, folder: Path = Path()) -> RackFile:
    return read_rack_file(text, folder)


WHOLE = RING + A + ADDRESS + 'switches = ["s1", "s2"]\ncards = ["h0"]\n' + B + 'switches = ["s3"]\n'


def test_racks_have_their_switches_and_what_is_between_them_is_a_trunk() -> None:
    file = read(WHOLE)
    assert list(file.racks) == ["A", "B"]
    assert file.racks["A"].switches == {"s1", "s2"}
    assert file.racks["A"].cards == ("h0",)
    assert file.manager == "A"
    assert [(trunk.waits, trunk.calls, trunk.address) for trunk in file.trunks] == [
        ("A", "B", "tcp://127.0.0.1:7471"),
        ("A", "B", "tcp://127.0.0.1:7472"),
    ]
    assert file.trunks_of("B") == list(file.trunks)
    assert {"s3"} < {end.node for trunk in file.trunks for end in (trunk.cable.a, trunk.cable.b)}


def test_the_topology_may_be_a_file_and_switches_patterns(tmp_path: Path) -> None:
    (tmp_path / "ring.toml").write_text(RING)
    text = (
        'topology = "ring.toml"\n' + A + ADDRESS + 'switches = ["s[12]"]\n' + B + 'manager = true\nswitches = ["s3"]\n'
    )
    (tmp_path / "racks.toml").write_text(text)
    file = load_rack_file(tmp_path / "racks.toml")
    assert file.manager == "B"
    assert file.topology == read(WHOLE).topology
    # What racks must agree on is what they are built from, wherever it is written.
    assert file.digest == read(WHOLE).digest
    assert file.digest != read(WHOLE.replace('["s1", "s2"]', '["s1"]').replace('["s3"]', '["s2", "s3"]')).digest


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (RING, "0 racks"),
        ("\0", "not TOML"),
        ("rack = 1", "array of tables"),
        (WHOLE + C + 'switches = ["s1"]\n', "in rack A"),
        (RING + A + 'switches = ["s*"]\nkey2 = 1\n', "means nothing"),
        (RING + A + "switches = [1]\n", "list of texts"),
        (RING + A + 'switches = ["x"]\n', "no switch is called x"),
        (RING + A, "it has no switch"),
        (RING + A + ADDRESS + 'switches = ["s1"]\n', "s2 is in no rack"),
        (WHOLE.replace(ADDRESS, ""), "give it an address"),
        (WHOLE.replace("tcp://127.0.0.1:7471", "7471"), "give one such as"),
        (WHOLE.replace(":7471", ":65535"), "no more ports"),
        (WHOLE.replace(KEY, "short", 1), "give its public key"),
        (WHOLE.replace('cards = ["h0"]', 'cards = ["h9"]'), "h9 is none of its hosts"),
        (WHOLE.replace('cards = ["h0"]', 'cards = ["s1"]'), "s1 is none of its hosts"),
        (WHOLE.replace('cards = ["h0"]', 'cards = ["h0", "h0"]'), "named twice"),
        (WHOLE.replace('name = "B"', 'name = "A"'), "two racks called A"),
        (WHOLE.replace('name = "B"', 'name = "/"'), "letters, digits"),
        (WHOLE.replace(ADDRESS, ADDRESS + "manager = true\n") + "manager = true\n", "there is one"),
        ('topology = "x"\nspeed = "EDR"\n' + A, "nothing else"),
    ],
)
def test_what_is_no_rack_file_is_refused_with_a_sentence(text: str, why: str) -> None:
    with pytest.raises((RackFileError, TopologyError), match=why):
        read(text)


def test_a_host_is_in_one_rack() -> None:
    text = """
[[switch]]
name = "a"
[[switch]]
name = "b"
[[host]]
name = "n"
ports = 2
[[cable]]
ends = ["a/1", "n/1"]
[[cable]]
ends = ["b/1", "n/2"]
"""
    with pytest.raises(RackFileError, match="the host n has cables to"):
        read(text + A + 'switches = ["a"]\n' + B + 'switches = ["b"]\n')


def test_guids_are_unique_across_racks() -> None:
    """They come from the names in the one topology."""
    nodes = read(WHOLE).topology.nodes.values()
    guids = [guid for node in nodes for guid in {node.guid, *node.port_guids}]
    assert len(set(guids)) == len(guids)


# ---- keys ----


def test_keys_are_private_and_not_replaced(tmp_path: Path) -> None:
    pair = new_keys()
    assert is_key(pair.public)
    assert pair.secret not in repr(pair)
    path = tmp_path / "A.keys"
    os.umask(before := os.umask(0))
    try:
        os.umask(0)
        save(path, pair)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load(path) == pair
    with pytest.raises(FileExistsError):
        save(path, pair)
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match="others may read it"):
        load(path)


@pytest.mark.parametrize("text", ["", "x", 'public = "a"\nsecret = "b"\n', "\xff"])
def test_what_has_no_keys_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "A.keys"
    path.write_text(text, "latin-1")
    path.chmod(0o600)
    with pytest.raises(KeyFileError):
        load(path)
    with pytest.raises(KeyFileError):
        load(tmp_path / "none")
    with pytest.raises(KeyFileError):
        load(tmp_path)


def test_the_command_makes_keys_and_shows_racks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rack", "keys", "A", "B", "--dir", str(tmp_path)]) == status.OK
    said = capsys.readouterr().out
    pairs = [load(tmp_path / f"{name}.keys") for name in "AB"]
    assert said == "".join(
        f'[[rack]]\nname = "{name}"\nkey = "{pair.public}"\n\n' for name, pair in zip("AB", pairs, strict=True)
    )
    assert not any(pair.secret in said for pair in pairs)
    assert main(["rack", "keys", "A", "--dir", str(tmp_path)]) == status.TROUBLE
    assert main(["rack", "keys", "../x", "--dir", str(tmp_path)]) == status.TROUBLE
    capsys.readouterr()
    (tmp_path / "racks.toml").write_text(WHOLE)
    assert main(["rack", "show", str(tmp_path / "racks.toml")]) == status.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == ["A     2         h0     yes", "B     1         -      -"]
    assert [line.split()[-3:] for line in lines[-2:]] == [
        ["A", "tcp://127.0.0.1:7471", "B"],
        ["A", "tcp://127.0.0.1:7472", "B"],
    ]
    (tmp_path / "racks.toml").write_text(RING)
    assert main(["rack", "show", str(tmp_path / "racks.toml")]) == status.TROUBLE


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--name", "A"], "--rack goes with --name and --keys"),
        (["--name", "C", "--keys", "A.keys", "--rack", "racks.toml"], "there is no rack C"),
        (["--name", "B", "--keys", "A.keys", "--rack", "racks.toml"], "the keys are not those"),
        (["--name", "A", "--keys", "none", "--rack", "racks.toml"], "vhca rack keys"),
        (["--name", "A", "--keys", "A.keys", "--rack", "none"], "none"),
    ],
)
def test_serve_refuses_what_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "A.keys", pair := new_keys())
    assert isinstance(pair, KeyPair)
    (tmp_path / "racks.toml").write_text(WHOLE.replace(KEY, pair.public, 1))
    assert main(["serve", "--dir", "racks", *words]) == status.TROUBLE
    assert why in capsys.readouterr().err
