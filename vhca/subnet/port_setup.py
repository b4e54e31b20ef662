"""What a manager writes into ports: addresses, keys, partitions, link settings and states (14.2.5.6 of volume 1).

A port gets what it lacks and no more; states go from Initialize to Armed to Active, switches before adapters.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from vhca.subnet.answers import CountRefused, ok
from vhca.subnet.discovery import NODES_PER_TURN, AskWithin
from vhca.subnet.mkeys import ManagementKeys
from vhca.subnet.topology import Node, NodePort, PortKey, Topology
from vhca.subnet.transactions import Request, Work
from vhca.wire import smp as smpwire
from vhca.wire.mad import METHOD_SET
from vhca.wire.smp import PortInfo

SUBNET_TIMEOUT: Final = 18
_DEFAULT_TABLE: Final = (0xFFFF,)
"""P_Keys of a port that was just switched on."""
_UNKNOWN: Final = (-1,)
"""P_Keys of a port of which nobody knows what is there."""


class PortSetup:
    """Brings the ports of a topology to what they are to be; `own_lid` gives the manager's own LID."""

    def __init__(
        self,
        ask: AskWithin,
        keys: ManagementKeys,
        count_refused: CountRefused,
        gid_prefix: int,
        own_lid: Callable[[], int],
    ) -> None:
        self._ask = ask
        self._keys = keys
        self._count_refused = count_refused
        self._gid_prefix = gid_prefix
        self._own_lid = own_lid
        # P_Keys as written, by port of a node.
        self._pkeys: dict[PortKey, tuple[int, ...]] = {}
        self._unknown = False

    def forget(self) -> None:
        """Another manager was here: nobody knows what tables hold."""
        self._pkeys.clear()
        self._unknown = True

    def key(self, topology: Topology, node: Node, port: int) -> int:
        """The M_Key of a node's port."""
        return self._keys.at(None if node.is_switch else topology.cables.get((node.guid, port)))

    def switches(self, topology: Topology) -> Work:
        """Addresses and keys of switches, and the ends of their tables."""
        top = max((port.lid + (1 << port.lmc) - 1 for _, port in topology.end_ports()), default=0)
        requests = []
        for number, switch in enumerate(topology.switches()):
            if number % NODES_PER_TURN == 0:
                yield []
            port = switch.ports.get(0)
            if port is None or switch.switch_info is None:
                continue
            info = PortInfo.from_bytes(port.info.to_bytes())
            info.lid, info.sm_lid, info.gid_prefix = port.lid, self._own_lid(), self._gid_prefix
            info.port_state, info.port_physical_state = smpwire.PORT_NOP, 0
            info.subnet_timeout = SUBNET_TIMEOUT
            self._keys.protect(info, self._keys.switches)
            requests.append(self._ask(topology, METHOD_SET, smpwire.PORT_INFO, 0, switch, 0, info.to_bytes()))
            port.info.lid, port.info.sm_lid, port.info.gid_prefix = port.lid, self._own_lid(), self._gid_prefix
            self._keys.protect(port.info, self._keys.switches)
            if switch.switch_info.linear_fdb_top != top:
                switch.switch_info.linear_fdb_top = top
                data = switch.switch_info.to_bytes()
                requests.append(self._ask(topology, METHOD_SET, smpwire.SWITCH_INFO, 0, switch, 0, data))
        self._count_refused(requests, (yield requests))

    def ports(self, topology: Topology) -> Work:
        """PortInfo of all ports with a cable and their P_Keys; then Armed, then Active, switches before adapters."""
        yield from self._set_ports(topology, lambda port: smpwire.PORT_NOP)
        yield from self._partitions(topology)
        self._unknown = False
        for before, after in (
            (smpwire.PORT_INIT, smpwire.PORT_ARMED),
            (smpwire.PORT_ARMED, smpwire.PORT_ACTIVE),
        ):
            for switches in (True, False):
                yield from self._set_ports(
                    topology,
                    lambda port, before=before, after=after: after if port.info.port_state == before else None,  # type: ignore[misc]
                    switches=switches,
                )

    def _set_ports(
        self,
        topology: Topology,
        state_for: Callable[[NodePort], int | None],
        switches: bool | None = None,
    ) -> Work:
        requests: list[Request] = []
        ports: list[NodePort] = []
        for node in topology.nodes.values():
            if switches is not None and node.is_switch != switches:
                continue
            for port in node.ports.values():
                peer = _peer(topology, node, port)
                state = state_for(port)
                if peer is None or state is None or (node.is_switch and port.number == 0):
                    continue
                data = self._port_info(topology, node, port, peer, state)
                if data is not None:
                    number = port.number
                    requests.append(self._ask(topology, METHOD_SET, smpwire.PORT_INFO, number, node, number, data))
                    ports.append(port)
            yield []
        answers = yield requests
        self._count_refused(requests, answers)
        for port, answer in zip(ports, answers, strict=True):
            if answer is not None and ok(answer):
                port.info = PortInfo.from_bytes(answer.data)
                port.reregistered |= bool(port.info.client_reregister)

    def _port_info(self, topology: Topology, node: Node, port: NodePort, peer: NodePort, state: int) -> bytes | None:
        """The Set(PortInfo) that takes `port` to `state`; None if nothing would change."""
        now = port.info
        info = PortInfo.from_bytes(now.to_bytes())
        info.neighbor_mtu = min(now.mtu_cap, peer.info.mtu_cap)
        info.operational_vls = min(now.vl_cap, peer.info.vl_cap)
        if node.is_switch:
            info.partition_enforcement_inbound = info.partition_enforcement_outbound = int(port.enforced)
        else:
            info.lid, info.sm_lid, info.gid_prefix = port.lid, self._own_lid(), self._gid_prefix
            info.sm_sl, info.lmc, info.subnet_timeout = 0, port.lmc, SUBNET_TIMEOUT
            self._keys.protect(info, self.key(topology, node, port.number))
        # With the LID, before the port is armed; with the activation if that order was lost. What a port of another
        # manager told that one's SA, this one does not know.
        fresh = now.port_state != smpwire.PORT_ACTIVE or now.sm_lid != self._own_lid()
        reregister = not node.is_switch and not port.reregistered and fresh
        reregister &= bool(now.capability_mask & smpwire.CAP_CLIENT_REREGISTRATION) and state != smpwire.PORT_ARMED
        if state == smpwire.PORT_NOP and info == now and not reregister:
            return None
        info.port_state, info.port_physical_state = state, 0
        # Counters are reset by writing 0 only.
        info.mkey_violations = info.pkey_violations = info.qkey_violations = 0xFFFF
        info.client_reregister = int(reregister)
        return info.to_bytes()

    def differs(self, topology: Topology, node: Node, port: NodePort, now: PortInfo) -> bool:
        """Tell whether a port is not any more as this manager left it."""
        if node.is_switch and port.number == 0:
            kept = ("mkey", "mkey_protect_bits", "mkey_lease_period", "lid", "sm_lid", "gid_prefix")
            return any(getattr(now, name) != getattr(port.info, name) for name in kept)
        if now.port_state != port.info.port_state:
            return True
        peer = _peer(topology, node, port)
        fresh = replace(port, info=now)
        return peer is not None and self._port_info(topology, node, fresh, peer, smpwire.PORT_NOP) is not None

    # Partitions

    def _partitions(self, topology: Topology) -> Work:
        """P_Key tables of end ports, and of the ports of switches that guard adapters."""
        requests: list[Request] = []
        places: list[tuple[PortKey, tuple[int, ...]]] = []
        for number, (node, port, wanted) in enumerate(pkey_tables(topology), 1):
            if number % NODES_PER_TURN == 0:
                yield []
            place = (node.guid, port.number)
            known = self._pkeys.get(place, _UNKNOWN if self._unknown else _DEFAULT_TABLE)
            if port.info.port_state == smpwire.PORT_INIT and not node.is_switch:
                known = _DEFAULT_TABLE  # a card that was just switched on, or that a reset made forget
            if known == wanted:
                self._pkeys[place] = wanted
                continue
            self._pkeys[place] = _UNKNOWN
            held = capacity(node) if known == _UNKNOWN else len(known)
            for block, data in pkey_blocks(wanted, held):
                modifier = block | (port.number << 16 if node.is_switch else 0)
                requests.append(self._ask(topology, METHOD_SET, smpwire.P_KEY_TABLE, modifier, node, port.number, data))
                places.append((place, wanted))
        answers = yield requests
        self._count_refused(requests, answers)
        good = dict(places)
        for (place, _), answer in zip(places, answers, strict=True):
            if not ok(answer):
                good.pop(place, None)
        self._pkeys |= good


