from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packets import packet_of
from tests.unit.fabric.bench import Bench, Turns
from tests.unit.mads.smps import port_info
from tests.unit.mads.smps import smp as smp_request
from tests.unit.wire.strategies import packets
from vhca.fabric.counters import Drop
from vhca.fabric.link import FULL_BYTES, Link, LinkEnd
from vhca.fabric.port import SwitchPort
from vhca.fabric.switch import Switch
from vhca.management.packets import smp_packet
from vhca.wire import mad as madwire
from vhca.wire import smp
from vhca.wire.mad import Smp
from vhca.wire.packet import RC, SEND, UD, WRITE, Packet, Route


class Plug:
    """Whatever hangs on a switch port in these tests."""

    def __init__(self, turns: Turns, port: SwitchPort) -> None:
        self.later: list[Callable[[], None]] = []
        self.link = Link(turns.call_soon, lambda delay, fn: self.later.append(fn), "plug", str(port.number))
        self.inbox: list[Packet] = []
        self.changes: list[bool] = []
        self.full = False
        self.link.a.attach(self)
        port.plug(self.link.b)

    def blocked(self, packet: Packet) -> bool:
        return self.full

    def receive(self, packet: Packet) -> None:
        self.inbox.append(packet)

    def link_changed(self, up: bool) -> None:
        self.changes.append(up)


class SwitchBench:
    def __init__(self, num_ports: int = 4) -> None:
        self.turns = Turns()
        self.switch = Switch(self.turns.call_soon, 0xABC, num_ports)
        self.managed: list[Packet] = []
        self.switch.management = lambda packet, _port: self.managed.append(packet)
        self.plugs = [Plug(self.turns, port) for port in self.switch.ports[1:]]
        self.turns.run()
        self.switch.agent.info.linear_fdb_top = 100
        for port in self.switch.ports[1:]:
            port.move(smp.PORT_ACTIVE)
            self.switch.lft[10 + port.number] = port.number

    def send(self, port: int, packet: Packet) -> list[int]:
        """Send into a port; gives the ports out of which something came."""
        before = [len(plug.inbox) for plug in self.plugs]
        self.plugs[port - 1].link.a.send(packet)
        self.turns.run()
        return [n for n, plug in enumerate(self.plugs, 1) for _ in range(len(plug.inbox) - before[n - 1])]

    def send_nothing_but(self, end: LinkEnd, packet: Packet) -> list[int]:
        """Send while cables are full; gives the ports out of which something came in a few turns."""
        before = [len(plug.inbox) for plug in self.plugs]
        end.send(packet)
        for _ in range(20):
            self.turns.one()
        return [n for n, plug in enumerate(self.plugs, 1) if len(plug.inbox) > before[n - 1]]

    def smp(self, port: int, method: int, attr: int, modifier: int = 0, data: bytes = b"") -> Smp:
        """Ask the switch's agent over one directed hop; the answer must come back where it went in."""
        request = Smp.from_bytes(smp_request(method, attr, modifier, data, directed=True))
        assert self.send(port, smp_packet(request.to_bytes(), 0xFFFF, 0xFFFF)) == [port]
        answer = Smp.from_bytes(self.plugs[port - 1].inbox[-1].payload)
        assert answer.method == (0x81 if method == madwire.METHOD_SET else method | 0x80)
        assert (answer.hop_pointer, answer.return_path[1]) == (1, port)
        return answer


def data(dlid: int, **fields: int | bytes) -> Packet:
    base: dict[str, int | bytes] = {"slid": 11, "service": RC, "op": SEND, "dest_qp": 5, "psn": 6, "payload": b"hello"}
    return packet_of(dlid=dlid, **{**base, **fields})


def test_unicast_goes_by_the_table_and_is_counted() -> None:
    bench = SwitchBench()
    burst = Packet(Route(12, 11, sl=6), RC, WRITE, 5, 6, bytes(600), 3, mtu=256)
    assert bench.send(1, burst) == [2]
    arrived = bench.plugs[1].inbox[0]
    assert (arrived.count, arrived.route.vl) == (3, 2)
    words = (600 + 16 + 3 * 24) // 4
    one, two = bench.switch.ports[1].counters, bench.switch.ports[2].counters
    assert (one.rcv_pkts, one.rcv_data, two.xmit_pkts, two.xmit_data) == (3, words, 3, words)


