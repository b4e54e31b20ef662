"""A program that sends and gets management datagrams at a port, as ib_umad's users do."""

from typing import Final, NamedTuple, Protocol

ETIMEDOUT: Final = 110
"""Status of a request that comes back to its sender since nobody answered it."""


class User(Protocol):
    """A program.

    :ivar manager: it takes what is for a subnet manager, or for the administration beside it.
    :ivar classes: management classes whose requests it takes.
    :ivar long_answers: it joins the segments of long answers; others are given the first one.
    """

    manager: bool
    classes: frozenset[int]
    long_answers: bool

    def deliver(self, mad: bytes, slid: int, dqp: int, sqp: int, status: int) -> None:
        """A datagram for the program; with a `status`, its own request, which was not answered."""
        ...


class Served(NamedTuple):
    """What became of messages at a program's socket that were answered at once.

    - `sent`, `delivered`: how many the program sent, and was sent
    - `rest`: one that came and is to be taken as any other, as it came
    - `answer`: one that the program had no room for
    - `empty`: nothing more is there; `gone`: the socket is not
    """

    sent: int
    delivered: int
    rest: bytes | None
    answer: bytes | None
    empty: bool
    gone: bool
