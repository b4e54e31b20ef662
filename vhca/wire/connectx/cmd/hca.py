"""Commands about the card as a whole: bring-up, capabilities, pages, registers and MADs."""

from vhca.layout import Layout, bits, raw, u32
from vhca.wire.connectx.cmd.common import CmdIn, CmdOut


class QueryHcaCapIn(CmdIn, size=0x10):
    """QUERY_HCA_CAP input; `op_mod` is the group << 1, plus 0 for maximal or 1 for current values."""

    other_function: int = bits(0x008, 31)
    ec_vf_function: int = bits(0x008, 30)
    function_id_type: int = bits(0x008, 28)
    function_id: int = bits(0x008, 15, 0)


class SetHcaCapIn(CmdIn, size=0x1010):
    """SET_HCA_CAP input; `op_mod` is the group."""

    other_function: int = bits(0x008, 31)
    ec_vf_function: int = bits(0x008, 30)
    function_id_type: int = bits(0x008, 28)
    function_id: int = bits(0x008, 15, 0)
    capability: bytes = raw(0x010, 4096)


class QueryAdapterParamBlock(Layout, size=256):
    """Board identity inside the QUERY_ADAPTER output."""

    ieee_vendor_id: int = bits(0x018, 23, 0)
    vsd_vendor_id: int = bits(0x01C, 15, 0)
    vsd: bytes = raw(0x020, 208)
    vsd_contd_psid: bytes = raw(0x0F0, 16)


class InitHcaIn(CmdIn, size=0x20):
    """INIT_HCA input."""

    sw_vhca_id: int = bits(0x00C, 29, 16)
    sw_owner_id: bytes = raw(0x010, 16)


class TeardownHcaIn(CmdIn, size=0x10):
    """TEARDOWN_HCA input."""

    profile: int = bits(0x008, 15, 0)


class EnableHcaIn(CmdIn, size=0x10):
    """ENABLE_HCA input."""

    embedded_cpu_function: int = bits(0x008, 31)
    function_id: int = bits(0x008, 15, 0)


class DisableHcaIn(CmdIn, size=0x10):
    """DISABLE_HCA input."""

    embedded_cpu_function: int = bits(0x008, 31)
    function_id: int = bits(0x008, 15, 0)


class QueryPagesIn(CmdIn, size=0x10):
    """QUERY_PAGES input."""

    embedded_cpu_function: int = bits(0x008, 31)
    function_id: int = bits(0x008, 15, 0)


class QueryPagesOut(CmdOut, size=0x10):
    """QUERY_PAGES output."""

    embedded_cpu_function: int = bits(0x008, 31)
    function_id: int = bits(0x008, 15, 0)
    num_pages: int = u32(0x00C)


class ManagePagesIn(CmdIn, size=0x10):
    """MANAGE_PAGES input; a PAS list follows."""

    embedded_cpu_function: int = bits(0x008, 31)
    function_id: int = bits(0x008, 15, 0)
    input_num_entries: int = u32(0x00C)


class ManagePagesOut(CmdOut, size=0x10):
    """MANAGE_PAGES output; a PAS list follows."""

    output_num_entries: int = u32(0x008)


class QueryIssiOut(CmdOut, size=0x70):
    """QUERY_ISSI output."""

    current_issi: int = bits(0x008, 15, 0)
    supported_issi_dw0: int = u32(0x06C)


class SetIssiIn(CmdIn, size=0x10):
    """SET_ISSI input."""

    current_issi: int = bits(0x008, 15, 0)


class SetDriverVersionIn(CmdIn, size=0x50):
    """SET_DRIVER_VERSION input."""

    driver_version: bytes = raw(0x010, 64)


class QuerySpecialContextsOut(CmdOut, size=0x20):
    """QUERY_SPECIAL_CONTEXTS output."""

    dump_fill_mkey: int = u32(0x008)
    resd_lkey: int = u32(0x00C)
    null_mkey: int = u32(0x010)
    terminate_scatter_list_mkey: int = u32(0x014)
    repeated_mkey: int = u32(0x018)


class AccessRegisterIn(CmdIn, size=0x10):
    """ACCESS_REGISTER input; register data follow."""

    register_id: int = bits(0x008, 15, 0)
    argument: int = u32(0x00C)


class MadIfcIn(CmdIn, size=0x110):
    """MAD_IFC input."""

    remote_lid: int = bits(0x008, 31, 16)
    plane_index: int = bits(0x008, 15, 8)
    port: int = bits(0x008, 7, 0)
    mad: bytes = raw(0x010, 256)


class MadIfcOut(CmdOut, size=0x110):
    """MAD_IFC output."""

    response_mad_packet: bytes = raw(0x010, 256)