@pytest.mark.parametrize(
    ("reason", "packet"),
    [
        ("no_route", data(50)),
        ("no_route", data(0xBFFF)),
        ("bad_lid", data(0)),
        ("bad_lid", data(0xFFFF)),
        ("loop", data(11)),
        ("bad_crc", data(12, good=False)),
        ("no_group", data(0xC001)),
        ("bad_smp", data(12, vl=15)),
        ("bad_smp", Packet(Route(12, 11, vl=15), UD, SEND, 0, 6, bytes(256))),
        ("bad_smp", Packet(Route(12, 11, vl=15), UD, SEND, 0, 6, b"\1" * 255)),
    ],
)
def test_drops_have_names(reason: str, packet: Packet) -> None:
    bench = SwitchBench()
    assert bench.send(1, packet) == []
    assert bench.switch.dropped() == {reason: 1}


def test_port_state_gates_data() -> None:
    bench = SwitchBench()
    bench.switch.ports[2].move(smp.PORT_ARMED)
    assert bench.send(1, data(12)) == []
    assert bench.send(2, data(11)) == [1], "Armed receives"
    bench.switch.ports[1].info.port_state = bench.switch.ports[1].state = smp.PORT_INIT
    assert bench.send(1, data(13)) == []
    assert bench.switch.dropped() == {Drop.PORT_NOT_ACTIVE: 2}
    assert bench.switch.ports[2].counters.xmit_discards == 1
    assert bench.smp(1, madwire.METHOD_GET, smp.NODE_INFO).status & 0x7FFF == 0, "SMPs pass in Init"


def test_mtu_and_vl_mapping_drop() -> None:
    bench = SwitchBench()
    bench.switch.ports[2].set_mtu(2)
    assert bench.send(1, Packet(Route(12, 11), RC, SEND, 5, 6, bytes(513), mtu=1024)) == []
    assert bench.send(1, Packet(Route(12, 11), RC, SEND, 5, 6, bytes(512), mtu=1024)) == [2]
    answer = bench.smp(1, madwire.METHOD_SET, smp.SL_TO_VL, 1 << 8 | 2, b"\x1f" * 8)
    assert answer.data[:8] == b"\x1f" * 8
    assert bench.send(1, data(12, sl=1)) == []
    assert bench.send(1, data(12, sl=0)) == [2]
    assert bench.plugs[1].inbox[-1].route.vl == 1
    assert bench.switch.dropped() == {Drop.MTU: 1, Drop.SL_TO_VL: 1}


def test_multicast_goes_to_all_but_the_sender() -> None:
    bench = SwitchBench()
    bench.switch.mft[0xC000] = 0b11011
    assert bench.send(1, data(0xC000)) == [3, 4]
    assert bench.send(2, data(0xC000)) == [1, 3, 4]
    assert len(bench.managed) == 2
    copies = [plug.inbox[-1] for plug in bench.plugs[2:]]
    assert copies[0] is not copies[1]
    counters = bench.switch.ports[3].counters
    assert (counters.multicast_xmit_pkts, bench.switch.ports[1].counters.multicast_rcv_pkts) == (2, 1)


