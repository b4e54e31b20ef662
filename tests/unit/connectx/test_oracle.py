"""The same bytes, decoded by a library that we did not write from tables typed a second time."""

from typing import Any

from construct import BitsInteger, BitStruct, Bytes, Int8ub, Int16ub, Int32ub, Int64ub, Padding, Struct
from hypothesis import given
from hypothesis import strategies as st

from vhca.layout import Layout
from vhca.wire.connectx.cmd import CmdMailboxBlock, CmdQueueEntry
from vhca.wire.connectx.cqe import Cqe64, ErrCqe64
from vhca.wire.connectx.eqe import Eqe
from vhca.wire.connectx.mkey import Mkc
from vhca.wire.connectx.wqe import CtrlSegment, DatagramSegment


def b(name: str, width: int) -> Any:
    return name / BitsInteger(width)


CTRL = Struct(
    "opmod" / Int8ub,
    "wqe_index" / Int16ub,
    "opcode" / Int8ub,
    "w1" / BitStruct(b("qpn", 24), Padding(2), b("ds", 6)),
    "signature" / Int8ub,
    "dci_stream_id" / Int16ub,
    "w2" / BitStruct(b("fm", 3), Padding(1), b("ce", 2), b("se", 1), Padding(1)),
    "imm" / Int32ub,
)

AV = Struct(
    "q_key" / Int32ub,
    Padding(4),
    "w1" / BitStruct(b("ext", 1), Padding(7), b("dqpn", 24)),
    "w2" / BitStruct(b("stat_rate", 4), b("sl", 4), b("fl", 1), b("mlid", 7)),
    "rlid" / Int16ub,
    Padding(4),
    "rmac" / Bytes(6),
    "tclass" / Int8ub,
    "hop_limit" / Int8ub,
    "w3" / BitStruct(Padding(1), b("grh", 1), Padding(2), b("src_addr_index", 8), b("flow_label", 20)),
    "rgid" / Bytes(16),
)

CQE_END = (
    "send_wqe_opcode" / Int8ub,
    "w8" / BitStruct(b("qpn", 24)),
    "wqe_counter" / Int16ub,
    "signature" / Int8ub,
    "w9" / BitStruct(b("opcode", 4), b("inline_format", 2), b("se", 1), b("owner", 1)),
)

CQE = Struct(
    Padding(2),
    "wqe_id" / Int16ub,
    Padding(13),
    "ml_path" / Int8ub,
    Padding(4),
    "slid" / Int16ub,
    "w1" / BitStruct(Padding(2), b("grh", 2), b("sl", 4), b("rqpn", 24)),
    "w2" / BitStruct(Padding(5), b("l4_ok", 1), b("l3_ok", 1), b("l2_ok", 1)),
    "l4_l3_hdr_type" / Int8ub,
    "vlan_info" / Int16ub,
    "srqn_uidx" / Int32ub,
    "imm_inval_pkey" / Int32ub,
    Padding(4),
    "byte_cnt" / Int32ub,
    "timestamp" / Int64ub,
    *CQE_END,
)

ERR_CQE = Struct(
    Padding(32),
    "srqn_uidx" / Int32ub,
    Padding(16),
    "hw_error_syndrome" / Int8ub,
    "hw_syndrome_type" / Int8ub,
    "vendor_error_syndrome" / Int8ub,
    "syndrome" / Int8ub,
    *CQE_END,
)

EQE = Struct(
    Padding(1),
    "event_type" / Int8ub,
    Padding(1),
    "event_sub_type" / Int8ub,
    Padding(28),
    "event_data" / Bytes(28),
    Padding(2),
    "signature" / Int8ub,
    "w1" / BitStruct(Padding(7), b("owner", 1)),
)

ENTRY = Struct(
    "type" / Int8ub,
    Padding(3),
    "input_length" / Int32ub,
    "input_mailbox_pointer" / Int64ub,
    "command_input_inline_data" / Bytes(16),
    "command_output_inline_data" / Bytes(16),
    "output_mailbox_pointer" / Int64ub,
    "output_length" / Int32ub,
    "token" / Int8ub,
    "signature" / Int8ub,
    Padding(1),
    "w1" / BitStruct(b("status", 7), b("ownership", 1)),
)

BLOCK = Struct(
    "mailbox_data" / Bytes(512),
    Padding(48),
    "next_pointer" / Int64ub,
    "block_number" / Int32ub,
    Padding(1),
    "token" / Int8ub,
    "ctrl_signature" / Int8ub,
    "signature" / Int8ub,
)

MKC = Struct(
    "b0" / BitStruct(Padding(1), b("free", 1), Padding(1), b("access_mode_4_2", 3), Padding(2)),
    "b1" / BitStruct(Padding(5), b("relaxed_ordering_write", 1), Padding(1), b("small_fence_on_rdma_read_response", 1)),
    "b2"
    / BitStruct(
        *(b(name, 1) for name in ("umr_en", "a", "rw", "rr", "lw", "lr")),
        b("access_mode_1_0", 2),
    ),
    "b3" / BitStruct(Padding(2), b("ma_translation_mode", 2), Padding(4)),
    "w1" / BitStruct(b("qpn", 24), b("mkey_7_0", 8)),
    Padding(4),
    "w3"
    / BitStruct(
        *(b(name, 1) for name in ("length64", "bsf_en", "sync_umr")),
        Padding(2),
        b("expected_sigerr_count", 1),
        Padding(1),
        b("en_rinval", 1),
        b("pd", 24),
    ),
    "start_addr" / Int64ub,
    "len" / Int64ub,
    "bsf_octword_size" / Int32ub,
    Padding(12),
    "crossing_target_vhca_id" / Int16ub,
    Padding(2),
    "translations_octword_size" / Int32ub,
    Padding(3),
    "b59" / BitStruct(Padding(1), b("relaxed_ordering_read", 1), b("log_page_size", 6)),
    "w15"
    / BitStruct(Padding(5), b("pcie_tph_en", 1), b("pcie_tph_ph", 2), b("pcie_tph_steering_tag_index", 8), Padding(16)),
)

PAIRS: list[tuple[type[Layout], Any]] = [
    (CtrlSegment, CTRL),
    (DatagramSegment, AV),
    (Cqe64, CQE),
    (ErrCqe64, ERR_CQE),
    (Eqe, EQE),
    (CmdQueueEntry, ENTRY),
    (CmdMailboxBlock, BLOCK),
    (Mkc, MKC),
]


def flat(container: Any) -> dict[str, Any]:
    """Fields of a parsed container without the grouping into dwords."""
    result: dict[str, Any] = {}
    for key, value in container.items():
        if key == "_io":
            continue
        if isinstance(value, dict):
            result |= flat(value)
        else:
            result[key] = value
    return result


def test_the_oracle_knows_every_field() -> None:
    for layout, oracle in PAIRS:
        assert oracle.sizeof() == layout.SIZE, layout.__name__
        assert set(flat(oracle.parse(bytes(layout.SIZE)))) == {field.name for field in layout.fields()}


@given(pair=st.sampled_from(PAIRS), seed=st.binary(min_size=64, max_size=64))
def test_both_decode_the_same(pair: tuple[type[Layout], Any], seed: bytes) -> None:
    layout, oracle = pair
    data = (seed * 9)[: layout.SIZE]
    view = layout.from_bytes(data)
    assert {field.name: getattr(view, field.name) for field in layout.fields()} == flat(oracle.parse(data))