def pkey_tables(topology: Topology) -> Iterator[tuple[Node, NodePort, tuple[int, ...]]]:
    """Ports with a P_Key table to write, and what goes into it."""
    for node in topology.nodes.values():
        for port in node.ports.values():
            if not node.is_switch:
                yield node, port, tuple(port.pkeys)
            elif port.enforced:
                peer = _peer(topology, node, port)
                if peer is not None:
                    yield node, port, tuple(peer.pkeys)


def capacity(node: Node) -> int:
    """How many P_Keys the table of a node's port has room for."""
    enforced = node.switch_info.partition_enforcement_cap if node.switch_info is not None else 0
    return enforced if node.is_switch else node.info.partition_cap


def pkey_blocks(pkeys: tuple[int, ...], held: int) -> Iterator[tuple[int, bytes]]:
    """A P_Key table by blocks; `held` is how many entries may be there now, which are cleared behind it."""
    size = smpwire.P_KEYS_PER_BLOCK
    for block in range(max(1, -(-max(len(pkeys), held) // size))):
        some = pkeys[block * size : (block + 1) * size]
        yield block, smpwire.pack_words(some).ljust(64, b"\0")


def _peer(topology: Topology, node: Node, port: NodePort) -> NodePort | None:
    """The port at the other end of the cable, if both ends are up."""
    key = topology.cables.get((node.guid, port.number))
    if key is None or port.info.port_state == smpwire.PORT_DOWN:
        return None
    other = topology.nodes.get(key[0])
    return other.ports.get(key[1]) if other is not None else None


def all_active(topology: Topology) -> bool:
    """Tell whether every port with a live cable became Active."""
    for node in topology.nodes.values():
        for port in node.ports.values():
            down = port.info.port_state == smpwire.PORT_DOWN
            internal = node.is_switch and port.number == 0
            if not down and not internal and port.info.port_state != smpwire.PORT_ACTIVE:
                return False
    return bool(topology.nodes)
