"""Paths from one port to another, as the directory tells them: which LIDs, how wide, in which partition (15.2.5.16)."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from vhca.management.link_speed import rate_of, slower
from vhca.subnet.discovery import MAX_HOPS
from vhca.subnet.manager import SubnetManager
from vhca.subnet.multicast import LIFE_TIME, MulticastGroups, rate_selected, selected
from vhca.subnet.partitions import FULL_MEMBER, shared
from vhca.subnet.topology import Node, NodePort, PortKey
from vhca.wire import sa, smp
from vhca.wire.mad import (
    SA_STATUS_INSUFFICIENT_COMPONENTS,
    SA_STATUS_INVALID_GID,
    SA_STATUS_REQ_INVALID,
    gid,
)
from vhca.wire.sa import MultiPathRecord, PathRecord

MTU_LARGEST: Final = smp.MTU_4096
PATH_ENDS: Final = sa.PATH_SGID | sa.PATH_SLID | sa.PATH_DGID | sa.PATH_DLID
"""Components of which a query for one path names some."""

Place = tuple[Node, NodePort]
Sees = Callable[[NodePort], bool]
"""Tells whether who asks may know of a port."""


class Horizon:
    """Who may know of whom: those who share a partition (15.4.1.2)."""

    def __init__(self, manager: SubnetManager) -> None:
        self._manager = manager
        self._known: dict[tuple[int, ...], dict[tuple[int, ...], bool]] = {}  # by both tables

    def forget(self) -> None:
        """Tables have changed: those that there are not any more need not be remembered."""
        self._known.clear()

    def pkeys(self, lid: int) -> list[int]:
        """The P_Key table of the port with this LID; empty if there is no such port."""
        asker = self._manager.topology.by_lid(lid)
        return asker[1].pkeys if asker is not None else []

    def is_member(self, lid: int, pkey: int) -> bool:
        """Tell whether the port with this LID is in the partition of a P_Key, as a full or a limited member."""
        return any(own and not (own ^ pkey) & ~FULL_MEMBER for own in self.pkeys(lid))

    def of(self, lid: int) -> Sees:
        """What the port with this LID may know of; nothing, if there is no such port."""
        if not self._manager.partitions.partitions:
            return lambda _port: True
        asker = self._manager.topology.by_lid(lid)
        if asker is None:
            return lambda _port: False
        own = tuple(asker[1].pkeys)
        known = self._known.setdefault(own, {})

        def sees(port: NodePort) -> bool:
            table = tuple(port.pkeys)
            if table not in known:
                known[table] = bool(shared(own, table))
            return known[table] or port is asker[1]

        return sees


class NotOnePath(Exception):
    """A path query that cannot be answered; `status` is what the answer says."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status:#06x}")
        self.status = status


def paths(
    manager: SubnetManager, groups: MulticastGroups, wanted: PathRecord, mask: int, sees: Sees
) -> Iterator[PathRecord | None]:
    """Paths that a query asks for, None for each that it does not (15.2.5.16)."""
    if mask & sa.PATH_DGID and wanted.dgid[0] == 0xFF:
        yield from _group_paths(manager, groups, wanted, mask, sees)
        return
    sources = _ends(manager, wanted.sgid, wanted.slid, mask & sa.PATH_SGID, mask & sa.PATH_SLID, sees)
    destinations = _ends(manager, wanted.dgid, wanted.dlid, mask & sa.PATH_DGID, mask & sa.PATH_DLID, sees)
    for source in sources():
        if source is None:
            yield None
            continue
        for destination in destinations():
            if destination is None:
                yield None
                continue
            pkey = _common(source[1], destination[1], wanted.pkey if mask & sa.PATH_PKEY else None)
            if pkey is None:
                yield None
                continue
            for slid, dlid in _lids(source[1], destination[1], wanted, mask):
                yield _path(manager, source, destination, slid, dlid, pkey, wanted, mask)


