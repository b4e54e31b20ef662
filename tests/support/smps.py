"""SMPs as programs make them."""

from __future__ import annotations

from typing import Any

from vhca.wire import mad as madwire
from vhca.wire.mad import Smp
from vhca.wire.packet import PERMISSIVE_LID


def directed_get(tid: int, attribute: int, path: tuple[int, ...] = (), **fields: Any) -> Smp:
    """A Get that goes by the ports of `path`; `fields` are set in addition, or instead."""
    settings: dict[str, Any] = {
        "base_version": 1, "class_version": 1, "mgmt_class": madwire.CLASS_SUBN_DR, "method": madwire.METHOD_GET,
        "tid": tid, "hop_count": len(path), "attr_id": attribute,
        "dr_slid": PERMISSIVE_LID, "dr_dlid": PERMISSIVE_LID, "initial_path": bytes((0, *path)).ljust(64, b"\0"),
    }  # fmt: skip
    return Smp(**(settings | fields))
