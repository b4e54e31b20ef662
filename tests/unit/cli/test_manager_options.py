"""What the command line says of the subnet manager: who it is, partitions, LMC."""

import time
from pathlib import Path

import pytest

from vhca.chip.rack import Rack, RackError
from vhca.cli import status
from vhca.cli.main import main, parser
from vhca.cli.options import make_lab, rack_config
from vhca.fabric import shapes
from vhca.lab import Lab, LabError, Progress, RackConfig
from vhca.subnet.partition_file import read


def lab_of(*words: str) -> Lab:
    return make_lab(parser().parse_args(["run", *words]), Progress(quiet=True))


def test_opensm_in_a_guest_is_the_heir_and_there_is_no_secret_key() -> None:
    config = lab_of("--guests", "3", "--hcas", "2", "--sm", "opensm@g1").rack_config
    assert (config.heirs, config.mkey) == (["h2"], 0)
    config = lab_of("--sm", "opensm@g0", "--mkey", "0x77", "--sm-priority", "3", "--lmc", "2").rack_config
    assert (config.heirs, config.mkey, config.sm_priority, config.lmc) == (["h0"], 0x77, 3, 2)
    config = lab_of().rack_config
    assert (config.heirs, config.mkey, config.sm_priority) == (None, None, None)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--sm", "opensm@g2", "--guests", "2"], "opensm@g2: there is no such guest"),
        (["--sm", "opensm@g0", "--hcas", "0"], "this guest has no card"),
    ],
)
def test_a_manager_that_is_not_there(words: list[str], complaint: str) -> None:
    with pytest.raises(LabError) as trouble:
        lab_of(*words)
    assert complaint in str(trouble.value)


def test_words_that_name_no_manager(capsys: pytest.CaptureFixture[str]) -> None:
    for command, word in (("run", "opensm"), ("run", "any"), ("serve", "opensm@g0")):
        with pytest.raises(SystemExit):
            parser().parse_args([command, "--sm", word])
        assert "embedded" in capsys.readouterr().err
    with pytest.raises(LabError):
        Lab(sm="opensm")


def test_serve_gives_the_subnet_to_anybody_who_is_better(tmp_path: Path) -> None:
    options = parser().parse_args(["serve", "--dir", str(tmp_path), "--sm", "any"])
    config = rack_config(options, 2)
    assert (config.heirs, config.mkey) == ("any", 0)
    rack = Rack(2, tmp_path, config)
    election = rack._subnet.manager.election
    assert election.may_lead(0x1234)
    assert (election.priority, rack.fabric.manager_state()) == (1, "discovering")
    rack.loop.close()


def test_only_the_heir_s_port_may_manage(tmp_path: Path) -> None:
    rack = Rack(2, tmp_path, RackConfig(heirs=["h1"], mkey=0))
    guids = [card.info.port_guids[0] for card in rack.hcas]
    election = rack._subnet.manager.election
    assert [election.may_lead(guid) for guid in guids] == [False, True]
    rack.loop.close()
    with pytest.raises(RackError, match="no card h2; there are h0, h1"):
        Rack(2, tmp_path, RackConfig(heirs=["h2"], mkey=0))
    with pytest.raises(ValueError, match="no secret M_Keys"):
        RackConfig(heirs=["h0"])


def test_partitions_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "partitions.conf"
    file.write_text("one=0x8001, ipoib : h0=full ;\n")
    partitions = lab_of("--partitions", str(file)).rack_config.partitions
    assert partitions == read(file.read_text())
    rack = Rack(2, tmp_path, RackConfig(partitions=partitions))
    found = {one.name: one for one in rack.fabric.partitions().partitions}
    assert [member.who for member in found["one"].members] == [rack.hcas[0].info.port_guids[0]]
    rack.loop.close()
    with pytest.raises(RackError, match="no card h0; there are none"):
        Rack(0, tmp_path, RackConfig(partitions=partitions))
    file.write_text("one=0x8001 : h0=fool ;\n")
    for name, complaint in ((file, "line 1: 'fool' is no membership"), (tmp_path / "none", "cannot read")):
        with pytest.raises(SystemExit):
            main(["serve", "--dir", str(tmp_path), "--partitions", str(name)])
        assert complaint in capsys.readouterr().err
    assert status.USAGE == 2


def test_lids_are_the_same_the_next_time(tmp_path: Path) -> None:
    file = tmp_path / "lids"
    assert lab_of("--lids", str(file)).rack_config.lids == file
    topology = shapes.ring(3, 3)
    config = RackConfig(topology=topology, lids=file)

    def lids() -> dict[str, int]:
        folder = tmp_path / f"r{len(list(tmp_path.iterdir()))}"
        folder.mkdir(mode=0o700)
        with Rack(0, folder, config) as rack:
            deadline = time.monotonic() + 20
            while not rack.loop.call(lambda: rack._subnet.manager.settled):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            return {node.name: node.lid for node in rack.fabric.chart().nodes}

    first = lids()
    assert sorted(first.values()) == list(range(1, 7))
    lines = file.read_text().splitlines()
    assert len(lines) == 6
    # Others than the manager would give.
    file.write_text("".join(f"{line.split()[0]} {7 * n + 40:#x} {7 * n + 40:#x}\n" for n, line in enumerate(lines)))
    second = lids()
    assert sorted(second.values()) == [7 * n + 40 for n in range(6)]
    assert lids() == second
    for wrong in ("0x1 2", "0x1 0 0", "0x1 1 1\n0x1 2 2", "0x1 1 1\n0x2 1 2", "x 1 1", "0x1 0xbfff 0xc000"):
        file.write_text(wrong)
        with pytest.raises(RackError, match=rf"{file}: line {len(wrong.splitlines())}"):
            Rack(0, tmp_path, config)
