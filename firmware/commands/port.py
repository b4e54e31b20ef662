"""Ports: MADs of the host's management interface, virtual port contexts, counters, access registers."""

from typing import Final, TypeVar

from firmware.commands.registry import Command, command, refuse
from firmware.model.counters import Count
from firmware.model.hca import Hca
from firmware.model.port import Port
from vhca.layout import Layout
from vhca.management.link_speed import WIDTHS
from vhca.wire import smp
from vhca.wire.connectx import cmd, registers
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.registers import AccessRegisterMethod, HostEndianness, NodeDescReg, RegisterId
from vhca.wire.mad import METHOD_TRAP_REPRESS

L = TypeVar("L", bound=Layout)

IGNORE_MKEY = 1
ALL_PKEYS: Final = 0xFFFF
WRITE_REGISTER: Final = int(AccessRegisterMethod.WRITE)
READ_REGISTER: Final = int(AccessRegisterMethod.READ)
# HOST_ENDIANNESS.he
LITTLE_ENDIAN: Final = 0
BIG_ENDIAN: Final = 0x80
# PAOS.admin_status and oper_status
# Speeds by their bits in PTYS; its bits of widths are 1X, 2X, 4X, 8X, 12X.
_PTYS_SPEEDS: Final = ("SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR")
PAOS_UP: Final = 1
PAOS_DOWN: Final = 2


def find_port(hca: Hca, number: int) -> Port:
    """The port with this number (0 stands for the only one), or refuse."""
    port = hca.ports.get(number or 1)
    if port is None:
        refuse(Status.BAD_PARAM, "port: this card has no such port")
    return port


@command(Op.MAD_IFC, cmd.MadIfcIn, cmd.MadIfcOut.SIZE)
def mad_ifc(hca: Hca, request: Command[cmd.MadIfcIn]) -> Layout:
    """Hand a MAD of the host to the port's agents."""
    view = request.view
    if view.plane_index:
        refuse(Status.BAD_PARAM, "plane_index: this card has no planes")
    port = find_port(hca, view.port)
    reply = hca.chip.management.local_mad(port.number, view.mad, ignore_mkey=bool(request.op_mod & IGNORE_MKEY))
    if reply is None and view.mad[3] == METHOD_TRAP_REPRESS:
        # Taken; there is no response to it, and the driver looks for none.
        reply = view.mad
    if reply is None:
        refuse(Status.BAD_PKT, "mad: discarded by the agent")
    out = cmd.MadIfcOut()
    out.response_mad_packet = reply
    return out


@command(Op.QUERY_HCA_VPORT_CONTEXT, cmd.QueryHcaVportContextIn, cmd.QueryHcaVportContextOut.SIZE)
def query_hca_vport_context(hca: Hca, request: Command[cmd.QueryHcaVportContextIn]) -> Layout:
    """State, identity and addresses of a port."""
    view = request.view
    if view.other_vport:
        refuse(Status.BAD_PARAM, "other_vport: this card has one function")
    port = find_port(hca, view.port_num)
    out = cmd.QueryHcaVportContextOut()
    context = out.hca_vport_context
    context.has_smi = 1
    context.port_physical_state = port.physical_state
    context.vport_state = port.logical_state
    context.port_state = port.logical_state
    context.system_image_guid = hca.info.system_image_guid
    context.port_guid = port.guid
    context.node_guid = hca.info.node_guid
    context.cap_mask1 = port.capability_mask
    context.lid = port.lid
    context.lmc = port.lmc
    context.subnet_timeout = port.subnet_timeout
    context.sm_lid = port.sm_lid
    context.sm_sl = port.sm_sl
    return out


@command(Op.QUERY_HCA_VPORT_GID, cmd.QueryHcaVportGidIn, cmd.QueryHcaVportGidOut.SIZE)
def query_hca_vport_gid(hca: Hca, request: Command[cmd.QueryHcaVportGidIn]) -> bytes:
    """One entry of the GID table."""
    port = find_port(hca, request.view.port_num)
    gids = port.gids
    index = request.view.gid_index
    if index >= len(gids):
        refuse(Status.IX_ERR, "gid_index: behind the table's end")
    out = cmd.QueryHcaVportGidOut()
    out.gids_num = 1
    return out.to_bytes() + gids[index]


@command(Op.QUERY_HCA_VPORT_PKEY, cmd.QueryHcaVportPkeyIn, cmd.QueryHcaVportPkeyOut.SIZE)
def query_hca_vport_pkey(hca: Hca, request: Command[cmd.QueryHcaVportPkeyIn]) -> bytes:
    """One entry of the P_Key table, or all."""
    pkeys = find_port(hca, request.view.port_num).pkeys
    index = request.view.pkey_index
    if index != ALL_PKEYS:
        if index >= len(pkeys):
            refuse(Status.IX_ERR, "pkey_index: behind the table's end")
        pkeys = pkeys[index : index + 1]
    return cmd.QueryHcaVportPkeyOut().to_bytes() + b"".join(pkey.to_bytes(4, "big") for pkey in pkeys)


@command(Op.QUERY_VPORT_STATE, cmd.QueryVportStateIn, cmd.QueryVportStateOut.SIZE)
def query_vport_state(hca: Hca, request: Command[cmd.QueryVportStateIn]) -> Layout:
    """Whether the port is up, in the terms of an Ethernet function."""
    port = find_port(hca, 1)
    out = cmd.QueryVportStateOut()
    out.admin_state = 1
    out.state = 1 if port.logical_state == 4 else 0
    return out


