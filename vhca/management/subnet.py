"""What subnet management agents of cards and switches have in common: whose a datagram is, what a port takes."""

from functools import cache
from typing import Final

from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.smp import MlnxExtPortInfo, PortInfo

SMP_CLASSES: Final = (madwire.CLASS_SUBN_LID, madwire.CLASS_SUBN_DR)
# How long after an order the link of a port goes down: the answer to who gave it is on its way by then.
LINK_CHANGE_NS: Final = 10_000_000

_SM_INFO: Final = smpwire.SM_INFO.to_bytes(2, "big")
_UNANSWERED: Final = (madwire.METHOD_SEND, madwire.METHOD_TRAP, madwire.METHOD_TRAP_REPRESS)


def is_smp(mad: bytes) -> bool:
    """Tell whether the bytes are one SMP of either routing."""
    return len(mad) == madwire.MAD_BYTES and mad[1] in SMP_CLASSES


def for_agent(mad: bytes) -> bool:
    """Tell whether an SMP is for a node's agent; responses, traps and questions about SMInfo are for a manager.

    Methods that nobody knows are the agent's too: it is there to say so.
    """
    method = mad[3]
    returning = mad[1] == madwire.CLASS_SUBN_DR and mad[4] & 0x80
    if returning or method & madwire.METHOD_RESPONSE or method == madwire.METHOD_TRAP:
        return False
    return mad[16:18] != _SM_INFO


def is_asked(mad: bytes) -> bool:
    """Tell whether an SMP is a question that somebody must answer, if only to say that there is no manager here."""
    returning = mad[1] == madwire.CLASS_SUBN_DR and mad[4] & 0x80
    return mad[3] in (madwire.METHOD_GET, madwire.METHOD_SET) and not returning


def is_answered(method: int) -> bool:
    """Tell whether an agent answers a request of this method at all."""
    return not method & madwire.METHOD_RESPONSE and method not in _UNANSWERED


def may_move(now: int, wanted: int) -> bool:
    """Tell whether a manager may set PortState `now` to `wanted` (7.2, 14.2.5.6)."""
    if wanted in (smpwire.PORT_NOP, smpwire.PORT_DOWN) or (wanted == now and wanted >= smpwire.PORT_ARMED):
        return True
    return (now, wanted) in (
        (smpwire.PORT_INIT, smpwire.PORT_ARMED),
        (smpwire.PORT_ARMED, smpwire.PORT_ACTIVE),
    )


def port_of(attr_mod: int) -> int:
    """The port that the attribute modifier of PortInfo names; its other bits select none (14.2.5.6)."""
    return attr_mod & smpwire.PORT_INFO_PORT


def link_settings_valid(info: PortInfo, wanted: PortInfo, attr_mod: int) -> bool:
    """Tell whether a Set(PortInfo) asks only for link widths and speeds that the port `info` supports.

    Extended speeds count only if the modifier says that the sender knows them.
    """
    widths, speeds, extended = info.link_width_supported, info.link_speed_supported, info.link_speed_ext_supported
    second = info.link_speed_ext_supported2
    special = (0, smpwire.SPEED_EXT_NONE, smpwire.SPEED_EXT_ALL)
    return (
        (wanted.link_width_enabled in (0, 255) or not wanted.link_width_enabled & ~widths)
        and (wanted.link_speed_enabled in (0, 15) or not wanted.link_speed_enabled & ~speeds)
        and (
            not attr_mod & smpwire.PORT_INFO_EXTENDED_SPEEDS
            or wanted.link_speed_ext_enabled in special
            or not wanted.link_speed_ext_enabled & ~extended
        )
        and (not attr_mod & smpwire.PORT_INFO_EXTENDED_SPEEDS or not wanted.link_speed_ext_enabled2 & ~second)
    )


def apply_link_settings(info: PortInfo, wanted: PortInfo, attr_mod: int) -> None:
    """Take over widths and speeds that :func:`link_settings_valid` let pass; 0 changes nothing."""
    if wanted.link_width_enabled:
        info.link_width_enabled = wanted.link_width_enabled & info.link_width_supported
    if wanted.link_speed_enabled:
        info.link_speed_enabled = wanted.link_speed_enabled & info.link_speed_supported
    extended = wanted.link_speed_ext_enabled
    if extended and attr_mod & smpwire.PORT_INFO_EXTENDED_SPEEDS:
        chosen = 0 if extended == smpwire.SPEED_EXT_NONE else extended & info.link_speed_ext_supported
        info.link_speed_ext_enabled = chosen
    if wanted.link_speed_ext_enabled2 and attr_mod & smpwire.PORT_INFO_EXTENDED_SPEEDS:
        info.link_speed_ext_enabled2 = wanted.link_speed_ext_enabled2


@cache
def ext_port_info(enabled: int, active: int) -> bytes:
    """MlnxExtPortInfo of a port that supports FDR10, with its LinkSpeedEnabled and LinkSpeedActive."""
    return MlnxExtPortInfo(
        link_speed_supported=smpwire.SPEED_FDR10, link_speed_enabled=enabled, link_speed_active=active
    ).to_bytes()


def ext_port_wanted(enabled: int, data: bytes) -> int | None:
    """LinkSpeedEnabled after a Set(MlnxExtPortInfo); None if it asks for what is not supported."""
    wanted = MlnxExtPortInfo.from_bytes(data)
    if (wanted.state_change_enable | wanted.link_speed_enabled) & ~smpwire.SPEED_FDR10:
        return None
    changed = wanted.state_change_enable
    return enabled & ~changed | wanted.link_speed_enabled & changed
