"""A rack: cards on one fabric, served by one loop in one thread.

This is the device side of a laboratory: build it, start it, point QEMU's `vfio-user-pci` at the sockets. Everything
in it runs in the loop's thread; methods that other threads may call say so.
"""

import contextlib
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from vhca.chip.board import Board
from vhca.chip.card import Card, CardFunction, load_firmware
from vhca.chip.control import SOCKET_NAME, ControlSocket
from vhca.chip.fault_rules import FaultRuleError
from vhca.chip.live_fabric import LiveFabric
from vhca.chip.orders import Orders, ToolPlace, refusal
from vhca.chip.rack_config import CaptureConfig, CardConfig, RackConfig
from vhca.chip.rounds import Rounds
from vhca.counting import shown
from vhca.fabric.capture import NO_LIMITS, Capture
from vhca.fabric.capture_filter import EVERYTHING
from vhca.fabric.captures import CaptureChoice
from vhca.fabric.fabric import Fabric
from vhca.fabric.topology import Node, TopologyError
from vhca.hw.hardware import UnfitBoard
from vhca.hw.identity import MTU_BYTES
from vhca.ibsim.server import Server as ToolServer
from vhca.private_files import PrivateLog
from vhca.sim.clock import RealClock
from vhca.sim.loop import Loop, LoopEnded
from vhca.sim.watchdog import Watchdog
from vhca.subnet import lid_file
from vhca.vfio_user.connection import Connection
from vhca.wire.smp import PORT_ACTIVE, mtu_code

if TYPE_CHECKING:
    from vhca.trunk.rack_file import RackShare
    from vhca.trunk.sockets import Trunks

log = logging.getLogger(__name__)

POLL_S = 0.02
STOP_S: Final = 2.0
"""For a loop to answer when it is to end, and again to end."""
MAX_DESCRIPTORS: Final = 65536
LOG_BYTES: Final = 64 << 20
MAX_CARDS: Final = 254
"""The external ports of the largest switch: in a forwarding table 255 leads nowhere (IBTA volume 1, 14.2.5.10)."""
LEAST_PORTS: Final = 36
"""The ports of the switch of a small rack."""


class RackError(Exception):
    """The rack cannot do what it was asked for; the text says what to look at."""


def raise_descriptor_limit() -> None:
    """Let this process open as many files as its hard limit allows, up to :data:`MAX_DESCRIPTORS`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _in_place_of(host: Node, config: CardConfig) -> CardConfig:
    """The description of a card that takes a host's place."""
    return replace(
        config,
        node_guid=config.node_guid if config.node_guid is not None else host.guid,
        port_guid=config.port_guid if config.port_guid is not None else host.port_guids[0],
        description=config.description if config.description is not None else host.description,
    )


def _choice(config: CaptureConfig) -> CaptureChoice:
    return CaptureChoice(
        config.ports, config.both_ends, config.records, config.only or EVERYTHING, config.limits or NO_LIMITS
    )


def _at_home(cards: Sequence[CardConfig], share: "RackShare") -> list[CardConfig]:
    """Cards in the places that the rack file gives them."""
    hosts = share.file.racks[share.name].cards
    if len(cards) != len(hosts):
        raise RackError(f"{len(cards)} cards, and the rack file says {len(hosts)} of {share.name}")
    return [replace(card, host=host) for card, host in zip(cards, hosts, strict=True)]


def _trunks(loop: Loop, subnet: Fabric, share: "RackShare") -> "Trunks":
    try:
        from vhca.trunk.sockets import TrunkError, Trunks
    except ImportError as error:
        raise RackError(f"trunks need pyzmq ({error}): pip install 'vhca[trunk]'") from error
    try:
        return Trunks(loop, subnet, share.file, share.name, share.keys)
    except TrunkError as error:
        raise RackError(str(error)) from error


def _open(trunks: "Trunks") -> None:
    from vhca.trunk.sockets import TrunkError

    try:
        trunks.open()
    except TrunkError as error:
        raise RackError(str(error)) from error


