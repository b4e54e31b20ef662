"""One tenant leaves, the next gets the same card: nothing of the first is in it."""

import pytest

from tests.unit.fabric.bench import Bench
from tests.unit.isolation.machines import Machine
from vhca.fabric.counters import Drop
from vhca.wire import mad as m
from vhca.wire import perf
from vhca.wire import smp as w
from vhca.wire.connectx import cmd, registers
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.registers import RegisterId
from vhca.wire.mad import METHOD_GET, METHOD_SET, PerfMad
from vhca.wire.packet import SEND, UD, Packet, Route


@pytest.fixture
def pair() -> tuple[Machine, Machine]:
    bench = Bench(0)
    bench.run()
    machines = Machine(bench), Machine(bench)
    assert bench.fabric.active()
    return machines


def register(machine: Machine, number: int, data: bytes) -> None:
    header = cmd.AccessRegisterIn(register_id=number)
    machine.run(Op.ACCESS_REG, header, data, out_size=16 + len(data), op_mod=0)


def name_and_capabilities(machine: Machine) -> None:
    register(machine, RegisterId.NODE_DESC, b"\x1b[31mowned by tenant A".ljust(64, b"\0"))
    pcap = registers.PcapReg(
        local_port=1, port_capability_mask=(w.CAP_IS_SM | w.CAP_TRAP).to_bytes(4, "big") + bytes(12)
    )
    register(machine, RegisterId.PCAP, pcap.to_bytes())


def leave_traces(machine: Machine) -> None:
    name_and_capabilities(machine)
    assert machine.local(METHOD_SET, w.P_KEY_TABLE, 0, b"\xff\xff\x81\x23".ljust(64, b"\0")).status == 0
    assert machine.local(METHOD_SET, w.GUID_INFO, 0, b"\x77" * 16).status == 0
    assert machine.local(METHOD_SET, w.SL_TO_VL, 0, b"\0" * 8).status == 0
    machine.set_port_info(lmc=3, mkey=0x666, mkey_protect_bits=3, sm_lid=7)


def identity(machine: Machine) -> tuple[object, ...]:
    info = machine.port_info()
    # What the manager gave, and what moves by itself
    info.mkey = info.mkey_violations = info.client_reregister = 0
    return (
        info,
        machine.local(METHOD_GET, w.P_KEY_TABLE).data,
        machine.local(METHOD_GET, w.GUID_INFO).data,
        machine.local(METHOD_GET, w.SL_TO_VL).data,
        machine.local(METHOD_GET, w.NODE_DESCRIPTION).data,
    )


def counters(machine: Machine) -> perf.PortCountersExtended:
    request = PerfMad(base_version=1, mgmt_class=m.CLASS_PERF, class_version=1, method=METHOD_GET)
    request.attr_id, request.data = perf.PORT_COUNTERS_EXTENDED, b"\0\1".ljust(192, b"\0")
    view = cmd.MadIfcIn(port=1, mad=request.to_bytes())
    out = machine.run(Op.MAD_IFC, view, out_size=cmd.MadIfcOut.SIZE, op_mod=3)
    answer = PerfMad.from_bytes(cmd.MadIfcOut.from_bytes(out).response_mad_packet)
    return perf.PortCountersExtended.from_bytes(answer.data)


def test_the_next_machine_finds_a_card_as_from_the_shop(pair: tuple[Machine, Machine]) -> None:
    machine, _ = pair
    fresh = identity(machine)
    leave_traces(machine)
    assert identity(machine) != fresh
    machine.pass_time(0.2)
    machine.lose_power()
    machine.get_power()
    machine.pass_time(1)
    assert machine.bench.fabric.active(), "locked out by a key that nobody knows"
    assert identity(machine) == fresh


def test_counters_begin_at_nothing_with_the_next_machine(pair: tuple[Machine, Machine]) -> None:
    machine, other = pair
    for _ in range(1000):
        machine.port.receive(Packet(Route(machine.lid, other.lid), UD, SEND, 0x100, 1, b"data", mtu=256))
    machine.bench.run()
    assert counters(machine).rcv_pkts > 1000
    machine.lose_power()
    machine.get_power()
    after = counters(machine)
    assert after.rcv_pkts < 50, "the SMPs of the sweep"


@pytest.mark.parametrize("reason", ["device", "flr", "software"])
def test_a_reset_forgets_what_the_host_wrote(pair: tuple[Machine, Machine], reason: str) -> None:
    machine, _ = pair
    fresh = identity(machine)
    leave_traces(machine)
    machine.reset(reason)
    machine.pass_time(4)
    assert machine.bench.fabric.active()
    assert identity(machine) == fresh


@pytest.mark.parametrize("reason", ["device"])
def test_a_reset_of_an_honest_machine_keeps_its_port(pair: tuple[Machine, Machine], reason: str) -> None:
    machine, _ = pair
    downs = machine.port.switch_port.counters.link_downed
    machine.reset(reason)
    assert machine.port.switch_port.counters.link_downed == downs
    assert machine.bench.fabric.active()


def test_a_hosts_own_lid_lets_it_send_for_nobody(pair: tuple[Machine, Machine]) -> None:
    """Root takes the victim's LID for its own port; the switch takes nothing with it, the manager takes it back."""
    attacker, victim = pair
    stolen, mine = victim.lid, attacker.lid
    attacker.set_port_info(lid=stolen)
    attacker.port.send(Packet(Route(1, attacker.lid), UD, SEND, 1, 1, bytes(256), mtu=256, qkey=m.QP1_QKEY, src_qp=1))
    attacker.bench.run()
    assert attacker.port.switch_port.dropped[Drop.BAD_SLID] == 1
    assert victim.bench.fabric.active()
    attacker.pass_time(11)
    assert (attacker.lid, victim.lid) == (mine, stolen)


def test_a_hosts_own_pkeys_are_set_back(pair: tuple[Machine, Machine]) -> None:
    machine, _ = pair
    before = machine.local(METHOD_GET, w.P_KEY_TABLE).data
    machine.local(METHOD_SET, w.P_KEY_TABLE, 0, b"\x81\x23" * 16)
    machine.pass_time(11)
    assert machine.local(METHOD_GET, w.P_KEY_TABLE).data == before
    assert machine.bench.fabric.counters()["sm.changed_pkeys"] == 1


@pytest.mark.parametrize("reason", ["device", "flr", "software"])
def test_a_reset_forgets_name_and_capabilities_of_a_driver(pair: tuple[Machine, Machine], reason: str) -> None:
    machine, _ = pair
    fresh = identity(machine)
    name_and_capabilities(machine)
    assert identity(machine) != fresh
    machine.reset(reason)
    machine.pass_time(4)
    assert identity(machine) == fresh
