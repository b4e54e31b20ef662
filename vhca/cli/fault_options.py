"""The option `--fault` of commands with cards: rules of what goes wrong inside them from the beginning."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vhca.lab import CardConfig


def fault_rule(text: str) -> tuple[str | None, str]:
    """A type for a rule of a fault inside a card, behind the name of the card if it is for one: its name, the rule."""
    from vhca.chip.fault_rules import KINDS, FaultRuleError, parse_rule

    first, _, rest = text.strip().partition(" ")
    card = first if first not in KINDS and re.fullmatch(r"h\d+|g\d+(/\d+)?", first) else None
    rule = text if card is None else rest
    try:
        parse_rule(rule)
    except FaultRuleError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return card, rule


def add_fault_option(parser: argparse._ActionsContainer) -> None:
    """Give a command with cards the option that lets something go wrong inside them."""
    parser.add_argument(
        "--fault",
        type=fault_rule,
        action="append",
        default=[],
        metavar="'[CARD] RULE'",
        help="let something go wrong inside every card, or the one that is named first, from the beginning; may be"
        " given again: --fault 'g0 command CREATE_MKEY nth=3 status=NO_RES_ERR' (docs/faults.md has the language)",
    )


def cards_with_faults(
    options: argparse.Namespace, usual: CardConfig, names: Sequence[Sequence[str]]
) -> list[CardConfig]:
    """The description of each card, which goes by all of its `names`, and is as usual but for its faults.

    :raises LabError: a fault is for a card that is not there.
    """
    from dataclasses import replace

    from vhca.lab import LabError

    known = {name for own in names for name in own}
    for card, _ in options.fault:
        if card is not None and card not in known:
            raise LabError(f"--fault {card}: there is no such card", f"there are {', '.join(own[0] for own in names)}")
    rules = [tuple(rule for card, rule in options.fault if card is None or card in own) for own in names]
    return [replace(usual, faults=own) for own in rules]


def guest_cards(options: argparse.Namespace, usual: CardConfig) -> list[list[CardConfig]]:
    """The cards of each guest."""
    per = options.hcas
    places = [(guest, card) for guest in range(options.guests) for card in range(per)]
    names = [
        (f"h{guest * per + card}", f"g{guest}/{card + 1}", *((f"g{guest}",) if not card else ()))
        for guest, card in places
    ]
    cards = cards_with_faults(options, usual, names)
    return [cards[guest * per : (guest + 1) * per] for guest in range(options.guests)]
