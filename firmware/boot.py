"""Power-up: the entry point of the firmware image."""

from firmware.kernel import Kernel
from firmware.snapshot import describe as objects_as_lines
from vhca.hw.hardware import Hardware


def power_up(hardware: Hardware) -> Kernel:
    """Boot this program on a board."""
    return Kernel(hardware)


def explain(syndrome: int) -> tuple[str, str] | None:
    """Why a command was refused with this syndrome, and the place in the sources; None if none is."""
    from firmware.commands.reasons import reasons

    reason = reasons().get(syndrome)
    return None if reason is None else (reason.text, reason.place)


def describe(program: Kernel, kind: str, number: int | None) -> list[str]:
    """Objects of a program as lines for people; see :func:`firmware.snapshot.describe`."""
    return objects_as_lines(program.hca, kind, number)
