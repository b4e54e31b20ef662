"""Cards of the field as data: `card_profiles.toml` beside this module, or a file of the same form.

A profile says what a driver can tell a card by, and what it has less of than the usual one. It never adds: a card does
what its program does, whatever it is called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from vhca.chip.rack_config import CardConfig
from vhca.management.link_speed import LinkSpeed
from vhca.toml_files import read_toml

ALIASES: Final[Mapping[str, str]] = {
    "odp": "pg",
    "atomics": "atomic",
    "compression": "cqe_compression",
    "devx": "log_max_uctx",
    "ipoib_offloads": "ipoib_basic_offloads",
}
"""Names of features that people use, and the capability that announces each."""

_LINK: Final = re.compile(r"(\d+)x([A-Z]+[0-9]*)")
_KNOWN: Final = frozenset({"model", "device_id", "board_id", "fw_version", "link", "capabilities", "sources", "note"})


class ProfileError(ValueError):
    """There is no such profile, or its file does not say what one is."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of card.

    :ivar name: what it is asked for by.
    :ivar model: what people call it.
    :ivar card: its description.
    :ivar sources: where each part of that was published.
    :ivar note: in what it is not like a real one; may be empty.
    """

    name: str
    model: str
    card: CardConfig
    sources: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def capability(text: str) -> tuple[str, int]:
    """`NAME=VALUE` as the name of a capability (or of :data:`ALIASES`) and its number.

    :raises ProfileError: it is not of that form.
    """
    name, found, value = text.partition("=")
    try:
        number = int(value, 0)
    except ValueError:
        found = ""
        number = 0
    if not found or not name.strip().isidentifier() or number < 0:
        raise ProfileError(f"{text!r}: say a capability and its number, such as dct=0 or log_max_qp=12")
    return ALIASES.get(name.strip(), name.strip()), number


def built_in() -> dict[str, Profile]:
    """The profiles that come with this package, by name, from old to new."""
    return _read(files("vhca.chip").joinpath("card_profiles.toml").read_text(encoding="utf-8"))


def find(name: str) -> Profile:
    """The profile of this name; one of a file as `FILE.toml`, or `FILE.toml:NAME` if it has several.

    :raises ProfileError: there is none, or the file is not right.
    """
    if not re.search(r"\.toml(:\w+)?$", name):
        known = built_in()
        if name not in known:
            raise ProfileError(
                f"there is no profile {name!r}; there are {', '.join(known)}, or a file FILE.toml[:NAME]"
            )
        return known[name]
    path, _, wanted = name.rpartition(":") if not name.endswith(".toml") else (name, "", "")
    try:
        found = _read(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"cannot read {path}: {error}") from None
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None
    if wanted not in found and (wanted or len(found) != 1):
        raise ProfileError(f"{path}: say which one, {path}:NAME; it has {', '.join(found) or 'none'}")
    return found[wanted or next(iter(found))]


def _read(text: str) -> dict[str, Profile]:
    try:
        document = read_toml(text)
    except ValueError as error:
        raise ProfileError(f"not TOML: {error}") from None
    return {name: _profile(name, table) for name, table in document.items()}


def _profile(name: str, table: Any) -> Profile:
    if not isinstance(table, dict):
        raise ProfileError(f"{name}: a profile is a table, [{name}]")
    if unknown := sorted(table.keys() - _KNOWN):
        raise ProfileError(f"{name}: no word {unknown[0]!r}; there are {', '.join(sorted(_KNOWN))}")
    settings: dict[str, Any] = {key: table[key] for key in ("device_id", "board_id", "capabilities") if key in table}
    if "fw_version" in table:
        settings["fw_version"] = tuple(table["fw_version"]) if isinstance(table["fw_version"], list) else ()
    try:
        if "link" in table:
            settings["link"] = _link(table["link"])
        card = CardConfig(**settings)
        _check_numbers(card.capabilities)
    except (TypeError, ValueError, AttributeError) as error:
        raise ProfileError(f"{name}: {error}") from None
    sources, model, note = table.get("sources", {}), table.get("model", name), table.get("note", "")
    if not isinstance(sources, dict) or not all(isinstance(word, str) for word in (model, note, *sources.values())):
        raise ProfileError(f"{name}: model, note and each of the sources are texts")
    return Profile(name, model, card, sources, note)


def _link(text: Any) -> LinkSpeed:
    match = _LINK.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"link {text!r}: say lanes and speed, such as 4xEDR")
    return LinkSpeed(int(match[1]), match[2])


def _check_numbers(capabilities: Mapping[str, Any]) -> None:
    for name, value in capabilities.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"capability {name}: {value!r} is not a whole number")
