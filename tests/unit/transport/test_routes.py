"""One module of the transport knows how packets travel; connections make their route once."""

import ast
from pathlib import Path as File

import pytest

import firmware.transport
from firmware.model.counters import Count
from firmware.model.qp import Path
from firmware.transport.port import route_over, stranger
from tests.support.ports import port_with
from vhca.wire.packet import RC, SEND, Grh, Packet, Route

# What address vectors, routes and ports say about the link and network layer.
TRAVEL = {
    *("dlid", "slid", "sl", "vl", "grh", "rlid", "mlid", "lid", "lmc", "gids"),
    *("sgid", "dgid", "rgid", "rgid_rip", "tclass", "hop_limit", "flow_label", "src_addr_index", "source_gid_index"),
}
OWN, OTHER = (bytes.fromhex("fe80000000000000") + number.to_bytes(8, "big") for number in (1, 2))


def test_only_the_port_looks_at_how_packets_travel() -> None:
    found = []
    here: set[str] = set()
    for path in sorted(File(firmware.transport.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if path.name == "port.py":
                here.add(str(getattr(node, "attr", getattr(node, "value", ""))))
            elif isinstance(node, ast.Attribute) and node.attr in TRAVEL:
                found.append(f"{path.name}:{node.lineno}: {node.attr}")
    assert not found, "\n".join(found)
    # The list is of names that exist: the port itself reads them.
    assert here >= TRAVEL


def test_a_route_is_made_once() -> None:
    port, path = port_with(8, lmc=3, gids=[OWN]), Path(dlid=2, sl=4, mlid=5)
    route = route_over(port, path)
    assert route == Route(dlid=2, slid=8 + 5, sl=4)
    assert route_over(port, path) is route


@pytest.mark.parametrize(
    ("change", "route"),
    [
        ({"lid": 16}, Route(2, 16 + 5, 0, 0, Grh(OWN, OTHER))),
        ({"lmc": 1}, Route(2, 8 + 1, 0, 0, Grh(OWN, OTHER))),
        ({"gids": [bytes(16)]}, Route(2, 8 + 5, 0, 0, Grh(bytes(16), OTHER))),
        ({"gids": []}, Route(2, 8 + 5, 0, 0, Grh(bytes(16), OTHER))),
    ],
)
def test_a_route_is_made_anew_when_the_manager_changes_the_port(change: dict[str, object], route: Route) -> None:
    port, path = port_with(8, lmc=3, gids=[OWN]), Path(dlid=2, mlid=5, grh=Grh(OWN, OTHER))
    before = route_over(port, path)
    for name, value in change.items():
        setattr(port, name, value)
    assert route_over(port, path) == route
    # Packets that are on their way keep the one that they left with.
    assert before == Route(2, 8 + 5, 0, 0, Grh(OWN, OTHER))


@pytest.mark.parametrize(
    ("expected", "there", "fits"),
    [
        (None, None, True),
        (Grh(OWN, OTHER), None, False),
        (None, Grh(OTHER, OWN), False),
        (Grh(OWN, OTHER), Grh(OTHER, OWN), True),
        (Grh(OWN, OTHER), Grh(OTHER, OTHER), False),
        (Grh(OWN, OTHER), Grh(OWN, OWN), False),
    ],
)
def test_both_ends_are_named_or_none(expected: Grh | None, there: Grh | None, fits: bool) -> None:
    packet = Packet(Route(1, 2, grh=there), RC, SEND, 5, 0)
    refused = None if fits else Count.RX_DROP_GID
    assert stranger(port_with(1, gids=[OWN]), Path(dlid=2, grh=expected), 0xFFFF, packet) == refused
