"""Topologies as TOML: a table for each switch, host and cable. docs/topologies.md shows it.

Keys that are left out have defaults; a key that is not known is an error. Whoever errs is told the line on which the
table begins.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from vhca.fabric import quantities
from vhca.fabric.line import MAX_LATENCY_NS, PLAIN, LineConfig
from vhca.fabric.topology import (
    Builder,
    Cable,
    End,
    Kind,
    Make,
    NodeSpec,
    Topology,
    TopologyError,
    at_line,
    usual_make,
)
from vhca.management.link_speed import LinkSpeed
from vhca.toml_files import read_toml

DEFAULT_PORTS: Final[dict[Kind, int]] = {"switch": 36, "host": 1}
_KINDS: Final[tuple[Kind, ...]] = ("switch", "host")


def read(text: str, beside: tuple[str, ...] = ()) -> Topology:
    """The topology that a TOML text describes; keys `beside` it are somebody else's.

    :raises TopologyError: it says no fabric; the error says where.
    """
    try:
        document = read_toml(text)
    except ValueError as error:  # a number of thousands of digits is a ValueError of its own
        raise TopologyError(f"not TOML: {error}; mend it, or rename what ibnetdiscover has printed") from error
    for key in beside:
        document.pop(key, None)
    builder = Builder()
    default, line = _link(document, LinkSpeed()), _line(document, PLAIN)
    for kind in _KINDS:
        for place, table in _tables(document, kind, text):
            with at_line(place):
                builder.add_node(_node(kind, table))
    for place, table in _tables(document, "cable", text):
        with at_line(place):
            builder.add_cable(_cable(table, default, line))
    _end(document, "speed, width, rate, latency, bit_error_rate, and tables called switch, host and cable")
    return builder.topology()


def write(topology: Topology) -> str:
    """The topology as TOML; what can be derived is left out, and what most cables run at is said once."""
    speeds = [cable.link for cable in topology.cables]
    usual = max(dict.fromkeys(speeds), key=speeds.count, default=LinkSpeed())
    out = [f'speed = "{usual.speed}"', f"width = {usual.width}", ""]
    for node in topology.nodes.values():
        out += [
            f"[[{node.kind}]]",
            f"name = {_quoted(node.name)}",
            f"ports = {node.ports}",
            f"guid = {node.guid:#018x}",
        ]
        if node.kind == "host" and node.port_guids != tuple(range(node.guid + 1, node.guid + 1 + node.ports)):
            out.append(f"port_guids = [{', '.join(f'{guid:#018x}' for guid in node.port_guids)}]")
        if node.description != node.name:
            out.append(f"description = {_quoted(node.description)}")
        made = zip(Make._fields, node.make, usual_make(node.kind, node.guid), strict=True)
        out += [f"{key} = {value:#x}" for key, value, usually in made if value != usually]
        out.append("")
    for cable in topology.cables:
        out += ["[[cable]]", f"ends = [{_quoted(str(cable.a))}, {_quoted(str(cable.b))}]"]
        if cable.link.speed != usual.speed:
            out.append(f'speed = "{cable.link.speed}"')
        if cable.link.width != usual.width:
            out.append(f"width = {cable.link.width}")
        if cable.line.rate_bps:
            out.append(f'rate = "{quantities.told_rate(cable.line.rate_bps)}"')
        if cable.line.latency_ns:
            out.append(f'latency = "{quantities.told_time(cable.line.latency_ns)}"')
        if cable.line.bit_error_rate:
            out.append(f"bit_error_rate = {cable.line.bit_error_rate!r}")
        out.append("")
    return "\n".join(out)


def _quoted(text: str) -> str:
    """A TOML string: names are printable and without quotes."""
    return '"' + text.replace("\\", "\\\\") + '"'


def _tables(document: dict[str, Any], name: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tables of an array, and where each begins."""
    tables = document.pop(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise TopologyError(f"{name} is no array of tables; begin each with [[{name}]]")
    headers = re.finditer(rf"^[ \t]*\[\[[ \t]*{name}[ \t]*\]\]", text, re.MULTILINE)
    line, at = 1, 0
    for number, table in enumerate(tables, 1):
        header = next(headers, None)
        if header is not None:
            line += text.count("\n", at, header.start())
            at = header.start()
        yield f"{line} ({name} {number})", table


def _node(kind: Kind, table: dict[str, Any]) -> NodeSpec:
    name = _take(table, "name", str, "a text")
    if name is None:
        raise TopologyError(f"a {kind} without a name; give one: name = ...")
    ports = _take(table, "ports", int, "a number")
    guids = _take(table, "port_guids", list, "a list of GUIDs")
    if guids is not None and not all(type(guid) is int for guid in guids):
        raise TopologyError("port_guids: give a list of GUIDs such as [0x2c90300000001]")
    guid = _take(table, "guid", int, "a GUID such as 0x2c90300000000")
    description = _take(table, "description", str, "a text")
    if guids is not None and (kind == "switch" or guid is None):
        raise TopologyError("port_guids: they go with the guid of a host")
    vendor_id = _take(table, "vendor_id", int, "a number such as 0x2c9")
    device_id = _take(table, "device_id", int, "a number such as 0xcb20")
    system_guid = _take(table, "system_guid", int, "a GUID such as 0x2c90300000000")
    _end(table, "name, ports, guid, port_guids, description, vendor_id, device_id and system_guid")
    return NodeSpec(
        name,
        kind,
        DEFAULT_PORTS[kind] if ports is None else ports,
        guid,
        None if guids is None else tuple(guids),
        description,
        vendor_id,
        device_id,
        system_guid,
    )


def _cable(table: dict[str, Any], default: LinkSpeed, usual: LineConfig) -> Cable:
    ends = _take(table, "ends", list, "two ends")
    if ends is None or len(ends) != 2:
        raise TopologyError('a cable has two ends; give ends = ["leaf1/1", "node1/1"]')
    link, line = _link(table, default), _line(table, usual)
    _end(table, "ends, speed, width, rate, latency and bit_error_rate")
    return Cable(_port(ends[0]), _port(ends[1]), link, line)


def _port(text: object) -> End:
    name, slash, number = text.rpartition("/") if isinstance(text, str) else ("", "", "")
    if not slash or not re.fullmatch(r"[0-9]{1,4}", number):
        raise TopologyError(f"end {str(text)[:80]!r}: give node/port, such as leaf1/1")
    return End(name, int(number))


def _link(table: dict[str, Any], default: LinkSpeed) -> LinkSpeed:
    width = _take(table, "width", int, "a number of lanes")
    speed = _take(table, "speed", str, "a text")
    try:
        return LinkSpeed(default.width if width is None else width, default.speed if speed is None else speed)
    except ValueError as error:
        raise TopologyError(str(error)) from error


def _line(table: dict[str, Any], default: LineConfig) -> LineConfig:
    rate = _take(table, "rate", str, 'a rate such as "25Gbps"')
    latency = _take(table, "latency", str, 'a time such as "2us"')
    errors = table.pop("bit_error_rate", default.bit_error_rate)
    if type(errors) not in (int, float):
        raise TopologyError(f"bit_error_rate = {str(errors)[:80]!r}: give a number such as 1e-9")
    try:
        return LineConfig(
            default.rate_bps if rate is None else quantities.rate(rate),
            default.latency_ns if latency is None else quantities.time(latency, MAX_LATENCY_NS),
            errors,
        )
    except ValueError as error:
        raise TopologyError(str(error)) from error


def _take(table: dict[str, Any], key: str, kind: type, what: str) -> Any:
    value = table.pop(key, None)
    if value is not None and type(value) is not kind:
        raise TopologyError(f"{key} = {str(value)[:80]!r}: give {what}")
    return value


def _end(table: dict[str, Any], known: str) -> None:
    for key in table:
        raise TopologyError(f"{key[:80]!r} means nothing here; there are {known}")
