"""Packets by the names of their fields, those of the route among the others."""

from dataclasses import replace
from typing import Any

from vhca.wire.packet import Packet, Route


def packet_of(**fields: Any) -> Packet:
    """The packet with these fields; `dlid`, `slid`, `sl`, `vl` and `grh` make its route."""
    route = Route(**{name: fields.pop(name) for name in Route._fields if name in fields})
    return Packet(route, **fields)


def changed(packet: Packet, **fields: Any) -> Packet:
    """A copy of `packet` with other fields, of its route or its own."""
    route = packet.route._replace(**{name: fields.pop(name) for name in Route._fields if name in fields})
    return replace(packet, route=route, **fields)


def divert(packet: Packet, **fields: Any) -> Packet:
    """Change fields of the packet's route; the packet itself."""
    packet.route = packet.route._replace(**fields)
    return packet
