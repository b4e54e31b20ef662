"""What a recording says of its card: who it is, and which program ran on it."""

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

from vhca.hw.hardware import BoardInfo
from vhca.management.link_speed import LinkSpeed
from vhca.replay.file import RecordingError

_MOST: Final = {"msix_vectors": 2048, "uar_pages": 1 << 16, "first_free_uar": 1 << 16, "device_memory_bytes": 1 << 24}
_SOURCES: Final = ("*.py", "*.c", "*.h")


@cache
def firmware_hash(package: str) -> str:
    """The version of a program: the SHA-256 of its sources."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = hashlib.sha256()
    for place in places:
        root = Path(place)
        for path in sorted(path for pattern in _SOURCES for path in root.rglob(pattern)):
            found.update(f"{path.relative_to(root)}\n{path.stat().st_size}\n".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def told(info: BoardInfo) -> dict[str, Any]:
    """A board as JSON."""
    return asdict(info) | {"capabilities": dict(info.capabilities)}


def board_of(told: object) -> BoardInfo:
    """A board from what a recording says of it.

    :raises RecordingError: there is no such board.
    """
    if not isinstance(told, Mapping):
        raise RecordingError("it does not say of which board it is")
    names = {field.name: field.type for field in fields(BoardInfo)}
    if set(told) != set(names):
        raise RecordingError("its board has other properties than boards of this vhca")
    found: dict[str, Any] = dict(told)
    for name, value in told.items():
        if names[name] is int and not (type(value) is int and 0 <= value <= min(_MOST.get(name, 1 << 64), 1 << 64)):
            raise RecordingError(f"its board's {name} is no number that this could be")
        if names[name] is str and not isinstance(value, str):
            raise RecordingError(f"its board's {name} is no text")
    try:
        found["port_guids"] = _numbers(told["port_guids"], 1, 1 << 64)
        found["fw_version"] = _numbers(told["fw_version"], 3, 1 << 16)
        found["link"] = LinkSpeed(**told["link"])
        capabilities = told["capabilities"]
        if not all(type(value) is int for value in capabilities.values()):
            raise TypeError("a capability is no number")
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise RecordingError(f"its board cannot be: {error}") from None
    return BoardInfo(**found)


def _numbers(found: Any, count: int, end: int) -> tuple[int, ...]:
    if not isinstance(found, list) or len(found) != count:
        raise ValueError(f"{count} numbers should be there")
    if not all(type(number) is int and 0 <= number < end for number in found):
        raise ValueError("a number is none")
    return tuple(found)