@command(Op.QUERY_LAG, cmd.BareIn, 16)
def query_lag(hca: Hca, request: Command[cmd.BareIn]) -> bytes:
    """Link aggregation: this card's only port is in none, so every field is 0."""
    return bytes(16)


@command(Op.ACCESS_REG, cmd.AccessRegisterIn)
def access_register(hca: Hca, request: Command[cmd.AccessRegisterIn]) -> bytes:
    """Read (op_mod 1) or write (op_mod 0) a register of the port or device."""
    if request.op_mod not in (WRITE_REGISTER, READ_REGISTER):
        refuse(Status.BAD_PARAM, "op_mod: 0 writes, 1 reads")
    register = request.view.register_id
    handler = _REGISTERS.get((register, request.op_mod))
    if handler is None:
        hca.note("register_unknown", register=f"{register:#06x}")
        hca.count[Count.REGISTER_UNKNOWN] += 1
        refuse(Status.BAD_PARAM, "register_id: not implemented by this device in this direction")
    return bytes(16) + handler(hca, request.data[16:])


def _host_endianness(hca: Hca, data: bytes) -> bytes:
    if _view(HostEndianness, data).he not in (LITTLE_ENDIAN, BIG_ENDIAN):
        refuse(Status.BAD_PARAM, "HOST_ENDIANNESS: 0 little, 0x80 big endian")
    return data


def _view(layout: type[L], data: bytes) -> L:
    if len(data) < layout.SIZE:
        refuse(Status.BAD_INP_LEN, "register data is shorter than the register")
    return layout.from_bytes(data)


def _write_pcap(hca: Hca, data: bytes) -> bytes:
    view = _view(registers.PcapReg, data)
    port = find_port(hca, view.local_port)
    mask = int.from_bytes(view.port_capability_mask[:4], "big")
    hca.chip.management.set_capability_mask(port.number, mask)
    return data


def _paos_view(hca: Hca, data: bytes) -> tuple[registers.PaosReg, Port]:
    view = registers.PaosReg.from_bytes(data.ljust(registers.PaosReg.SIZE, b"\0"))
    return view, find_port(hca, view.local_port)


def _write_paos(hca: Hca, data: bytes) -> bytes:
    view, port = _paos_view(hca, data)
    # Without "admin state enable" a write changes nothing and tells the state.
    if view.ase:
        if view.admin_status not in (PAOS_UP, PAOS_DOWN):
            refuse(Status.BAD_PARAM, "PAOS.admin_status: 1 up, 2 down")
        hca.chip.management.set_admin_state(port.number, view.admin_status == PAOS_UP)
    return _read_paos(hca, data)


def _read_paos(hca: Hca, data: bytes) -> bytes:
    view, port = _paos_view(hca, data)
    view.admin_status = PAOS_UP if port.admin_up else PAOS_DOWN
    view.oper_status = PAOS_UP if port.logical_state != smp.PORT_DOWN else PAOS_DOWN
    return view.to_bytes()


def _read_pmtu(hca: Hca, data: bytes) -> bytes:
    out = registers.PmtuReg.from_bytes(data.ljust(registers.PmtuReg.SIZE, b"\0"))
    port = find_port(hca, out.local_port)
    out.max_mtu = hca.info.mtu
    out.admin_mtu = out.oper_mtu = port.mtu
    return out.to_bytes()


def _read_ptys(hca: Hca, data: bytes) -> bytes:
    out = registers.PtysReg.from_bytes(data.ljust(registers.PtysReg.SIZE, b"\0"))
    find_port(hca, out.local_port)
    width, speed = 1 << list(WIDTHS).index(hca.info.link.width), 1 << _PTYS_SPEEDS.index(hca.info.link.speed)
    out.ib_link_width_capability = out.ib_link_width_admin = width | 1
    out.ib_link_width_oper = width
    out.ib_proto_capability = out.ib_proto_admin = 2 * speed - 1
    out.ib_proto_oper = speed
    return out.to_bytes()


def _read_pvlc(hca: Hca, data: bytes) -> bytes:
    out = registers.PvlcReg.from_bytes(data.ljust(registers.PvlcReg.SIZE, b"\0"))
    find_port(hca, out.local_port)
    out.vl_hw_cap = out.vl_admin = out.vl_operational = 4
    return out.to_bytes()


def _node_description(hca: Hca, data: bytes) -> bytes:
    hca.chip.management.set_node_description(_view(NodeDescReg, data).node_description)
    return data


def _read_node_description(hca: Hca, data: bytes) -> bytes:
    return NodeDescReg(node_description=hca.chip.management.node_description()).to_bytes()


_REGISTERS = {
    (int(RegisterId.HOST_ENDIANNESS), WRITE_REGISTER): _host_endianness,
    (int(RegisterId.PCAP), WRITE_REGISTER): _write_pcap,
    (int(RegisterId.PAOS), WRITE_REGISTER): _write_paos,
    (int(RegisterId.PAOS), READ_REGISTER): _read_paos,
    (int(RegisterId.PMTU), READ_REGISTER): _read_pmtu,
    (int(RegisterId.PTYS), READ_REGISTER): _read_ptys,
    (int(RegisterId.PVLC), READ_REGISTER): _read_pvlc,
    (int(RegisterId.NODE_DESC), WRITE_REGISTER): _node_description,
    (int(RegisterId.NODE_DESC), READ_REGISTER): _read_node_description,
}
