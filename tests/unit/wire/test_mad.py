"""Management attributes against the tables of the book, by a second declaration in another library (construct)."""

import construct as c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vhca.layout import Layout
from vhca.wire import mad, notices, perf, sa, smp, vendor

ALL: list[type[Layout]] = [
    mad.MadHeader,
    mad.Smp,
    mad.SaMad,
    mad.PerfMad,
    mad.ClassPortInfo,
    mad.Notice,
    mad.InformInfo,
    smp.NodeInfo,
    smp.SwitchInfo,
    smp.PortInfo,
    smp.SmInfo,
    smp.MlnxExtPortInfo,
    notices.LinkStateDetails,
    notices.PortErrorDetails,
    notices.LocalChangeDetails,
    notices.MKeyDetails,
    notices.KeyDetails,
    notices.SwitchKeyDetails,
    perf.PortCounters,
    perf.PortCountersExtended,
    perf.PortRcvErrorDetails,
    perf.PortXmitDiscardDetails,
    perf.PairOfCounters,
    perf.LaneWords,
    perf.LaneHalves,
    perf.LaneErrors,
    perf.PortExtSpeedsCounters,
    perf.PortSamplesControl,
    perf.PortSamplesResult,
    perf.PortSamplesResultExtended,
    vendor.VendorMad,
    vendor.GeneralInfo,
    *sa.COMPONENTS,
    sa.PathRecord,
]

NODE_INFO = c.Struct(
    "base_version" / c.Int8ub,
    "class_version" / c.Int8ub,
    "node_type" / c.Int8ub,
    "num_ports" / c.Int8ub,
    "system_image_guid" / c.Int64ub,
    "node_guid" / c.Int64ub,
    "port_guid" / c.Int64ub,
    "partition_cap" / c.Int16ub,
    "device_id" / c.Int16ub,
    "revision" / c.Int32ub,
    "local_port_num" / c.Int8ub,
    "vendor_id" / c.Int24ub,
)
MC_MEMBER = c.BitStruct(
    "mgid" / c.Bytewise(c.Bytes(16)),
    "port_gid" / c.Bytewise(c.Bytes(16)),
    "qkey" / c.BitsInteger(32),
    "mlid" / c.BitsInteger(16),
    "mtu_selector" / c.BitsInteger(2),
    "mtu" / c.BitsInteger(6),
    "tclass" / c.BitsInteger(8),
    "pkey" / c.BitsInteger(16),
    "rate_selector" / c.BitsInteger(2),
    "rate" / c.BitsInteger(6),
    "life_time_selector" / c.BitsInteger(2),
    "life_time" / c.BitsInteger(6),
    "sl" / c.BitsInteger(4),
    "flow_label" / c.BitsInteger(20),
    "hop_limit" / c.BitsInteger(8),
    "scope" / c.BitsInteger(4),
    "join_state" / c.BitsInteger(4),
    "proxy_join" / c.BitsInteger(1),
    c.Padding(23),
)
PATH = c.BitStruct(
    "service_id" / c.BitsInteger(64),
    "dgid" / c.Bytewise(c.Bytes(16)),
    "sgid" / c.Bytewise(c.Bytes(16)),
    "dlid" / c.BitsInteger(16),
    "slid" / c.BitsInteger(16),
    "raw_traffic" / c.BitsInteger(1),
    c.Padding(3),
    "flow_label" / c.BitsInteger(20),
    "hop_limit" / c.BitsInteger(8),
    "tclass" / c.BitsInteger(8),
    "reversible" / c.BitsInteger(1),
    "numb_path" / c.BitsInteger(7),
    "pkey" / c.BitsInteger(16),
    "qos_class" / c.BitsInteger(12),
    "sl" / c.BitsInteger(4),
    "mtu_selector" / c.BitsInteger(2),
    "mtu" / c.BitsInteger(6),
    "rate_selector" / c.BitsInteger(2),
    "rate" / c.BitsInteger(6),
    "life_time_selector" / c.BitsInteger(2),
    "life_time" / c.BitsInteger(6),
    "preference" / c.BitsInteger(8),
    c.Padding(48),
)
SWITCH_INFO = c.BitStruct(
    "linear_fdb_cap" / c.BitsInteger(16),
    "random_fdb_cap" / c.BitsInteger(16),
    "multicast_fdb_cap" / c.BitsInteger(16),
    "linear_fdb_top" / c.BitsInteger(16),
    "default_port" / c.BitsInteger(8),
    "default_multicast_primary_port" / c.BitsInteger(8),
    "default_multicast_not_primary_port" / c.BitsInteger(8),
    "life_time_value" / c.BitsInteger(5),
    "port_state_change" / c.BitsInteger(1),
    "optimized_sl_to_vl" / c.BitsInteger(2),
    "lids_per_port" / c.BitsInteger(16),
    "partition_enforcement_cap" / c.BitsInteger(16),
    "inbound_enforcement_cap" / c.BitsInteger(1),
    "outbound_enforcement_cap" / c.BitsInteger(1),
    "filter_raw_inbound_cap" / c.BitsInteger(1),
    "filter_raw_outbound_cap" / c.BitsInteger(1),
    "enhanced_port0" / c.BitsInteger(1),
    c.Padding(3 + 8),
    "multicast_fdb_top" / c.BitsInteger(16),
)


