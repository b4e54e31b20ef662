"""Trunks over ZeroMQ: encrypted sockets, one for each trunk, in the loop of a rack.

CURVE keys on both sides: who connects knows the key of whom it calls, and who waits takes the key of its peer and no
other one (a thread of pyzmq's asks us, by ZAP). Connections come again by themselves. What ZeroMQ keeps is bounded in
frames and in bytes of each, so a peer cannot take memory; nor more than a share of the loop's time, since frames are
read some in a turn.
"""

import logging
from collections.abc import Callable
from random import SystemRandom
from typing import Final

import zmq
from zmq.auth.thread import ThreadAuthenticator

from vhca.fabric.fabric import Fabric
from vhca.fabric.link import Link
from vhca.sim.loop import Loop
from vhca.trunk.counters import TrunkCount
from vhca.trunk.end import MOST_WAITING_FRAMES, Surroundings, TrunkEnd
from vhca.trunk.keys import KeyPair
from vhca.trunk.rack_file import RackFile, Trunk
from vhca.wire.trunk import MAX_FRAME_BYTES

log = logging.getLogger(__name__)

# Frames that ZeroMQ keeps in each direction of a trunk.
HIGH_WATER: Final = MOST_WAITING_FRAMES
READ_PER_TURN: Final = 64
RECONNECT_MS: Final = 100
RECONNECT_MOST_MS: Final = 1000
CONNECT_MS: Final = 1000
HANDSHAKE_MS: Final = 2000
HEARTBEAT_MS: Final = 1000
HEARTBEAT_TIMEOUT_MS: Final = 3000
BACKLOG: Final = 8
LINGER_MS: Final = 1000


class TrunkError(Exception):
    """A trunk cannot be; the text says why."""


def new_keys() -> KeyPair:
    """A pair of keys that nobody has yet."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


class _Allowed:
    """Whose key may connect to a trunk, as pyzmq asks it; in its thread."""

    def __init__(self, key: str, refused: Callable[[], None]) -> None:
        self._key = key.encode()
        self._refused = refused

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether this one may."""
        if key == self._key:
            return True
        self._refused()
        return False


class TrunkSocket:
    """The socket of one trunk. See :class:`vhca.trunk.end.Pipe`."""

    def __init__(self, loop: Loop, context: zmq.Context[zmq.Socket[bytes]], trunk: Trunk, rack: str) -> None:
        self.trunk = trunk
        self.calls = trunk.calls == rack
        self._loop = loop
        self._socket = context.socket(zmq.DEALER if self.calls else zmq.ROUTER)
        self._identity = b""
        self._asking = b""  # of the frame that is being looked at
        self._planned = False
        self._closed = False
        self.end: TrunkEnd

    def open(self, keys: KeyPair, peer_key: str, domain: str) -> None:
        """Connect, or wait for the other rack.

        :raises TrunkError: the address cannot be had.
        """
        socket = self._socket
        socket.set_hwm(HIGH_WATER)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        # A connection over a network that is gone is not waited for: a new one is made.
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
        try:
            if self.calls:
                socket.setsockopt(zmq.IMMEDIATE, 1)
                socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
                socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
                socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MOST_MS)
                socket.curve_serverkey = peer_key.encode()
                socket.connect(self.trunk.address)
            else:
                socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
                socket.setsockopt(zmq.BACKLOG, BACKLOG)
                socket.curve_server = True
                socket.zap_domain = domain.encode()
                socket.bind(self.trunk.address)
        except zmq.ZMQError as error:
            raise TrunkError(f"trunk {self.trunk.name}: {self.trunk.address}: {error.strerror}") from error
        self._loop.add_reader(socket.fileno(), self._readable)

    def close(self) -> None:
        """Hang up."""
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    # ---- the pipe ----

    def send(self, frame: bytes) -> bool:
        """See :class:`vhca.trunk.end.Pipe`."""
        parts = [frame] if self.calls else [self._identity, frame]
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.ZMQError:  # nobody is there, or takes nothing
            return False
        finally:
            # Sending may have taken note of what arrived, which the descriptor then tells no more.
            self._plan()
        return True

    def adopt(self) -> None:
        """See :class:`vhca.trunk.end.Pipe`."""
        self._identity = self._asking

    def _plan(self) -> None:
        if not self._planned and not self._closed:
            self._planned = True
            self._loop.call_soon(self._readable_now)

    def _readable_now(self) -> None:
        self._planned = False
        self._readable()

    def _readable(self) -> None:
        """Read some of what is there, and come back for the rest."""
        if self._closed:
            return
        socket, end = self._socket, self.end
        try:
            for _ in range(READ_PER_TURN):
                if not int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
                    return
                parts = socket.recv_multipart(zmq.NOBLOCK)
                if not self.calls:
                    self._asking = parts.pop(0)
                if len(parts) == 1:
                    end.frame_in(parts[0])
                else:
                    end.frame_in(b"")
        except zmq.Again:
            return
        self._plan()


class Trunks:
    """All trunks of a rack."""

    def __init__(self, loop: Loop, fabric: Fabric, file: RackFile, rack: str, keys: KeyPair) -> None:
        """:raises TrunkError: the keys are not those of this rack."""
        part = file.racks[rack]
        if keys.public != part.key:
            raise TrunkError(f"the keys are not those that the rack file says of {rack}")
        self._loop = loop
        self._file = file
        self._rack = rack
        self._keys = keys
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._authenticator: ThreadAuthenticator | None = None
        self._sockets: list[TrunkSocket] = []
        self._fabric = fabric
        self.ends: list[TrunkEnd] = []

    def open(self) -> None:
        """Take the addresses; before the loop runs, or in it.

        :raises TrunkError: one cannot be had.
        """
        assert self._fabric.plant is not None
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        around = Surroundings(self._loop.call_soon, self._fabric.call_later, self._loop.clock.now_ns, SystemRandom())
        try:
            for trunk in self._file.trunks_of(self._rack):
                self._open(trunk, self._fabric.plant.trunks[trunk.cable], around)
        except BaseException:
            self.close()
            raise

    def _open(self, trunk: Trunk, link: Link, around: Surroundings) -> None:
        assert self._context is not None
        assert self._authenticator is not None
        socket = TrunkSocket(self._loop, self._context, trunk, self._rack)
        self._sockets.append(socket)
        end = socket.end = TrunkEnd(link, trunk.name, self._file.digest, socket.calls, socket, around)
        self.ends.append(end)
        self._fabric.trunks[trunk.name] = end
        peer = trunk.waits if socket.calls else trunk.calls

        def refused() -> None:
            self._loop.call_threadsafe(lambda: end.counters.update([TrunkCount.REFUSED]))

        if not socket.calls:
            self._authenticator.configure_curve_callback(
                trunk.name, _Allowed(self._file.racks[peer].key, refused)
            )  # fmt: skip
        socket.open(self._keys, self._file.racks[peer].key, trunk.name)
        end.start()

    def close(self) -> None:
        """Hang up; in the loop, or when it does not run."""
        for end in self.ends:
            end.close()
        for socket in self._sockets:
            socket.close()
        if self._authenticator is not None:
            self._authenticator.stop()
        if self._context is not None:
            self._context.term()
        self._sockets.clear()
        self._authenticator = self._context = None