def test_agent_attributes() -> None:
    bench = SwitchBench(20)
    info = smp.NodeInfo.from_bytes(bench.smp(3, madwire.METHOD_GET, smp.NODE_INFO).data)
    assert (info.node_type, info.num_ports, info.local_port_num, info.node_guid) == (2, 20, 3, 0xABC)
    assert bench.smp(1, madwire.METHOD_GET, smp.NODE_DESCRIPTION).data.startswith(b"vhca switch\0")
    assert bench.smp(1, madwire.METHOD_GET, smp.GUID_INFO).data[:8] == (0xABC).to_bytes(8, "big")
    assert bench.smp(1, madwire.METHOD_GET, smp.P_KEY_TABLE, 2 << 16).data[:2] == b"\xff\xff"
    row = bytes(range(64))
    assert bench.smp(1, madwire.METHOD_SET, smp.LINEAR_FORWARDING_TABLE, 1, row).data == row
    assert bench.switch.lft[64:128] == row
    masks = smp.pack_words([0b110] + [0] * 31)
    bench.smp(1, madwire.METHOD_SET, smp.MULTICAST_FORWARDING_TABLE, 2, masks)
    answer = bench.smp(1, madwire.METHOD_SET, smp.MULTICAST_FORWARDING_TABLE, 1 << 28 | 2, smp.pack_words([1] * 32))
    assert answer.data == smp.pack_words([1] * 32)
    assert bench.switch.mft[0xC040] == 0x10006
    assert bench.smp(1, madwire.METHOD_SET, smp.VL_ARBITRATION, 1 << 16 | 2, b"\1\2").data[:2] == b"\1\2"
    about = bench.smp(1, madwire.METHOD_GET, smp.SWITCH_INFO)
    assert smp.SwitchInfo.from_bytes(about.data).port_state_change == 1
    about = bench.smp(1, madwire.METHOD_SET, smp.SWITCH_INFO, 0, about.data)
    assert smp.SwitchInfo.from_bytes(about.data).port_state_change == 0


@pytest.mark.parametrize(
    ("method", "attr", "modifier", "status"),
    [
        (1, smp.NODE_INFO, 1, 0x1C),
        (2, smp.NODE_INFO, 0, 0x0C),
        (1, smp.PORT_INFO, 5, 0x1C),
        (1, smp.LINEAR_FORWARDING_TABLE, 768, 0x1C),
        (1, smp.MULTICAST_FORWARDING_TABLE, 128, 0x1C),
        (1, smp.MULTICAST_FORWARDING_TABLE, 1 << 28, 0x1C),
        (1, smp.SL_TO_VL, 9, 0x1C),
        (1, smp.VL_ARBITRATION, 2 << 16, 0x1C),
        (1, smp.P_KEY_TABLE, 1, 0x1C),
        (1, smp.VENDOR_DIAG, 0, 0x0C),
        (1, 0x0033, 1, 0x0C),
        (0x12, smp.NODE_INFO, 0, 0x08),
        (0x3F, smp.PORT_INFO, 1, 0x08),
    ],
)
def test_agent_refuses(method: int, attr: int, modifier: int, status: int) -> None:
    assert SwitchBench().smp(1, method, attr, modifier).status == status | 0x8000


def test_port_info_moves_the_port_and_disables_it() -> None:
    bench = SwitchBench()

    def set_port(**fields: int) -> Smp:
        return bench.smp(1, 2, smp.PORT_INFO, 2, port_info(**fields).to_bytes())

    def fall() -> None:
        (change,) = bench.plugs[1].later
        bench.plugs[1].later.clear()
        change()
        bench.turns.run()

    port = bench.switch.ports[2]
    assert set_port(port_state=smp.PORT_DOWN).status == 0x8000
    assert set_port(port_state=smp.PORT_DOWN).status == 0x8000, "twice is once"
    fall()
    assert bench.plugs[1].changes == [True, False, True]
    assert port.state == smp.PORT_INIT
    assert set_port(port_state=smp.PORT_ACTIVE).status == 0x801C
    assert set_port(port_state=smp.PORT_ARMED, neighbor_mtu=3).status == 0x8000
    assert port.mtu_bytes == 1024
    assert set_port(port_physical_state=smp.PHYS_POLLING).status == 0x8000, "a link that is up trains again"
    fall()
    assert bench.plugs[1].changes[-2:] == [False, True]
    answer = smp.PortInfo.from_bytes(set_port(port_physical_state=smp.PHYS_DISABLED).data)
    assert (answer.port_state, answer.port_physical_state) == (smp.PORT_DOWN, smp.PHYS_DISABLED)
    assert set_port(port_state=smp.PORT_ARMED).status == 0x801C
    fall()
    assert bench.plugs[1].changes[-1] is False
    assert (port.state, port.info.port_physical_state) == (smp.PORT_DOWN, smp.PHYS_DISABLED)
    assert bench.send(1, smp_packet(_two_hops(2), 0xFFFF, 0xFFFF)) == []
    assert set_port(port_state=smp.PORT_DOWN).status == 0x8000
    fall()
    assert port.info.port_physical_state == smp.PHYS_DISABLED, "down does not enable"
    set_port(port_physical_state=smp.PHYS_POLLING)
    fall()
    assert bench.plugs[1].changes[-1] is True
    assert port.state == smp.PORT_INIT


