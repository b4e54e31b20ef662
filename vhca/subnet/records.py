"""The rows of the subnet's directory: what the subnet manager knows, as records that queries can match."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from vhca.layout import Layout
from vhca.management.link_speed import rate_of, slower
from vhca.subnet.manager import MAX_HOPS, PRIORITY, SubnetManager
from vhca.subnet.multicast import LIFE_TIME, MulticastGroups, selected
from vhca.subnet.topology import Node, NodePort
from vhca.wire import sa, smp
from vhca.wire.mad import SA_STATUS_INSUFFICIENT_COMPONENTS, SA_STATUS_INVALID_GID, gid
from vhca.wire.packet import DEFAULT_PKEY
from vhca.wire.sa import COMPONENTS, PathRecord

MTU_LARGEST: Final = smp.MTU_4096

Place = tuple[Node, NodePort]


class NotOnePath(Exception):
    """A path query that cannot be answered; `status` is what the answer says."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status:#06x}")
        self.status = status


def matches(record: Layout, wanted: Layout, mask: int) -> bool:
    """Tell whether a record agrees with a query in every component that the mask names."""
    for bit, name in COMPONENTS.get(type(record), ()):
        if mask >> bit & 1 and _value(record, name) != _value(wanted, name):
            return False
    return True


def _value(record: Any, name: str) -> object:
    for part in name.split("."):
        record = getattr(record, part)
    return record


def _nodes(manager: SubnetManager) -> Iterator[Layout]:
    for node, port in manager.topology.end_ports():
        info = smp.NodeInfo.from_bytes(node.info.to_bytes())
        info.port_guid = port.guid
        info.local_port_num = port.number
        yield sa.NodeRecord(lid=port.lid, info=info, description=node.description)


def _ports(manager: SubnetManager) -> Iterator[Layout]:
    for node in manager.topology.nodes.values():
        base = next((port.lid for port in node.end_ports()), 0)
        for port in node.ports.values():
            lid = base if node.is_switch else port.lid
            info = smp.PortInfo.from_bytes(port.info.to_bytes())
            info.mkey = 0
            yield sa.PortInfoRecord(lid=lid, port_num=port.number, info=info)


def _switches(manager: SubnetManager) -> Iterator[Layout]:
    for switch in manager.topology.switches():
        if switch.switch_info is not None and 0 in switch.ports:
            yield sa.SwitchInfoRecord(lid=switch.ports[0].lid, info=switch.switch_info)


def _managers(manager: SubnetManager) -> Iterator[Layout]:
    info = smp.SmInfo(guid=manager.guid, priority=PRIORITY, sm_state=smp.SM_STATE_MASTER)
    yield sa.SmInfoRecord(lid=manager.lid, info=info)


def _links(manager: SubnetManager) -> Iterator[Layout]:
    topology = manager.topology
    for (guid, number), (peer, peer_number) in topology.cables.items():
        if guid not in topology.nodes or peer not in topology.nodes:
            continue
        yield sa.LinkRecord(
            from_lid=_lid_of(topology.nodes[guid], number),
            from_port=number,
            to_port=peer_number,
            to_lid=_lid_of(topology.nodes[peer], peer_number),
        )


def _lid_of(node: Node, number: int) -> int:
    port = node.ports.get(0 if node.is_switch else number)
    return port.lid if port is not None else 0


def _pkeys(manager: SubnetManager) -> Iterator[Layout]:
    for _, port in manager.topology.end_ports():
        yield sa.PKeyTableRecord(lid=port.lid, port_num=port.number, pkeys=smp.pack_words(port.pkeys).ljust(64, b"\0"))


EVERY: Final[dict[type[Layout], Callable[[SubnetManager], Iterator[Layout]]]] = {
    sa.NodeRecord: _nodes,
    sa.PortInfoRecord: _ports,
    sa.SwitchInfoRecord: _switches,
    sa.SmInfoRecord: _managers,
    sa.LinkRecord: _links,
    sa.PKeyTableRecord: _pkeys,
}
"""All records of a kind."""


