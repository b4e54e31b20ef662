"""What holds for all tests."""

import pytest
from hypothesis import settings

from firmware.commands.reasons import reasons
from firmware.commands.registry import CommandError
from tests.support.content import start_anew

# How long an example takes says how busy the host is.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")


@pytest.fixture(autouse=True)
def _same_bytes_in_every_run() -> None:
    start_anew()


@pytest.fixture(autouse=True, scope="session")
def _each_refusal_can_be_explained() -> None:
    """Whatever command a test sees refused: `vhca explain` knows its syndrome."""
    made = CommandError.__init__

    def checked(self: CommandError, status: int, reason: str) -> None:
        made(self, status, reason)
        assert self.syndrome in reasons(), f"no text of the firmware's sources is {reason!r}"

    CommandError.__init__ = checked  # type: ignore[method-assign]
