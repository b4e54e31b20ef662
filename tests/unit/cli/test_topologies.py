"""Fabrics from the command line: made, served, shown in words and drawn, their cables pulled."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from vhca.chip.rack import Rack, RackError
from vhca.chip.rack_config import CardConfig, RackConfig
from vhca.cli import running, status
from vhca.cli.main import main
from vhca.cli.options import topology_file
from vhca.fabric import shapes, topology_toml
from vhca.fabric.chart import Chart, ChartCable, ChartNode, of_topology
from vhca.fabric.picture import MOST_HOSTS, draw
from vhca.fabric.topology_files import load

TREE = shapes.fat_tree(16, radix=4, levels=3)


@pytest.fixture(autouse=True)
def own_racks_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's list without the racks of other tests and people."""
    here = os.fsencode(tmp_path)

    class Listed:
        def read_bytes(self) -> bytes:
            title, *lines = Path("/proc/net/unix").read_bytes().splitlines(keepends=True)
            return b"".join([title, *(line for line in lines if here in line)])

    monkeypatch.setattr(running, "SOCKETS", Listed())


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    (tmp_path / "one").mkdir()
    cards = [CardConfig(host="h3"), CardConfig()]
    with Rack(cards, tmp_path / "one", RackConfig(logs=False, topology=TREE, routing="up-down")) as rack:
        settle(rack)
        yield rack


def settle(rack: Rack) -> None:
    """Wait until the manager has looked at what changed, and all that has a link is active."""
    deadline_s = time.monotonic() + 60
    manager = rack._subnet.manager
    # Settled it is, too, while it waits to ask those again whose answer came late on a busy host.
    while not (rack.loop.call(lambda: manager.settled and manager.topology.by_lid(1) is not None) and all_active(rack)):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def all_active(rack: Rack) -> bool:
    return {cable.state for cable in rack.fabric.chart().cables} <= {"Active", "Down"}


def lines(svg: str, kind: str) -> list[str]:
    """What the cables of a kind say when somebody points at them."""
    found = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}line")
    return [element[0].text or "" for element in found if element.get("class") == kind and len(element)]


def boxes(svg: str, kind: str) -> int:
    found = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}g")
    return sum(kind in (element.get("class") or "").split() for element in found)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["fat-tree", "--hosts", "100"], shapes.fat_tree(100)),
        (["fat-tree", "--hosts", "16", "--ports", "4", "--levels", "3"], TREE),
        (["ring", "--hosts", "4", "--switches", "5"], shapes.ring(5, 4)),
        (["torus", "--hosts", "4", "--size", "2x3"], shapes.torus((2, 3), 4)),
        (["star", "--hosts", "4", "--switches", "3"], shapes.star(3, 4)),
    ],
)
def test_what_is_made_is_read_in_either_format(
    words: list[str], wanted: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("made.toml", "made.topo"):
        assert main(["fabric", "make", *words, "-o", str(tmp_path / name)]) == status.OK
        assert load(tmp_path / name) == topology_file(str(tmp_path / name)) == wanted
    capsys.readouterr()
    assert main(["fabric", "make", *words]) == status.OK
    assert topology_toml.read(capsys.readouterr().out) == wanted


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["fat-tree", "--hosts", "12000"], "1, 2 or 3 levels take"),
        (["fat-tree", "--hosts", "4", "--speed", "warp"], "speed 'WARP': there are"),
        (["ring", "--hosts", "4", "--switches", "2"], "a ring has 3 at least"),
        (
            ["star", "--hosts", "4", "--switches", "2", "-o", "x.toml", "--format", "ibnetdiscover"],
            "x.toml: a file is TOML",
        ),
        (["star", "--hosts", "4", "--switches", "2", "-o", "/none/x.toml"], "/none/x.toml: No such file"),
    ],
)
def test_what_cannot_be_made_is_refused(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "make", *words]) == status.TROUBLE
    assert why in capsys.readouterr().err


def test_a_file_that_is_wrong_ends_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.toml").write_text("[[switch]]\nports = 3\n")
    with pytest.raises(SystemExit):
        main(["serve", "--hcas", "1", "--dir", str(tmp_path / "r"), "--topology", str(tmp_path / "wrong.toml")])
    assert "wrong.toml: line 1 (switch 1): a switch without a name" in capsys.readouterr().err


def test_a_described_fabric_is_shown_as_it_would_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tree.toml").write_text(topology_toml.write(TREE))
    words = ["fabric", "show", "--topology", str(tmp_path / "tree.toml"), "--route", "h0", "h15", "--route", "h3", "h2"]
    assert main([*words, "--svg", str(tmp_path / "tree.svg")]) == status.OK
    out = capsys.readouterr().out
    assert "20 switches, 16 hosts, 48 cables: 48 Active" in out
    far, near = out.splitlines()[-2:]
    assert [word.partition("/")[0].rstrip("0123456789") for word in far.split(" > ")] == [
        "h", "leaf", "middle", "spine", "middle", "leaf", "h",
    ]  # fmt: skip
    assert near == "h3/1 > leaf2/1 > h2"
    svg = (tmp_path / "tree.svg").read_text()
    assert len(lines(svg, "active")) == 48
    assert len(lines(svg, "route")) == 6 + 2
    assert (boxes(svg, "switch"), boxes(svg, "host"), boxes(svg, "card")) == (20, 16, 0)
    assert main([*words[:4], "--route", "h0", "nobody"]) == status.TROUBLE
    assert "there is no node nobody" in capsys.readouterr().err