def test_port_info_knows_extended_speeds_and_settings_that_it_has() -> None:
    bench = SwitchBench()

    def set_port(modifier: int, **fields: int) -> Smp:
        return bench.smp(1, 2, smp.PORT_INFO, modifier, port_info(**fields).to_bytes())

    assert set_port(0x8000_0002, link_speed_ext_enabled=smp.SPEED_EXT_FDR).status == 0x8000
    assert bench.switch.ports[2].info.link_speed_ext_enabled == smp.SPEED_EXT_FDR
    assert set_port(2, link_speed_ext_enabled=smp.SPEED_EXT_EDR).status == 0x8000
    assert bench.switch.ports[2].info.link_speed_ext_enabled == smp.SPEED_EXT_FDR
    assert set_port(2, link_width_enabled=smp.WIDTH_4X, link_speed_enabled=smp.SPEED_QDR).status == 0x8000
    info = bench.switch.ports[2].info
    assert (info.link_width_enabled, info.link_speed_enabled) == (smp.WIDTH_4X, smp.SPEED_QDR)
    for wrong in ({"link_width_enabled": 8}, {"link_speed_enabled": 8}, {"link_speed_ext_enabled": 8}):
        assert set_port(0x8000_0002, **wrong).status == 0x801C
    assert set_port(0x8000_0005).status == 0x801C
    assert set_port(0x8000_0000, lid=1).status == 0x8000, "the management port, as for any number"


def test_the_vendors_extended_port_info_of_every_port() -> None:
    bench = SwitchBench()

    def ask(method: int, port: int, data: smp.MlnxExtPortInfo | None = None) -> tuple[int, bytes]:
        answer = bench.smp(1, method, smp.MLNX_EXT_PORT_INFO, port, b"" if data is None else data.to_bytes())
        return answer.status & 0x7FFF, answer.data[3:16:4]

    off, on = smp.MlnxExtPortInfo(state_change_enable=1), smp.MlnxExtPortInfo(state_change_enable=1)
    on.link_speed_enabled = 1
    assert [ask(1, port) for port in range(1, 5)] == [(0, b"\0\1\1\0")] * 4
    assert ask(1, 0) == (0, bytes(4)), "the management port has no link"
    assert ask(2, 2, off) == (0, b"\0\1\0\0")
    assert [ask(1, port)[1][2] for port in range(1, 5)] == [1, 0, 1, 1]
    assert ask(2, 255, on) == (0, b"\0\1\1\0")
    assert [ask(1, port)[1][2] for port in range(1, 5)] == [1, 1, 1, 1]
    refused = [
        ask(1, 5),
        ask(1, 255),
        ask(2, 0, off),
        ask(2, 5, off),
        ask(2, 2, smp.MlnxExtPortInfo(link_speed_enabled=2)),
    ]
    assert {status for status, _ in refused} == {0x1C}


def _two_hops(port: int, pointer: int = 1, count: int = 2) -> bytes:
    smp_view = Smp.from_bytes(smp_request(1, smp.NODE_INFO, directed=True))
    smp_view.hop_pointer, smp_view.hop_count = pointer, count
    smp_view.initial_path = bytes((0, 9, port)) + bytes(61)
    return smp_view.to_bytes()


def test_directed_route_walks_out_and_back() -> None:
    bench = SwitchBench()
    assert bench.send(1, smp_packet(_two_hops(3), 0xFFFF, 0xFFFF)) == [3]
    there = Smp.from_bytes(bench.plugs[2].inbox[0].payload)
    assert (there.hop_pointer, there.return_path[1]) == (2, 1)
    there.status, there.method, there.hop_pointer = 0x8000, 0x81, 2
    there.return_path = bytes((0, 1, 1)) + bytes(61)
    assert bench.send(3, smp_packet(there.to_bytes(), 0xFFFF, 0xFFFF)) == [1]
    assert Smp.from_bytes(bench.plugs[0].inbox[0].payload).hop_pointer == 1


