"""Each scenario plays twice: with the engine in Python alone, and with trains wherever there may be any.

Those that are marked `under_way` look at packets on the cable, or at steps, of messages that a train would have taken.
"""

from collections.abc import Iterator

import pytest

from firmware.native.library import loaded
from tests.scenario.world import World


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    once = metafunc.definition.get_closest_marker("under_way")
    metafunc.parametrize("engine", ["python"] if once else ["python", "trains"], indirect=True)


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which engine works where both can."""
    if request.param == "trains" and not loaded().there:
        pytest.skip(f"no engine in C: {loaded().reason}")
    World.rails_by_default = request.param == "trains"
    yield request.param
    World.rails_by_default = False