def card_of(frame: FrameType) -> str | None:
    """Name of the card, or path of the socket, in whose step a stack frame is."""
    owner = frame.f_locals.get("self")
    return owner.name if isinstance(owner, (Board, Card, CardFunction, Connection)) else None


def _known_lids(path: Path | None) -> dict[int, int] | None:
    """The LIDs in a file, None if it is not there yet."""
    if path is None or not path.exists():
        return None
    try:
        if path.stat().st_size > lid_file.MAX_BYTES:
            raise RackError(f"{path}: more than {lid_file.MAX_BYTES >> 20} MiB of LIDs")
        return lid_file.read(path.read_text())
    except (OSError, UnicodeDecodeError, lid_file.LidFileError) as error:
        raise RackError(f"{path}: {error}") from None


class Rack:
    """Cards named h0, h1 ..., each with a socket `<name>.sock` and a log `<name>.log` in `directory`.

    Beside them is the control socket `rack.sock`, at which a running rack takes orders of the same user.

    `cards` describes each of them (:class:`vhca.chip.rack_config.CardConfig`), or says how many there are of the usual
    kind; :class:`vhca.chip.rack_config.RackConfig` is about all of them and the fabric.

    :ivar hcas: the cards.
    :ivar fabric: the switch, its links, the subnet manager, for any thread.
    :ivar watchdog: notices when the loop hangs.

    :raises RackError: there cannot be such a rack.
    """

    def __init__(self, cards: int | Sequence[CardConfig], directory: Path, config: RackConfig | None = None) -> None:
        wanted = [CardConfig()] * cards if isinstance(cards, int) else list(cards)
        self.config = config if config is not None else RackConfig()
        share = self.config.share
        if share is not None:
            wanted = _at_home(wanted, share)
            self.config = replace(self.config, topology=share.file.topology)
        if self.config.topology is None and len(wanted) > MAX_CARDS:
            raise RackError(f"{len(wanted)} cards: one switch joins them, and it has {MAX_CARDS} ports at most")
        self.directory = Path(directory)
        self.loop = Loop(RealClock())
        self._rounds = Rounds(self.loop.call_soon, self.loop.clock.now_ns)
        self._heirs: set[int] = set()  # port GUIDs
        self._subnet = Fabric(
            self.loop.call_soon,
            self.loop.clock,
            # One more than cards, for a host's tools.
            num_ports=min(max(LEAST_PORTS, (len(wanted) if share is None else share.file.card_count) + 1), MAX_CARDS),
            local=None if share is None else share.file.racks[share.name].switches,
            managed=share is None or share.file.manager == share.name,
            mkey=self.config.mkey,
            topology=self.config.topology,
            routing=self.config.routing,
            # As who runs a subnet would choose it: the largest that every port can take.
            group_mtu=mtu_code(min((card.mtu for card in wanted), default=MTU_BYTES)),
            # The loop looks at these in each round, at timers of a source only now and then.
            call_later=lambda delay_ns, fn: self.loop.call_later(delay_ns / 1e9, fn),
            priority=self.config.sm_priority,
            heirs=self._may_manage() if self.config.heirs is not None else None,
            lmc=self.config.lmc,
            partitions=self.config.partitions,
            lids=_known_lids(self.config.lids),
        )
        self.fabric = LiveFabric(self.loop, self._subnet, self._tool_counters)
        self.loop.add_timer_source(self._subnet)
        self._trunks = None if share is None else _trunks(self.loop, self._subnet, share)
        self._handlers: list[tuple[logging.Logger, logging.Handler]] = []
        self._capture: Capture | None = None
        self._running = False
        self._tools: ToolServer | None = None
        orders = Orders(
            self.fabric, self.directory, self.open_tools, lambda: [card.faults for card in self.hcas], lambda: self.hcas
        )
        self._control = ControlSocket(self.directory / SOCKET_NAME, orders.answer, refusal)
        self.watchdog = Watchdog(self.loop, card_of)
        self.hcas: list[Card] = []
        try:
            for index, card in enumerate(wanted):
                self.hcas.append(self._build(f"h{index}", card))
            self._check_guids()
            for name, line in self.config.lines.items():
                if not self._subnet.knows(name):
                    raise RackError(f"there is no cable {name}; name a card, or an end such as leaf1/3 or switch/1")
                self._subnet.set_line(name, line)
            self._name_cards()
        except BaseException:
            self.loop.close()
            raise

    def _build(self, name: str, config: CardConfig) -> Card:
        try:
            port = self._subnet.add_port(name, config.host, config.cable)
        except (TopologyError, ValueError) as error:
            raise RackError(f"{name}: {error}") from error
        config = replace(config, link=port.train(config.link))
        if port.host is not None:
            config = _in_place_of(port.host, config)
        image = load_firmware(config.firmware)
        if config.middleware is not None:
            image = config.middleware(name, image)
        path = self.directory / f"{name}.sock"
        try:
            # The link partner notices the power of the card, after what is under way.
            card = Card(
                name,
                config,
                path,
                self.loop,
                image,
                lambda on: self.loop.call_soon(lambda: port.set_enabled(on)),
                self._rounds,
            )
        except (UnfitBoard, FaultRuleError) as error:
            raise RackError(f"{name}: {error}") from error
        port.attach(
            lambda packet: card.board.packet_in(1, packet),
            lambda up: card.board.link_change(1, up),
            lambda: card.board.full,
            lambda: card.board.port_info(1),
        )
        port.set_enabled(False)
        port.notice = lambda what, count: card.board.link_count(1, what, count)
        port.card = card.board
        card.board.hold_link = lambda held: self.loop.call_soon(lambda: port.link.hold(held))
        card.board.looped = port.looped
        port.watch = card.board.watch
        card.plug(1, port)
        return card

    def _may_manage(self) -> Callable[[int], bool]:
        return (lambda _guid: True) if self.config.heirs == "any" else self._heirs.__contains__

    def _name_cards(self) -> None:
        """Let heirs and partitions, which name cards, have their GUIDs."""
        guids = {card.name: card.info.port_guids[0] for card in self.hcas}
        try:
            if self.config.heirs is not None and self.config.heirs != "any":
                self._heirs |= {guids[name] for name in self.config.heirs}
            self._subnet.name_cards(guids)
        except KeyError as error:
            raise RackError(f"there is no card {error.args[0]}; there are {', '.join(guids) or 'none'}") from None

    def _check_guids(self) -> None:
        """A manager takes two nodes, or two ports, with one GUID for the same."""
        nodes = {switch.node_guid: f"the switch {name}" for name, switch in self._subnet.switches.items()}
        ports = dict(nodes)
        for host in self._subnet.simulated():
            nodes[host.guid] = f"the host {host.name}"
            ports |= dict.fromkeys(host.port_guids, f"the host {host.name}")
        for card in self.hcas:
            for kind, guid, owners in (("node", card.node_guid, nodes), ("port", card.info.port_guids[0], ports)):
                if guid in owners:
                    raise RackError(f"{card.name}: its {kind} GUID {guid:#018x} is that of {owners[guid]}")
                owners[guid] = card.name

    # ---- life (any thread) ----

    def start(self) -> None:
        """Open the sockets, start the subnet manager and serve in a thread of its own.

        The process's limit of open files is raised as far as it may be: each host shares files of its memory.

        If that fails, for example because another rack serves in this folder or the recording cannot be written
        (`OSError`), no socket of ours is left there.
        """
        raise_descriptor_limit()
        try:
            for card in self.hcas:
                card.start()
            self._control.open()
            # A socket is taken by one rack only; so are, from here on, the logs of the same names.
            if self.config.logs:
                self._open_logs()
            if recording := self.config.capture:
                try:
                    self._capture = self._subnet.capture(recording.path, _choice(recording), ring=recording.ring)
                except KeyError as error:
                    raise RackError(f"capture: there is no port {error.args[0]}") from error
            if self.config.tools is not None:
                self._open_tools(self.config.tools)
            if self._trunks is not None:
                _open(self._trunks)
        except BaseException:
            for card in self.hcas:
                card.stop()
            self._control.stop(0)
            self._close_logs()
            self.loop.close()
            raise
        self._running = True
        self.loop.start()
        self.watchdog.start()
        # Only now: before, the loop would not be asked from there, but run there.
        self._control.start()

    def stop(self) -> None:
        """Drop all hosts, close everything; a loop that hangs is left behind, but not the sockets."""
        if not self._running:
            return
        self._running = False
        self._control.stop(STOP_S)
        self.watchdog.stop()
        responds = self.loop.responds(STOP_S)
        if not responds:
            log.error("the device loop of %s hangs; its hosts are not told", self.directory)
            for card in self.hcas:
                card.server.remove_socket()

        captures: list[Capture] = []

        given: dict[int, range] = {}

        def shut() -> None:
            given.update(self._subnet.manager.addresses.given())
            if self._capture is not None:  # its last packets are those of cards that are still there
                self._subnet.stop_capture(self._capture)
                captures.append(self._capture)
            captures.extend(self._subnet.captures.running)
            for card in self.hcas:
                card.stop()
            if self._tools is not None:
                self._tools.close()
            if self._trunks is not None:
                self._trunks.close()
            self._subnet.close()

        with contextlib.suppress(TimeoutError, LoopEnded):
            self.loop.call(shut)
        self.loop.stop(timeout_s=STOP_S if responds else 0)
        if given:
            self._keep_lids(given)
        for capture in captures:
            if not capture.wait(STOP_S):
                log.error("the capture %s is not written to its end: its disk takes too long", capture.name)
        self._close_logs()

    def _keep_lids(self, given: dict[int, range]) -> None:
        path = self.config.lids
        if path is None:
            return
        beside = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            beside.write_text(lid_file.write(given))
            os.replace(beside, path)
        except OSError as error:
            log.error("the LIDs are not kept in %s: %s", path, error)

    def __enter__(self) -> "Rack":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- programs of the host (any thread) ----

    def open_tools(self, node: str = "") -> ToolPlace:
        """Let programs of this user attach under libumad2sim, at the node of this name or the usual one.

        :raises LookupError: programs cannot attach there; the text says why.
        """
        return self.loop.call(lambda: self._tool_place(node))

    def _tool_place(self, node: str) -> ToolPlace:
        place = self._subnet.tool_node(node)
        if self._tools is None:
            self._open_tools(f"vhca-{os.getpid()}-{id(self):x}")
        assert self._tools is not None
        active = place.port_info(0).port_state == PORT_ACTIVE
        return ToolPlace(self._tools.base, place.name, place.node_info().port_guid, active)

    def _tool_counters(self) -> dict[str, int]:
        counted = {} if self._tools is None else shown(self._tools.all_counters())
        return {f"tools.{name}": count for name, count in sorted(counted.items())}

    def _open_tools(self, base: str) -> None:
        server = ToolServer(base, self._subnet.tool_node, self.loop)
        server.start()
        self._tools = server

    # ---- questions (any thread) ----

    def wait_active(self, timeout_s: float = 30.0) -> None:
        """Wait until the port of every card that has a host is ACTIVE; raises RackError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while waiting := self.loop.call(lambda: list(self._not_active())):
            if time.monotonic() > deadline:
                raise RackError(
                    f"not ACTIVE after {timeout_s:.0f} s: {', '.join(waiting)}; see the logs in {self.directory}"
                )
            time.sleep(POLL_S)

    def _not_active(self) -> Iterator[str]:
        for card in self.hcas:
            if card.server.connected and not self._subnet.active(card.name):
                yield card.name

    def _open_logs(self) -> None:
        for card in self.hcas:
            # A guest decides how much there is to trace, but not how much of the disk it takes.
            handler = PrivateLog(self.directory / f"{card.name}.log", LOG_BYTES)
            logger = card.board.log
            logger.setLevel(logging.DEBUG)
            logger.addHandler(handler)
            self._handlers.append((logger, handler))

    def _close_logs(self) -> None:
        for logger, handler in self._handlers:
            logger.removeHandler(handler)
            handler.close()
        self._handlers.clear()
