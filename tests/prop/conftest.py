"""Length of the property runs: VHCA_EXAMPLES=4000 plays more examples per test; the total is told at the end."""

import os

import pytest

EXAMPLES = int(os.environ.get("VHCA_EXAMPLES", "60"))
played = {"transport steps": 0}


def count_steps(number: int) -> None:
    """Add to the total that the terminal summary tells."""
    played["transport steps"] += number


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for what, number in played.items():
        if number:
            terminalreporter.write_line(f"{what} played: {number}")