def paths(
    manager: SubnetManager, groups: MulticastGroups, wanted: PathRecord, mask: int
) -> Iterator[PathRecord | None]:
    """Paths that a query asks for, None for each that it does not; at least one end must be named (15.2.5.16)."""
    if mask & sa.PATH_PKEY and (wanted.pkey ^ DEFAULT_PKEY) & 0x7FFF:
        return
    if mask & sa.PATH_DGID and wanted.dgid[0] == 0xFF:
        yield from _group_path(manager, groups, wanted, mask)
        return
    sources = _ends(manager, wanted.sgid, wanted.slid, mask & sa.PATH_SGID, mask & sa.PATH_SLID)
    destinations = _ends(manager, wanted.dgid, wanted.dlid, mask & sa.PATH_DGID, mask & sa.PATH_DLID)
    if not mask & (sa.PATH_SGID | sa.PATH_SLID | sa.PATH_DGID | sa.PATH_DLID):
        raise NotOnePath(SA_STATUS_INSUFFICIENT_COMPONENTS)
    for source in sources:
        for destination in destinations:
            yield _path(manager, source, destination, wanted, mask)


def _ends(manager: SubnetManager, wanted_gid: bytes, wanted_lid: int, by_gid: int, by_lid: int) -> list[Place]:
    topology = manager.topology
    if by_gid:
        found = topology.by_gid(wanted_gid)
        if found is None:
            raise NotOnePath(SA_STATUS_INVALID_GID)
        return [found] if not by_lid or topology.by_lid(wanted_lid) == found else []
    if by_lid:
        found = topology.by_lid(wanted_lid)
        return [found] if found is not None else []
    return [(node, port) for node, port in topology.end_ports() if port.lid]


def _path(manager: SubnetManager, start: Place, end: Place, wanted: PathRecord, mask: int) -> PathRecord | None:
    source, destination = start[1], end[1]
    mtu, rate = MTU_LARGEST, rate_of(source.info)
    for info in (source.info, *_on_the_way(manager, start, destination.lid), destination.info):
        mtu, rate = min(mtu, info.neighbor_mtu), slower(rate, rate_of(info))
    path = PathRecord(
        dgid=gid(destination.info.gid_prefix, destination.guid),
        sgid=gid(source.info.gid_prefix, source.guid),
        dlid=destination.lid,
        slid=source.lid,
        pkey=wanted.pkey if mask & sa.PATH_PKEY else DEFAULT_PKEY,
    )
    return _finish(path, wanted, mask, mtu, rate)


def _on_the_way(manager: SubnetManager, start: Place, lid: int) -> Iterator[smp.PortInfo]:
    """The ports by which packets for a LID leave switches."""
    topology, routes = manager.topology, manager.tables.routes
    place = topology.attachment(*start)
    for _ in range(MAX_HOPS):
        table = routes.table(place[0]) if place is not None else b""
        if place is None or lid >= len(table):
            return
        key = place[0], table[lid]
        port = topology.nodes[key[0]].ports.get(key[1])
        if port is None or not port.number:
            return
        yield port.info
        place = topology.cables.get(key)
        if place is None or place[0] not in topology.nodes or not topology.nodes[place[0]].is_switch:
            return


def _group_path(manager: SubnetManager, groups: MulticastGroups, wanted: PathRecord, mask: int) -> Iterator[PathRecord]:
    group = groups.groups.get(wanted.dgid)
    if group is None:
        raise NotOnePath(SA_STATUS_INVALID_GID)
    record = group.record
    for source in _ends(manager, wanted.sgid, wanted.slid, mask & sa.PATH_SGID, mask & sa.PATH_SLID):
        path = PathRecord(
            dgid=record.mgid,
            sgid=gid(source[1].info.gid_prefix, source[1].guid),
            dlid=record.mlid,
            slid=source[1].lid,
            flow_label=record.flow_label,
            hop_limit=record.hop_limit,
            tclass=record.tclass,
            pkey=record.pkey,
            sl=record.sl,
        )
        finished = _finish(path, wanted, mask, record.mtu, record.rate)
        if finished is not None:
            yield finished


def _finish(path: PathRecord, wanted: PathRecord, mask: int, mtu: int, rate: int) -> PathRecord | None:
    """Fill in what all paths have; None if the query wants another MTU, rate or SL."""
    if mask & sa.PATH_MTU and mask & sa.PATH_MTU_SELECTOR and not selected(wanted.mtu_selector, wanted.mtu, mtu):
        return None
    rated = mask & sa.PATH_RATE and mask & sa.PATH_RATE_SELECTOR
    if rated and not selected(wanted.rate_selector, wanted.rate, rate):
        return None
    if mask & sa.PATH_SL and wanted.sl != path.sl:
        return None
    path.reversible = 1
    path.numb_path = 1
    path.mtu_selector = path.rate_selector = path.life_time_selector = sa.SELECT_EXACTLY
    path.mtu = mtu
    path.rate = rate
    path.life_time = LIFE_TIME
    return path