@pytest.mark.parametrize("layout", ALL, ids=lambda layout: layout.__name__)
@given(data=st.data())
def test_bytes_survive_every_layout(layout: type[Layout], data: st.DataObject) -> None:
    raw = data.draw(st.binary(min_size=layout.SIZE, max_size=layout.SIZE))
    view = layout.from_bytes(raw)
    again = layout(**{field.name: getattr(view, field.name) for field in layout.fields()})
    for field in layout.fields():
        assert getattr(again, field.name) == getattr(view, field.name)


@pytest.mark.parametrize(
    ("layout", "oracle"),
    [
        (smp.NodeInfo, NODE_INFO),
        (smp.SwitchInfo, SWITCH_INFO),
        (sa.McMemberRecord, MC_MEMBER),
        (sa.PathRecord, PATH),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@given(data=st.data())
def test_layouts_agree_with_construct(layout: type[Layout], oracle: c.Construct, data: st.DataObject) -> None:
    raw = data.draw(st.binary(min_size=layout.SIZE, max_size=layout.SIZE))
    view = layout.from_bytes(raw)
    parsed = oracle.parse(raw)
    for field in layout.fields():
        assert getattr(view, field.name) == parsed[field.name], field.name


def test_sizes_of_the_book() -> None:
    sizes = {layout.__name__: layout.SIZE for layout in ALL}
    assert sizes["PortInfo"] == 64
    assert sizes["ClassPortInfo"] == 72
    assert sizes["InformInfo"] == 36
    assert sizes["NodeRecord"] == 108
    assert sizes["ServiceRecord"] == 176
    strides = {record.__name__: sa.stride_bytes(record) // 8 for record in sa.COMPONENTS}
    assert (strides["NodeRecord"], strides["PortInfoRecord"], strides["McMemberRecord"]) == (14, 9, 7)


def test_components_name_fields() -> None:
    for layout, components in sa.COMPONENTS.items():
        view = layout()
        for _, name in components:
            value: object = view
            for part in name.split("."):
                value = getattr(value, part)


def test_tables() -> None:
    assert smp.unpack_words(smp.pack_words([1, 0xFFFF])) == [1, 0xFFFF]
    assert smp.unpack_guids(smp.pack_guids([7, 2**63])) == [7, 2**63]
    assert [smp.mtu_bytes(code) for code in range(1, 6)] == [256, 512, 1024, 2048, 4096]
    assert mad.gid(0xFE80 << 48, 1) == bytes.fromhex("fe800000000000000000000000000001")
