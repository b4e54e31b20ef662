"""Ways from one board to another: cables, passages through the fabric, and the board that is behind one.

Where both boards are in this process and nothing happens to packets between them, a program may work on both at once
(:class:`vhca.hw.hardware.Through`); this is what it is given.
"""

from collections.abc import Callable
from typing import Protocol

from vhca.chip.rounds import Member, Rounds
from vhca.hw.effects import Effects
from vhca.hw.hardware import Firmware
from vhca.wire.packet import Packet, Route


class Passage(Protocol):
    """What a cable knows of the way to another card; see :class:`vhca.hw.hardware.Through`."""

    def is_open(self, mtu: int, *, empty: bool = False) -> bool:
        """Tell whether nothing happens to packets on it, and, if `empty`, none is on it."""
        ...

    def passed(self, sent: int, sent_words: int, back: int, back_words: int) -> None:
        """Count packets and words, there and back."""
        ...


class Far(Protocol):
    """The port at the other end: `card` is the board there, if it is one."""

    card: object


class Cable(Protocol):
    """Where a port's packets go."""

    def send(self, packet: Packet) -> None:
        """Put a packet or burst on the wire."""
        ...

    def set_enabled(self, enabled: bool) -> None:
        """Switch the transmitter at this end on or off."""
        ...

    def through(self, route: Route, back: Route, pkeys: tuple[int, int]) -> tuple[Passage, Far] | None:
        """The way by `route` to another card of this process, and back by `back`; None if there is none.

        `pkeys`: the P_Keys there and back.
        """
        ...

    @property
    def full(self) -> bool:
        """True while what was sent has not got far enough: the sender holds back."""
        ...


class Neighbour(Member, Protocol):
    """A board, as another one sees it."""

    dead: bool
    rests: Callable[[], bool]
    rounds: Rounds
    program: Firmware

    @property
    def busy(self) -> bool:
        """True while a step is under way."""
        ...

    @property
    def full(self) -> bool:
        """True while it should be sent no more packets."""
        ...

    @property
    def has_packets(self) -> bool:
        """True while packets wait for its turn."""
        ...

    def step(self, run: Callable[[Effects], None]) -> None:
        """A step of its program that somebody else asks for."""
        ...


class Behind:
    """Another board at the other end of a passage, as `near`'s program sees it: :class:`vhca.hw.hardware.Through`."""

    __slots__ = ("_board", "_near", "_passage", "port")

    def __init__(self, passage: Passage, near: Neighbour, board: Neighbour, port: int) -> None:
        self._passage = passage
        self._near = near
        self._board = board
        self.port = port

    @property
    def firmware(self) -> Firmware:
        """The program of the other board at this moment; what is set apart there is over."""
        if self._board.apart:
            self._board.rounds.join()
        return self._board.program

    def passed(self, sent: int, sent_words: int, back: int, back_words: int) -> None:
        """See :class:`vhca.hw.hardware.Through`."""
        self._passage.passed(sent, sent_words, back, back_words)

    def is_open(self, mtu: int, *, empty: bool = False) -> bool:
        """Neither the fabric nor the other board is in the way, and that one has no rest."""
        board = self._board
        if board.dead or board.busy or board.full or board.rests() or (empty and board.has_packets):
            return False
        return self._passage.is_open(mtu, empty=empty)

    def step(self, run: Callable[[Effects], None]) -> None:
        """See :class:`vhca.hw.hardware.Through`."""
        self._board.step(run)

    def set_apart(self, finish: Callable[[Effects], None], most: int) -> bool:
        """See :class:`vhca.hw.hardware.Through`."""
        near, far = self._near, self._board
        return near.rounds is far.rounds and near.rounds.set_apart(near, far, lambda: near.step(finish), most)

    @property
    def parted(self) -> bool:
        """See :class:`vhca.hw.hardware.Through`."""
        return self._near.rounds.parted
