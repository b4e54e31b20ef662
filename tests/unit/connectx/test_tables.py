"""Tables of the ConnectX formats agree with each other and with the facts they rest on."""

import pytest

from firmware.commands import COMMANDS
from firmware.model.profiles import ATOMIC_CAPS, CAPS_MIN
from vhca.layout import Layout
from vhca.wire.connectx import init_segment
from vhca.wire.connectx.caps import CmdHcaCap
from vhca.wire.connectx.caps_groups import AtomicCaps
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.eqe import DATA_LAYOUTS, Eqe
from vhca.wire.connectx.mkey import Mkc
from vhca.wire.connectx.qpc import Ads, Qpc
from vhca.wire.connectx.srq import Rmpc, Wq


@pytest.mark.parametrize(
    ("layout", "caps"),
    [(CmdHcaCap, CAPS_MIN), (AtomicCaps, ATOMIC_CAPS)],
)
def test_capability_values_exist_and_fit(layout: type[Layout], caps: dict[str, int]) -> None:
    view = layout(**caps)
    assert {field.name: getattr(view, field.name) for field in layout.fields() if getattr(view, field.name)} == caps


def test_capability_positions() -> None:
    """Bit offsets in the group, for those that decide whether a driver loads at all."""
    start = {field.name: field.start for field in CmdHcaCap.fields()}
    assert start["port_type"] == 0x1B6
    assert start["num_ports"] == 0x1B8
    assert start["umr_modify_entity_size_disabled"] == 0x207
    assert start["xrc"] == 0x23C
    assert start["cqe_version"] == 0x1FC
    assert start["log_max_xrcd"] == 0x33B
    assert CmdHcaCap.SIZE == 4096


def test_commands_start_with_their_header() -> None:
    for op, entry in COMMANDS.items():
        assert [field.where() for field in entry.layout.fields() if field.name == "opcode"] == ["0x000 31:16"], op
        assert [field.where() for field in entry.layout.fields() if field.name == "op_mod"] == ["0x004 15:0"], op


@pytest.mark.parametrize(
    "op",
    [
        *(Op.CREATE_QP, Op.CREATE_CQ, Op.CREATE_EQ, Op.CREATE_MKEY, Op.CREATE_XRC_SRQ, Op.CREATE_RMP, Op.MODIFY_CQ),
    ],
)
def test_page_lists_start_behind_the_input(op: Op) -> None:
    assert COMMANDS[op].layout.SIZE == 0x110


def test_opcodes_that_bring_up_the_card_have_handlers() -> None:
    needed = [
        *(Op.ENABLE_HCA, Op.QUERY_ISSI, Op.SET_ISSI, Op.QUERY_PAGES, Op.ACCESS_REG, Op.QUERY_HCA_CAP, Op.INIT_HCA),
        *(Op.SET_HCA_CAP, Op.QUERY_ADAPTER, Op.ALLOC_UAR, Op.CREATE_EQ, Op.MAD_IFC, Op.ALLOC_XRCD, Op.ALLOC_PD),
        *(Op.QUERY_HCA_VPORT_CONTEXT, Op.CREATE_MKEY, Op.CREATE_CQ, Op.CREATE_XRC_SRQ, Op.CREATE_RMP, Op.CREATE_QP),
        *(Op.RST2INIT_QP, Op.INIT2RTR_QP, Op.RTR2RTS_QP, Op.QP_2ERR, Op.QP_2RST, Op.QUERY_QP, Op.DESTROY_QP),
        *(Op.ATTACH_TO_MCG, Op.DETACH_FROM_MCG, Op.MODIFY_RMP, Op.ARM_XRC_SRQ, Op.TEARDOWN_HCA, Op.DISABLE_HCA),
    ]
    assert not [op for op in needed if op not in COMMANDS]


def test_event_data_fill_their_place() -> None:
    size = next(field.width // 8 for field in Eqe.fields() if field.name == "event_data")
    assert {layout.SIZE for layout in DATA_LAYOUTS.values()} == {size}


def test_sizes_of_contexts() -> None:
    assert (Qpc.SIZE, Ads.SIZE, Mkc.SIZE, Wq.SIZE, Rmpc.SIZE) == (232, 44, 64, 192, 240)


def test_registers_do_not_overlap() -> None:
    end = 0
    for register in init_segment.REGISTERS:
        assert register.offset >= end, register
        assert register.writable < 1 << (8 * register.width)
        assert (register.writable == 0) == (register.access == "ro"), register
        end = register.offset + register.width
