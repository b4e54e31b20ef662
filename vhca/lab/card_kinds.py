"""Kinds of cards by name; what they are is read when one is asked for, since most sessions want none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vhca.chip.card_profiles import Profile


def card_profile(name: str) -> Profile:
    """The kind of card of this name (`cx4`, `cx5`, `cx6`, `cx6dx`, `cx7`), or of a file (`FILE.toml[:NAME]`).

    `card_profile("cx5").card` is its :class:`CardConfig`; :func:`dataclasses.replace` makes another of it.

    :raises ValueError: there is none of that name, or the file is not right.
    """
    from vhca.chip.card_profiles import find

    return find(name)