def test_a_running_fabric_is_shown_with_its_cards_and_broken_cables(
    rack: Rack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [card.name for card in rack.hcas] == ["h0", "h1"]
    hosts = [TREE.nodes[name] for name in ("h3", "h1")]
    assert [card.node_guid for card in rack.hcas] == [host.guid for host in hosts]
    assert [card.info.node_description for card in rack.hcas] == ["h3", "h1"]
    assert main(["fabric", "link", "down", "leaf1/3"]) == status.OK
    settle(rack)
    assert main(["fabric", "show", "--svg", str(tmp_path / "now.svg")]) == status.OK
    out = capsys.readouterr().out
    assert "20 switches, 16 hosts, 48 cables: 45 Active, 3 Down" in out, "two cards have no power"
    assert re.search(r"^leaf1/3 +middle1/1 +4xEDR +Down +[1-9]", out, re.MULTILINE)
    assert re.search(r"^leaf1 \(ours\) +0x[0-9a-f]{16} +14 +master$", out, re.MULTILINE)
    svg = (tmp_path / "now.svg").read_text()
    assert any(said.startswith("leaf1/3 - ") for said in lines(svg, "down"))
    assert boxes(svg, "card") == 2
    assert main(["fabric", "link", "up", "leaf1/3"]) == status.OK
    settle(rack)
    assert main(["fabric", "link", "down", "leaf1/9"]) == status.TROUBLE
    assert 'there is no cable at "leaf1/9"; name a card, or an end such as leaf1/3' in capsys.readouterr().err
    assert main(["fabric", "show", "--json", "--route", "h5", "h6"]) == status.OK
    shown = json.loads(capsys.readouterr().out)
    assert shown["routes"][0][0] == "h5/1"


def test_a_chart_comes_in_pages(rack: Rack) -> None:
    whole = rack.fabric.chart()
    assert (len(whole.nodes), len(whole.cables), whole.more) == (36, 48, False)
    pages = [rack.fabric.chart(start, 20) for start in (0, 20, 40)]
    assert [page.more for page in pages] == [True, True, False]
    assert [node.name for page in pages for node in page.nodes] == [node.name for node in whole.nodes]
    assert [cable.a for page in pages for cable in page.cables] == [cable.a for cable in whole.cables]
    assert Chart.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_cards_that_have_no_place_are_refused(tmp_path: Path) -> None:
    config = RackConfig(logs=False, topology=shapes.star(1, 2))
    for cards, why in (
        ([CardConfig(host="h1"), CardConfig(host="h1")], "h1: a card has the place of h1 already"),
        ([CardConfig()] * 3, "h2: more cards than hosts"),
        ([CardConfig(node_guid=config.topology.nodes["h1"].guid)], "h0: its node GUID .* is that of the host h1"),  # type: ignore[union-attr]
    ):
        with pytest.raises(RackError, match=why):
            Rack(cards, tmp_path, config)
    with pytest.raises(RackError, match="without a topology"):
        Rack([CardConfig(host="h1")], tmp_path)


def test_states_and_errors_have_their_colours_and_names_are_escaped() -> None:
    nodes = [ChartNode("a<b", "switch", 4, 1, 1), ChartNode("c&d", "switch", 4, 2, 2)]
    cables = [
        ChartCable("a<b/1", "c&d/1", "4xEDR", "Active"),
        *(ChartCable(f"a<b/{port}", f"x{port}/1", "4xEDR", state, errors) for port, state, errors in (
            (2, "Down", 1), (3, "Active", 7), (4, "Armed", 0), (5, "", 0), (6, "Active", 0))),
    ]  # fmt: skip
    nodes += [ChartNode(f"x{port}", "host", 1, port, card="h0" if port == 2 else "") for port in range(2, 7)]
    svg = draw(Chart(nodes, cables))
    assert [len(lines(svg, kind)) for kind in ("down", "errors", "training", "planned", "active")] == [1, 1, 1, 1, 2]
    assert lines(svg, "errors") == ["a<b/3 - x3/1 4xEDR Active, 7 errors"]


@pytest.mark.parametrize("topology", [TREE, shapes.ring(5, 9), shapes.torus((3, 3), 9), shapes.star(3, 5)])
def test_each_node_is_drawn_at_a_place_of_its_own(topology: object) -> None:
    svg = draw(of_topology(topology))  # type: ignore[arg-type]
    rects = list(ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect"))
    places = {(rect.get("x"), rect.get("y")) for rect in rects}
    assert len(places) == len(rects) == len(topology.nodes)  # type: ignore[attr-defined]
    root = ElementTree.fromstring(svg)
    wide, high = float(root.get("width", "0")), float(root.get("height", "0"))
    assert all(0 <= float(x or -1) < wide and 0 <= float(y or -1) < high for x, y in places)


def test_many_hosts_are_a_box_for_each_switch() -> None:
    topology = shapes.fat_tree(1008)
    assert len(topology.hosts) > MOST_HOSTS
    svg = draw(of_topology(topology))
    assert boxes(svg, "switch") == len(topology.switches)
    assert boxes(svg, "host") == 56
    assert svg.count(">18 hosts</text>") == 56


def test_the_picture_in_the_documents_is_what_is_drawn_today(tmp_path: Path) -> None:
    (tmp_path / "tree.toml").write_text(topology_toml.write(TREE))
    words = ["fabric", "show", "--topology", str(tmp_path / "tree.toml"), "--routing", "fat-tree"]
    assert main([*words, "--route", "h0", "h15", "--svg", str(tmp_path / "tree.svg")]) == status.OK
    page = Path(__file__).parents[3] / "docs" / "images" / "fat-tree.svg"
    assert (tmp_path / "tree.svg").read_text() == page.read_text()
