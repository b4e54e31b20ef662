"""Bytes to send: no two places of a test have the same, and every run has the same ones."""

from random import Random

_random = Random(1)


def start_anew() -> None:
    """Begin the sequence again: each test has the same bytes, whichever ran before it."""
    _random.seed(1)


def some_bytes(size: int) -> bytes:
    """The next bytes of the sequence."""
    return _random.randbytes(size)
