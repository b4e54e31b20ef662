"""`vhca cards`: the kinds of cards that there are."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from vhca.cli import status

if TYPE_CHECKING:
    from vhca.chip.card_profiles import Profile

NAME: Final = "cards"
SUMMARY: Final = "list the kinds of cards that a guest can have"
DESCRIPTION: Final = """\
List the profiles of cards: what a driver takes each for (device number, PSID, firmware version), what its port trains
at, and what it has less of than the usual card.  With a name, all that is known of one, and where that was published.

`--profile NAME` of run, shell, demo, serve makes all cards so; `--set NAME=VALUE` takes a capability away."""
EPILOG: Final = f"""\
examples:
  vhca cards
  vhca cards cx5
  vhca run --profile cx5 --set odp=0 -- ibv_devinfo -v

exit codes:
  0    listed
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="one of them, or a file FILE.toml[:NAME]")
    parser.set_defaults(refuse=parser.error)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.chip.card_profiles import ProfileError, built_in, find

    if options.name is None:
        print(table(list(built_in().values())))
        return status.OK
    try:
        print(one(find(options.name)))
    except ProfileError as error:
        options.refuse(str(error))
    return status.OK


def table(profiles: list[Profile]) -> str:
    """All, a line each."""
    from vhca.lab.table import aligned

    rows = [(profile.name, profile.model, *_identity(profile), _less(profile)) for profile in profiles]
    return "\n".join(aligned(("profile", "card", "device", "PSID", "firmware", "link", "less"), rows))


def one(profile: Profile) -> str:
    """One, with where it is from."""
    device, board, firmware, link = _identity(profile)
    rows = [
        ("card", profile.model, ""),
        ("device", device, profile.sources.get("device_id", "")),
        ("PSID", board, profile.sources.get("identity", "")),
        ("firmware", firmware, profile.sources.get("identity", "")),
        ("link", link, profile.sources.get("link", "")),
        ("less", _less(profile), profile.sources.get("capabilities", "")),
        ("note", profile.note or "-", profile.sources.get("note", "")),
    ]
    lines = [f"{what:<10}{value}" + (f"\n{'':10}({source})" if source else "") for what, value, source in rows]
    return "\n".join(lines)


def _identity(profile: Profile) -> tuple[str, str, str, str]:
    card = profile.card
    major, minor, subminor = card.fw_version
    return f"{card.device_id:#06x}", card.board_id, f"{major}.{minor}.{subminor:04}", str(card.link)


def _less(profile: Profile) -> str:
    return " ".join(f"{name}={value}" for name, value in profile.card.capabilities.items()) or "-"
