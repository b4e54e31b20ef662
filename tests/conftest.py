"""What holds for all tests."""

import pytest

from tests.support.content import start_anew


@pytest.fixture(autouse=True)
def _same_bytes_in_every_run() -> None:
    start_anew()