def multi_paths(
    manager: SubnetManager, groups: MulticastGroups, wanted: MultiPathRecord, gids: bytes, mask: int, sees: Sees
) -> Iterator[PathRecord | None]:
    """Paths between any of some ports and any of others (15.2.5.20); None for each that is none."""
    sgids = wanted.sgid_count if mask & sa.MULTI_PATH_SGID_COUNT else 0
    dgids = wanted.dgid_count if mask & sa.MULTI_PATH_DGID_COUNT else 0
    if not sgids or not dgids:
        raise NotOnePath(SA_STATUS_INSUFFICIENT_COMPONENTS)
    if len(gids) < 16 * (sgids + dgids):
        raise NotOnePath(SA_STATUS_REQ_INVALID)
    every = [gids[at : at + 16] for at in range(0, 16 * (sgids + dgids), 16)]
    if any(one[0] == 0xFF for one in every):
        raise NotOnePath(SA_STATUS_INVALID_GID)
    one = PathRecord(sl=wanted.sl, pkey=wanted.pkey, mtu_selector=wanted.mtu_selector, mtu=wanted.mtu)
    one.rate_selector, one.rate = wanted.rate_selector, wanted.rate
    one_mask = sa.PATH_SGID | sa.PATH_DGID
    for bits, meaning in (
        (sa.MULTI_PATH_PKEY, sa.PATH_PKEY),
        (sa.MULTI_PATH_SL, sa.PATH_SL),
        (sa.MULTI_PATH_MTU, sa.PATH_MTU | sa.PATH_MTU_SELECTOR),
        (sa.MULTI_PATH_RATE, sa.PATH_RATE | sa.PATH_RATE_SELECTOR),
    ):
        one_mask |= meaning if mask & bits == bits else 0
    most = wanted.numb_path if mask & sa.MULTI_PATH_NUMB_PATH else 0x7F
    for one.sgid in every[:sgids]:
        for one.dgid in every[sgids:]:
            found = 0
            for path in paths(manager, groups, one, one_mask, sees):
                found += path is not None
                yield path if found <= most else None


def trace(manager: SubnetManager, path: PathRecord, generation: int) -> Iterator[sa.TraceRecord]:
    """The nodes on a path that was found, and the ports by which it enters and leaves them."""
    start = manager.topology.by_lid(path.slid)
    end = manager.topology.by_lid(path.dlid)
    if start is None or end is None:
        return
    entry = 0
    node: Node = start[0]
    for key in (None, *_departures(manager, start, path.dlid)):
        if key is not None:
            node = manager.topology.nodes[key[0]]
            yield _traced(manager, node, entry, key[1], generation)
            entry = manager.topology.cables[key][1]
        elif not node.is_switch:
            yield _traced(manager, node, 0, start[1].number, generation)
            entry = manager.topology.cables.get((node.guid, start[1].number), (0, 0))[1]
    if end[0] is not start[0] or end[0].is_switch:
        yield _traced(manager, end[0], entry, 0, generation)


def _traced(manager: SubnetManager, node: Node, entry: int, leave: int, generation: int) -> sa.TraceRecord:
    def guid(number: int) -> int:
        return node.info.port_guid if node.is_switch else node.ports[number].guid if number in node.ports else 0

    return sa.TraceRecord(
        gid_prefix=manager.gid_prefix,
        generation=generation & 0xFFFF,
        node_type=node.info.node_type,
        node_guid=node.guid,
        entry_guid=guid(entry) if entry else 0,
        exit_guid=guid(leave) if leave else 0,
        entry_port=entry,
        exit_port=leave,
    )


def _common(source: NodePort, destination: NodePort, wanted: int | None) -> int | None:
    """A P_Key by which one may speak to the other, as the source has it; None if there is none like that."""
    for pkey in shared(source.pkeys, destination.pkeys):
        if wanted is None or not (pkey ^ wanted) & ~FULL_MEMBER:
            return pkey
    return None


def _lids(source: NodePort, destination: NodePort, wanted: PathRecord, mask: int) -> Iterator[tuple[int, int]]:
    """LIDs of both ends: as asked for, else those with the same number among all that they have."""
    if mask & sa.PATH_SLID and mask & sa.PATH_DLID:
        yield wanted.slid, wanted.dlid
        return
    for number in range(1 << max(source.lmc, destination.lmc)):
        slid = wanted.slid if mask & sa.PATH_SLID else source.lid + number % (1 << source.lmc)
        dlid = wanted.dlid if mask & sa.PATH_DLID else destination.lid + number % (1 << destination.lmc)
        yield slid, dlid