@pytest.mark.parametrize(
    "mad", [_two_hops(9), _two_hops(0), _two_hops(2, pointer=0), _two_hops(2, pointer=3), _two_hops(2, 1, 64)]
)
def test_paths_to_nowhere_are_counted(mad: bytes) -> None:
    bench = SwitchBench()
    assert bench.send(1, smp_packet(mad, 0xFFFF, 0xFFFF)) == []
    assert bench.switch.dropped() == {Drop.BAD_PATH: 1}


def test_lid_routed_smps_reach_agent_manager_and_others() -> None:
    bench = SwitchBench()
    bench.switch.ports[0].info.lid = 1
    bench.switch.lft[1] = 0
    assert bench.send(1, smp_packet(smp_request(1, smp.NODE_INFO), 1, 11)) == [1]
    assert bench.plugs[0].inbox[-1].route.dlid == 11
    assert bench.send(1, smp_packet(smp_request(1, smp.NODE_INFO), 13, 11)) == [3]
    bench.send(1, smp_packet(smp_request(0x81, smp.NODE_INFO), 1, 11))
    bench.send(1, smp_packet(smp_request(madwire.METHOD_TRAP, 2), 1, 11))
    assert len(bench.managed) == 2
    bench.switch.management = None
    bench.send(1, smp_packet(smp_request(0x81, smp.NODE_INFO), 1, 11))
    assert bench.switch.dropped() == {Drop.NO_MANAGER: 1}


def test_mkey_of_the_switch() -> None:
    bench = SwitchBench()
    zero = bench.switch.ports[0].info
    zero.mkey = 7
    packet = smp_packet(smp_request(2, smp.SWITCH_INFO, directed=True), 0xFFFF, 0xFFFF)
    assert bench.send(1, packet) == []
    assert zero.mkey_violations == 1
    assert bench.switch.dropped() == {Drop.BAD_MKEY: 1}


def test_a_full_or_impossible_switch() -> None:
    with pytest.raises(ValueError, match="1 to 254"):
        Switch(Turns().call_soon, 1, 255)
    with pytest.raises(LookupError, match="taken"):
        SwitchBench().switch.free_port()


@settings(max_examples=60)
@given(st.lists(packets(), max_size=5), st.binary(min_size=20, max_size=256), st.booleans(), st.integers(0, 255))
def test_any_packet_is_survived(many: list[Packet], mad: bytes, directed: bool, method: int) -> None:
    bench = Bench(1)
    bench.run()
    card = bench.cards[0]
    for packet in many:
        card.port.send(packet)
    head = bytes((1, 0x81 if directed else 1, 1, method))
    smp_mad = (head + mad[4:]).ljust(256, b"\0")
    for dlid in (0xFFFF, 1):
        card.port.send(smp_packet(smp_mad, dlid, card.lid))
    card.port.send(card.data(1, (b"\1\3\2" + mad[3:]).ljust(256, b"\0"), dest_qp=1, qkey=madwire.QP1_QKEY))
    bench.run()


@pytest.mark.parametrize("dlid", [12, 0xC001])
def test_what_leaves_by_a_full_cable_waits_where_it_arrived(dlid: int) -> None:
    bench = SwitchBench()
    bench.switch.mft[0xC001] = 1 << 2 | 1 << 3
    bench.plugs[1].full = True
    big = data(12, payload=bytes(FULL_BYTES + 1))
    bench.plugs[2].link.a.send(big)
    bench.plugs[0].link.a.send(data(dlid))
    bench.plugs[0].link.a.send(data(14))
    for _ in range(20):
        bench.turns.one()
    # Port 2 has no room: the packet waits on the cable of port 1, and so does what is behind it.
    assert [len(plug.inbox) for plug in bench.plugs] == [0, 0, 0, 0]
    assert bench.send_nothing_but(bench.plugs[3].link.a, data(11)) == [1]
    bench.plugs[1].full = False
    bench.turns.run()
    assert [item.route.dlid for item in bench.plugs[1].inbox] == [12, dlid]
    assert [item.route.dlid for item in bench.plugs[3].inbox] == [14]
    assert not bench.switch.dropped()
