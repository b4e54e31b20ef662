"""Device life cycle: enable, interface version, pages, capabilities, init and teardown of the HCA."""

from firmware.commands.registry import Command, command, refuse
from firmware.model.hca import Hca
from vhca.layout import Layout
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status

CAP_BLOCK_BYTES = 4096

# Command interface versions this firmware speaks, as a bit mask: ISSI 0 and 1.
SUPPORTED_ISSI = 0b11

# TEARDOWN_HCA profiles
TEARDOWN_GRACEFUL = 0


@command(Op.ENABLE_HCA, cmd.EnableHcaIn)
def enable_hca(hca: Hca, request: Command[cmd.EnableHcaIn]) -> bytes:
    """Power the function up for a driver; whatever an earlier, vanished driver left is gone."""
    if request.view.function_id or request.view.embedded_cpu_function:
        refuse(Status.BAD_PARAM, "function_id: this card has one function, number 0")
    if hca.history is not None:
        hca.history.left(hca.now_ns, "ENABLE_HCA", goodbye=False)
    hca.reset_state()
    hca.enabled = True
    return bytes(16)


@command(Op.DISABLE_HCA, cmd.DisableHcaIn)
def disable_hca(hca: Hca, request: Command[cmd.DisableHcaIn]) -> bytes:
    """Power the function down; what is left of its objects is a leak and is reported as such."""
    if request.view.function_id or request.view.embedded_cpu_function:
        refuse(Status.BAD_PARAM, "function_id: this card has one function, number 0")
    hca.report_leaks("DISABLE_HCA")
    hca.reset_state()
    return bytes(16)


@command(Op.QUERY_ISSI, cmd.BareIn, cmd.QueryIssiOut.SIZE)
def query_issi(hca: Hca, request: Command[cmd.BareIn]) -> Layout:
    """Which interface versions exist and which one is in force."""
    out = cmd.QueryIssiOut()
    out.current_issi = hca.issi
    out.supported_issi_dw0 = SUPPORTED_ISSI
    return out


@command(Op.SET_ISSI, cmd.SetIssiIn)
def set_issi(hca: Hca, request: Command[cmd.SetIssiIn]) -> bytes:
    """Choose an interface version."""
    version = request.view.current_issi
    if version > 31 or not SUPPORTED_ISSI >> version & 1:
        refuse(Status.BAD_PARAM, "current_issi: not one of the supported interface versions")
    hca.issi = version
    return bytes(16)


@command(Op.QUERY_PAGES, cmd.QueryPagesIn, cmd.QueryPagesOut.SIZE)
def query_pages(hca: Hca, request: Command[cmd.QueryPagesIn]) -> Layout:
    """This card has memory of its own: it asks the host for no pages."""
    if request.op_mod not in (1, 2, 3):
        refuse(Status.BAD_PARAM, "op_mod: 1 boot, 2 init, 3 regular pages")
    return cmd.QueryPagesOut()


@command(Op.MANAGE_PAGES, cmd.ManagePagesIn)
def manage_pages(hca: Hca, request: Command[cmd.ManagePagesIn]) -> Layout:
    """Page handling with a card that asks for none: it takes none and has none to give back."""
    out = cmd.ManagePagesOut()
    if request.op_mod == 1 and request.view.input_num_entries:
        refuse(Status.BAD_PARAM, "op_mod 1: this device did not ask for pages")
    if request.op_mod not in (0, 1, 2):
        refuse(Status.BAD_PARAM, "op_mod: 0 cannot give, 1 give, 2 take back")
    return out


# Users ask for as much of a capability block as their headers know.
@command(Op.QUERY_HCA_CAP, cmd.QueryHcaCapIn, 16)
def query_hca_cap(hca: Hca, request: Command[cmd.QueryHcaCapIn]) -> bytes:
    """Capability group `op_mod >> 1`; bit 0 of op_mod asks for the values in force, else for the possible ones."""
    if request.view.function_id or request.view.other_function:
        refuse(Status.BAD_PARAM, "function_id: this card has one function, number 0")
    block = hca.capabilities.query(request.op_mod >> 1, current=bool(request.op_mod & 1))
    if block is None:
        refuse(Status.BAD_PARAM, "op_mod: no such capability group")
    return bytes(16) + block


@command(Op.SET_HCA_CAP, cmd.SetHcaCapIn)
def set_hca_cap(hca: Hca, request: Command[cmd.SetHcaCapIn]) -> bytes:
    """The driver's choice among the possible capabilities, before INIT_HCA."""
    if hca.initialized:
        refuse(Status.BAD_SYS_STATE, "SET_HCA_CAP after INIT_HCA")
    reason = hca.capabilities.set(request.op_mod >> 1, request.data[16 : 16 + CAP_BLOCK_BYTES])
    if reason:
        refuse(Status.BAD_PARAM, reason)
    return bytes(16)


@command(Op.INIT_HCA, cmd.InitHcaIn, in_size=0x10)
def init_hca(hca: Hca, request: Command[cmd.InitHcaIn]) -> bytes:
    """Objects may be created from here on."""
    if not hca.enabled:
        refuse(Status.BAD_SYS_STATE, "INIT_HCA before ENABLE_HCA")
    if hca.initialized:
        refuse(Status.BAD_SYS_STATE, "INIT_HCA twice without TEARDOWN_HCA")
    hca.initialized = True
    return bytes(16)


@command(Op.TEARDOWN_HCA, cmd.TeardownHcaIn)
def teardown_hca(hca: Hca, request: Command[cmd.TeardownHcaIn]) -> bytes:
    """Graceful teardown; the fast profiles are not advertised."""
    if request.view.profile != TEARDOWN_GRACEFUL:
        refuse(Status.BAD_PARAM, "profile: only the graceful teardown (0) is advertised")
    hca.report_leaks("TEARDOWN_HCA")
    hca.clear()
    hca.initialized = False
    return bytes(16)


@command(Op.QUERY_ADAPTER, cmd.BareIn, 16 + cmd.QueryAdapterParamBlock.SIZE)
def query_adapter(hca: Hca, request: Command[cmd.BareIn]) -> bytes:
    """Board id and vendor."""
    block = cmd.QueryAdapterParamBlock()
    block.ieee_vendor_id = hca.info.vendor_id
    block.vsd_contd_psid = hca.info.board_id.encode()[:15].ljust(16, b"\0")
    return bytes(16) + block.to_bytes()


@command(Op.NOP, cmd.BareIn)
def nop(hca: Hca, request: Command[cmd.BareIn]) -> bytes:
    """Does nothing, successfully."""
    return bytes(16)


@command(Op.SET_DRIVER_VERSION, cmd.SetDriverVersionIn)
def set_driver_version(hca: Hca, request: Command[cmd.SetDriverVersionIn]) -> bytes:
    """The driver's name and version, for the log."""
    text = request.view.driver_version.split(b"\0")[0].decode("ascii", "replace")
    # It goes to a log that people read: no line breaks or escape sequences of the guest's choice.
    hca.note("driver", version="".join(char if char.isprintable() else "?" for char in text))
    return bytes(16)


@command(Op.QUERY_SPECIAL_CONTEXTS, cmd.BareIn, cmd.QuerySpecialContextsOut.SIZE)
def query_special_contexts(hca: Hca, request: Command[cmd.BareIn]) -> Layout:
    """Reserved keys of the device."""
    out = cmd.QuerySpecialContextsOut()
    out.null_mkey = hca.null_mkey
    out.terminate_scatter_list_mkey = 0x100
    return out
