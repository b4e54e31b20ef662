"""The rows of the subnet's directory: what the subnet manager knows, as records that queries can match.

Each row comes with the end ports that it is about: who may not speak to them does not see it (15.4.1.2 of volume 1).
None stands for what was looked at and has no row: who goes through many of them lets others have their turn.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from vhca.layout import Layout
from vhca.subnet.manager import SubnetManager
from vhca.subnet.port_setup import pkey_blocks
from vhca.subnet.topology import Node, NodePort
from vhca.wire import sa, smp
from vhca.wire.sa import COMPONENTS

About = tuple[NodePort, ...]
Row = tuple[Layout, About] | None


def matches(record: Layout, wanted: Layout, mask: int) -> bool:
    """Tell whether a record agrees with a query in every component that the mask names."""
    for bit, name in COMPONENTS.get(type(record), ()):
        if mask >> bit & 1 and _value(record, name) != _value(wanted, name):
            return False
    if isinstance(record, sa.ServiceRecord) and isinstance(wanted, sa.ServiceRecord):
        for bit, (at, size) in enumerate(sa.SERVICE_DATA_PARTS, sa.SERVICE_DATA_FIRST):
            if mask >> bit & 1 and record.data[at : at + size] != wanted.data[at : at + size]:
                return False
    return True


def _value(record: Any, name: str) -> object:
    for part in name.split("."):
        record = getattr(record, part)
    return record


def _nodes(manager: SubnetManager) -> Iterator[Row]:
    for node, port in manager.topology.end_ports():
        info = smp.NodeInfo.from_bytes(node.info.to_bytes())
        info.port_guid = port.guid
        info.local_port_num = port.number
        yield sa.NodeRecord(lid=port.lid, info=info, description=node.description), (port,)


def _ports(manager: SubnetManager) -> Iterator[Row]:
    for node in manager.topology.nodes.values():
        for port in node.ports.values():
            info = smp.PortInfo.from_bytes(port.info.to_bytes())
            info.mkey = 0
            yield sa.PortInfoRecord(lid=_lid_of(node, port.number), port_num=port.number, info=info), _end(node, port)


def _switches(manager: SubnetManager) -> Iterator[Row]:
    for switch in manager.topology.switches():
        if switch.switch_info is None or 0 not in switch.ports:
            yield None
        else:
            yield sa.SwitchInfoRecord(lid=switch.ports[0].lid, info=switch.switch_info), (switch.ports[0],)


def _managers(manager: SubnetManager) -> Iterator[Row]:
    info = manager.info()
    info.sm_key = 0
    yield sa.SmInfoRecord(lid=manager.lid, info=info), ()
    for rival in manager.rivals:
        node = manager.topology.nodes.get(rival.place[0])
        if node is not None and rival.place[1] in node.ports:
            port = node.ports[rival.place[1]]
            info = smp.SmInfo.from_bytes(rival.info.to_bytes())
            info.sm_key = 0
            yield sa.SmInfoRecord(lid=port.lid, info=info), (port,)


def _links(manager: SubnetManager) -> Iterator[Row]:
    topology = manager.topology
    for (guid, number), (peer, peer_number) in topology.cables.items():
        if guid not in topology.nodes or peer not in topology.nodes:
            yield None
            continue
        here, there = topology.nodes[guid], topology.nodes[peer]
        link = sa.LinkRecord(
            from_lid=_lid_of(here, number),
            from_port=number,
            to_port=peer_number,
            to_lid=_lid_of(there, peer_number),
        )
        yield link, _end(here, here.ports.get(number)) + _end(there, there.ports.get(peer_number))


def _lid_of(node: Node, number: int) -> int:
    port = node.ports.get(0 if node.is_switch else number)
    return port.lid if port is not None else 0


def _end(node: Node, port: NodePort | None) -> About:
    """The end port that a port belongs to: of a switch, port 0."""
    end = node.ports.get(0) if node.is_switch else port
    return () if end is None else (end,)


def _pkeys(manager: SubnetManager) -> Iterator[Row]:
    for node in manager.topology.nodes.values():
        for port in node.ports.values():
            peer = manager.topology.cables.get((node.guid, port.number))
            table = port.pkeys
            if node.is_switch and port.number:
                if not port.enforced or peer is None:
                    yield None
                    continue
                table = manager.topology.nodes[peer[0]].ports[peer[1]].pkeys
            for block, data in pkey_blocks(tuple(table), 0):
                record = sa.PKeyTableRecord(
                    lid=_lid_of(node, port.number), block=block, port_num=port.number, pkeys=data
                )
                yield record, _end(node, port)


def _guids(manager: SubnetManager) -> Iterator[Row]:
    for _, port in manager.topology.end_ports():
        for block in range(max(1, -(-port.info.guid_cap // smp.GUIDS_PER_BLOCK))):
            guids = [port.guid, *port.aliases] if not block else []
            data = smp.pack_guids(guids).ljust(64, b"\0")
            yield sa.GuidInfoRecord(lid=port.lid, block=block, guids=data), (port,)


def _linear_tables(manager: SubnetManager) -> Iterator[Row]:
    for switch in manager.topology.switches():
        yield None
        for block, data in manager.tables.linear(switch):
            yield sa.LinearTableRecord(lid=_lid_of(switch, 0), block=block, ports=data), _end(switch, None)


def _multicast_tables(manager: SubnetManager) -> Iterator[Row]:
    for switch in manager.topology.switches():
        yield None
        for position, block, data in manager.tables.multicast(switch):
            record = sa.MulticastTableRecord(lid=_lid_of(switch, 0), position=position, block=block, masks=data)
            yield record, _end(switch, None)


EVERY: Final[dict[type[Layout], Callable[[SubnetManager], Iterator[Row]]]] = {
    sa.NodeRecord: _nodes,
    sa.PortInfoRecord: _ports,
    sa.SwitchInfoRecord: _switches,
    sa.SmInfoRecord: _managers,
    sa.LinkRecord: _links,
    sa.PKeyTableRecord: _pkeys,
    sa.GuidInfoRecord: _guids,
    sa.LinearTableRecord: _linear_tables,
    sa.MulticastTableRecord: _multicast_tables,
}
"""All records of a kind."""
