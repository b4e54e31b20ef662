"""The options that record cards."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from vhca.chip.rack_config import CardConfig
    from vhca.replay.recorder import Recordings


def add_record_options(parser: argparse._ActionsContainer, size: Callable[[str], int]) -> None:
    """Give a command with cards the options that record all that they are told and do; `size`: a type for MiB."""
    parser.add_argument(
        "--record",
        type=Path,
        metavar="RUN",
        help="write all that each card is told, reads and does to a file in this folder, for `vhca replay RUN`; these"
        " cards work with the engine in Python, which is slower",
    )
    parser.add_argument(
        "--record-size",
        type=size,
        default=256,
        metavar="SIZE",
        help="of each card's recording, at most: MiB, or with a unit: 512M, 2G (default: 256M)",
    )


def record_bytes(options: argparse.Namespace) -> int:
    """How large each card's recording may be."""
    return int(options.record_size) << 20


def recorded(options: argparse.Namespace, cards: list[CardConfig]) -> tuple[list[CardConfig], Recordings | None]:
    """The cards, recorded if that is asked for, and what is to be closed when their rack has stopped.

    :raises LabError: the folder is not safe, or cannot be made.
    """
    if options.record is None:
        return cards, None
    from vhca.lab.folders import for_logs
    from vhca.replay.recorder import Recordings

    recordings = Recordings(for_logs(options.record), record_bytes(options))
    return [recordings.recorded(card) for card in cards], recordings
