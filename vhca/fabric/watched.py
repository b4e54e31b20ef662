"""Ports whose tables somebody keeps a copy of: he is told when one is another one."""

from collections.abc import Callable
from typing import Any, Final

from vhca.management.mkey import MKeyGuard
from vhca.management.port_state import PortState
from vhca.wire.smp import PortInfo

_TOLD: Final = ("ext_speed_active", "ext_speed_enabled", "pkeys")


class WatchedPort(PortState):
    """A port; `watch` is called behind each change of its P_Key table and of its MlnxExtPortInfo."""

    __slots__ = ("watch",)

    def __init__(
        self,
        number: int,
        info: PortInfo,
        pkeys: tuple[int, ...],
        guids: tuple[int, ...],
        guard: MKeyGuard | None = None,
    ) -> None:
        self.watch: Callable[[], None] | None = None
        super().__init__(number, info, pkeys, guids, guard)


def _told(slot: Any) -> property:
    def put(port: WatchedPort, value: Any) -> None:
        slot.__set__(port, value)
        if port.watch is not None:
            port.watch()

    return property(slot.__get__, put)


for _name in _TOLD:
    setattr(WatchedPort, _name, _told(PortState.__dict__[_name]))