def _ends(
    manager: SubnetManager, wanted_gid: bytes, wanted_lid: int, by_gid: int, by_lid: int, sees: Sees
) -> Callable[[], Iterator[Place | None]]:
    """What gives the ends that a query names, as often as they are needed; None for each that is not meant."""
    topology = manager.topology
    if by_gid:
        found = topology.by_gid(wanted_gid)
        if found is None or not sees(found[1]):
            raise NotOnePath(SA_STATUS_INVALID_GID)
        places = [found] if not by_lid or topology.by_lid(wanted_lid) == found else []
        return lambda: iter(places)
    if by_lid:
        found = topology.by_lid(wanted_lid)
        places = [found] if found is not None and sees(found[1]) else []
        return lambda: iter(places)
    return lambda: ((node, port) if port.lid and sees(port) else None for node, port in topology.end_ports())


def _path(
    manager: SubnetManager,
    start: Place,
    end: Place,
    slid: int,
    dlid: int,
    pkey: int,
    wanted: PathRecord,
    mask: int,
) -> PathRecord | None:
    source, destination = start[1], end[1]
    mtu, rate = MTU_LARGEST, rate_of(source.info)
    way = (manager.topology.nodes[guid].ports[number].info for guid, number in _departures(manager, start, dlid))
    for info in (source.info, *way, destination.info):
        mtu, rate = min(mtu, info.neighbor_mtu), slower(rate, rate_of(info))
    path = PathRecord(
        dgid=wanted.dgid if mask & sa.PATH_DGID else gid(destination.info.gid_prefix, destination.guid),
        sgid=wanted.sgid if mask & sa.PATH_SGID else gid(source.info.gid_prefix, source.guid),
        dlid=dlid,
        slid=slid,
        pkey=pkey,
    )
    return _finish(path, wanted, mask, mtu, rate)


def _departures(manager: SubnetManager, start: Place, lid: int) -> Iterator[PortKey]:
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
        place = topology.cables.get(key)
        if place is None:
            return
        yield key
        if place[0] not in topology.nodes or not topology.nodes[place[0]].is_switch:
            return


def _group_paths(
    manager: SubnetManager, groups: MulticastGroups, wanted: PathRecord, mask: int, sees: Sees
) -> Iterator[PathRecord | None]:
    group = groups.groups.get(wanted.dgid)
    if group is None:
        raise NotOnePath(SA_STATUS_INVALID_GID)
    record = group.record
    if mask & sa.PATH_PKEY and (wanted.pkey ^ record.pkey) & ~FULL_MEMBER:
        return
    sources = _ends(manager, wanted.sgid, wanted.slid, mask & sa.PATH_SGID, mask & sa.PATH_SLID, sees)
    for source in sources():
        own = _own_form(source[1].pkeys, record.pkey) if source is not None else None
        if source is None or own is None:
            yield None
            continue
        path = PathRecord(
            dgid=record.mgid,
            sgid=gid(source[1].info.gid_prefix, source[1].guid),
            dlid=record.mlid,
            slid=source[1].lid,
            flow_label=record.flow_label,
            hop_limit=record.hop_limit,
            tclass=record.tclass,
            pkey=own,
            sl=record.sl,
        )
        yield _finish(path, wanted, mask, record.mtu, record.rate)


def _own_form(pkeys: Iterable[int], pkey: int) -> int | None:
    """A partition's P_Key as a port has it, better as a full member; None if it is not in it."""
    found = [own for own in pkeys if own and not (own ^ pkey) & ~FULL_MEMBER]
    return max(found, default=None)


def _finish(path: PathRecord, wanted: PathRecord, mask: int, mtu: int, rate: int) -> PathRecord | None:
    """Fill in what all paths have; None if the query wants another MTU, rate or SL."""
    if mask & sa.PATH_MTU and mask & sa.PATH_MTU_SELECTOR and not selected(wanted.mtu_selector, wanted.mtu, mtu):
        return None
    rated = mask & sa.PATH_RATE and mask & sa.PATH_RATE_SELECTOR
    if rated and not rate_selected(wanted.rate_selector, wanted.rate, rate):
        return None
    if mask & sa.PATH_SL and wanted.sl != path.sl:
        return None
    timed = mask & sa.PATH_LIFE_TIME and mask & sa.PATH_LIFE_TIME_SELECTOR
    if timed and not selected(wanted.life_time_selector, wanted.life_time, LIFE_TIME):
        return None
    path.reversible = 1
    path.numb_path = 1
    path.mtu_selector = path.rate_selector = path.life_time_selector = sa.SELECT_EXACTLY
    path.mtu = mtu
    path.rate = rate
    path.life_time = LIFE_TIME
    return path
