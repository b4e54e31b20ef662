"""The lab: guests, their cards and the fabric between them, set up and torn down as one thing.

Guarantees: guests boot at the same time; whatever happens (exception, Ctrl-C, end of the process) no QEMU is
left; each guest's console and QEMU's own messages are in files, kept if the run failed.
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from vhca import DEFAULT_KERNEL
from vhca.chip.rack_config import CardConfig, RackConfig
from vhca.hw.identity import MTU_BYTES
from vhca.lab import boot_times, debug, folders, kept, opensm, suites
from vhca.lab import qemu as machine
from vhca.lab.agent_process import Process, Sink
from vhca.lab.cache import Cache, Progress
from vhca.lab.devices import Hca, RackFactory, RackLike
from vhca.lab.errors import GuestError, LabError
from vhca.lab.guest import Guest, GuestConfig, Surroundings
from vhca.lab.network import Network
from vhca.lab.opensm import EMBEDDED
from vhca.lab.own_modules import OwnModule
from vhca.lab.prepare import Prepared, prepare

if TYPE_CHECKING:
    from vhca.chip.card import Card
    from vhca.chip.live_fabric import LiveFabric
    from vhca.chip.live_faults import LiveFaults
    from vhca.fabric.schedule import Schedule
    from vhca.fabric.topology import Topology
    from vhca.hw.findings import Finding
    from vhca.replay.recorder import Recordings


class Lab:
    """Guests on one fabric, as a context manager. See :meth:`__init__` for what can be chosen."""

    def __init__(
        self,
        guests: int = 2,
        kernel: str | Path = DEFAULT_KERNEL,
        hcas_per_guest: int = 1,
        *,
        guest: GuestConfig | None = None,
        card: CardConfig | None = None,
        guest_cards: Sequence[Sequence[CardConfig]] | None = None,
        rack: RackConfig | None = None,
        sm: str = EMBEDDED,
        spare_hcas: int = 0,
        modules_dir: Path | None = None,
        extra_modules: Sequence[str] = (),
        extra_packages: Sequence[str] = (),
        suite: str | None = None,
        replaced_modules: Sequence[OwnModule] = (),
        log_dir: str | Path | None = None,
        keep_logs: bool = False,
        live_console: Callable[[str], Sink] | None = None,
        gdb: int | None = None,
        schedule: Schedule | None = None,
        rack_factory: RackFactory | None = None,
        record: str | Path | None = None,
        record_bytes: int | None = None,
        progress: Progress | None = None,
        cache: Cache | None = None,
    ) -> None:
        """Describe a lab; nothing happens before :meth:`start` (or `with`).

        `guest` says what each machine is like, `card` what each card is like, `rack` what the fabric is like.
        `guest_cards`: the cards of each guest, for guests whose cards differ; then `hcas_per_guest` is not looked at.
        `sm`: who is to manage the subnet: "embedded", our manager in the switch, or "opensm@g0", OpenSM in that guest,
        which is started when the guests are up; then M_Keys are off, unless `rack` has one that OpenSM is told.
        `spare_hcas`: cards that are plugged into no guest, behind the others in :attr:`hcas`. `kernel`: a version, a
        build tree, a folder or archive with a kernel, or a bzImage, whose modules are in `modules_dir`;
        `extra_modules`, `extra_packages`: kernel modules, and Debian packages (nothing of them is run) or sets of them
        (:mod:`vhca.lab.sets`), that guests get beside the usual ones; `suite`: of Debian, that all packages of guests
        are from, such as forky; `replaced_modules`: files that take the place of the kernel's modules of their
        names (:func:`vhca.lab.own_module` makes one). `log_dir`: where logs go; they stay there. They tell
        what is in guests' memory: the folder is made for its owner alone, and one that somebody else owns or may write
        to is refused. Without it they go to a temporary folder, removed after a run that did not fail unless
        `keep_logs`. `live_console`: called with a guest's name; what it returns is called with what the console prints,
        as it comes. `gdb`: let gdb attach to guest i at port `gdb` + i of the loopback, which any user of the host can
        reach; 0: at a private socket (:meth:`gdb_address`). `schedule`: what happens to cables, from when all ports are
        ACTIVE (:func:`vhca.fabric.schedule.read` reads one). `rack_factory`: makes another device side than
        :class:`vhca.chip.rack.Rack`, such as one in another process. `record`: a folder for a recording of each card,
        of `record_bytes` at most (256 MiB if that is None), for `vhca replay`; recorded cards work with the engine in
        Python alone. See docs/replay.md.
        """
        if guests < 1 or guests > 1000:
            raise LabError(f"{guests} guests: not a number of guests", "give 1 to 1000")
        usual = card if card is not None else CardConfig()
        if guest_cards is None:
            guest_cards = [[usual] * hcas_per_guest] * guests
        elif len(guest_cards) != guests:
            raise LabError(f"{guests} guests, and cards for {len(guest_cards)}", "give each guest a list, empty or not")
        for count in (hcas_per_guest, *map(len, guest_cards)):
            if count < 0 or count > 16:
                raise LabError(f"{count} cards per guest: not possible", "give 0 to 16")
        from vhca.chip.rack import MAX_CARDS

        if rack is not None and rack.topology is not None:
            guest_cards = [_placed(f"g{index}", configs, rack.topology) for index, configs in enumerate(guest_cards)]
        guest_cards = [_named(f"g{index}", configs) for index, configs in enumerate(guest_cards)]
        cards = [config for configs in guest_cards for config in configs] + [usual] * spare_hcas
        self.recordings: Recordings | None = None
        if record is not None:
            cards = self._recorded(cards, Path(record), record_bytes)
        self._manager = opensm.guest_of(sm, guests)
        self.rack_config = rack if rack is not None else RackConfig()
        if self._manager is not None:
            self.rack_config = opensm.with_heirs(self.rack_config, [len(own) for own in guest_cards], self._manager)
        if self.rack_config.topology is None and len(cards) > MAX_CARDS:
            raise LabError(
                f"{len(cards)} cards: one switch joins them, and it has {MAX_CARDS} ports", "take fewer guests or cards"
            )
        self.guest_config = (guest if guest is not None else GuestConfig()).checked()
        if self.guest_config.root is not None and (extra_packages or suite is not None):
            raise LabError(
                f"packages are added to guests' own system, and {self.guest_config.root} takes its place",
                "install them in that root, or leave it out",
            )
        self.guest_count = guests
        self.kernel_spec = kernel
        self.guests: list[Guest] = []
        self.opensm: Process | None = None
        self.rack: RackLike | None = None
        self.prepared: Prepared
        self.accelerator = "tcg"
        self.log_dir = Path()
        self._cards = cards
        self._cards_of_guest = [len(configs) for configs in guest_cards]
        self._live_console = live_console
        self._gdb = gdb
        self._wanted_log_dir = Path(log_dir) if log_dir is not None else None
        self._keep_logs = keep_logs
        self._modules_dir = modules_dir
        self._extra_modules = extra_modules
        self._schedule = schedule
        self._extra_packages = extra_packages
        self._suite = suites.checked(suite)
        self._replaced_modules = replaced_modules
        self._rack_factory = rack_factory or self._own_rack
        self._progress = progress if progress is not None else Progress()
        self._cache = cache if cache is not None else Cache()
        self._network: Network | None = None
        self._kept: kept.Kept | None = None
        self._socket_dir: Path | None = None
        self._started = False
        self._failed = False
        self._teardown = threading.Lock()

    def _recorded(self, cards: list[CardConfig], folder: Path, most: int | None) -> list[CardConfig]:
        """The cards, recorded into this folder."""
        from vhca.replay.file import LIMIT_BYTES
        from vhca.replay.recorder import Recordings

        self.recordings = Recordings(folder.expanduser().absolute(), LIMIT_BYTES if most is None else most)
        return [self.recordings.recorded(card) for card in cards]

    def _own_rack(self, cards: Sequence[CardConfig], directory: Path) -> RackLike:
        from vhca.chip.rack import Rack

        return Rack(cards, directory, self.rack_config)

    @property
    def hcas(self) -> Sequence[Hca]:
        """All cards, guest by guest, then the spare ones."""
        return self.rack.hcas if self.rack is not None else []

    @property
    def fabric(self) -> LiveFabric:
        """The fabric between the cards; `LabError` while there is none, in a lab without cards or not started."""
        fabric = self.rack.fabric if self.rack is not None else None
        if fabric is None:
            raise LabError("this lab has no fabric", "it takes a lab that was started and has cards of this process")
        return fabric

    def faults(self, card: str) -> LiveFaults:
        """What is to go wrong inside a card: h0, g0/1, or g0 for the first one of guest g0; see docs/faults.md.

        :raises LabError: there is no such card, or it is out of reach, in another process.
        """
        reachable = self._faults_of_cards()
        for faults in reachable:
            if card in faults.names:
                return faults
        there = ", ".join("/".join(faults.names) for faults in reachable)
        raise LabError(f"there is no card {card} in this lab that could be told", f"there are {there or 'none'}")

    def clear_faults(self) -> None:
        """Take away all rules inside cards."""
        for faults in self._faults_of_cards():
            faults.clear()

    def look_for_findings(self, level: str | None) -> None:
        """Let all cards look for what their guests do wrong with objects: "normal", "pedantic"; docs/findings.md.

        None: as strictly as their descriptions say. ValueError: there is no such strictness.
        """
        for card in self._own_cards():
            card.keep_lives(card.config.findings if level is None else level)

    def findings(self) -> tuple[Finding, ...]:
        """What the guests did wrong with objects of their cards, card by card."""
        return tuple(finding for card in self._own_cards() for finding in card.findings())

    def _own_cards(self) -> list[Card]:
        """The cards that are in this process."""
        from vhca.chip.card import Card

        return [card for card in self.hcas if isinstance(card, Card)]

    def _faults_of_cards(self) -> list[LiveFaults]:
        from vhca.chip.live_faults import LiveFaults

        found = [getattr(hca, "faults", None) for hca in self.hcas]
        return [faults for faults in found if isinstance(faults, LiveFaults)]

    def gdb_address(self, index: int) -> str:
        """Where this guest waits for gdb, as gdb's `target remote` takes it; empty if it does not."""
        return debug.gdb_address(self._gdb, index, self._socket_dir) if self._gdb is not None else ""

    def boot_report(self, command_s: float) -> list[str]:
        """Lines that tell how the kernel was entered, and where the time of each guest's first boot went.

        `command_s`: when it all began, on the monotonic clock.
        """
        table = boot_times.table(command_s, {guest.name: guest.boot_times for guest in self.guests})
        return [f"kernel {self.prepared.kernel.release}: {self.prepared.boot.how}", *table]

    # ---- life ----
    def start(self) -> Self:
        """Prepare what is missing, start the cards, boot the guests and wait until all are up."""
        if self._started:
            raise LabError("this lab was started before", "make a new one")
        self._started = True
        self.prepared = prepare(
            self._progress,
            self.kernel_spec,
            modules_dir=self._modules_dir,
            extra_modules=self._extra_modules,
            extra_packages=self._extra_packages,
            suite=self._suite,
            needed=self.guest_config.modules(),
            replaced_modules=self._replaced_modules,
            loaded_modules=self.guest_config.insmod,
            cache=self._cache,
        )
        self.accelerator = machine.accelerator()
        _LIVING.add(self)
        try:
            self._make_folders()
            if self.guest_config.keep is not None:
                over = self.guest_config.root or f"packages of {self._suite}"
                self._kept = kept.claim(self._cache, self.guest_config.keep, str(over))
            self._start_rack()
            self._start_guests()
            cpus = self.guest_config.cpus
            if cpus > 1 and (missing := debug.processors_missing(self.guests[0], cpus)):
                self._progress.say(missing)  # once: all have the same kernel
            if self.guest_config.autoload:
                self.wait_active(self.guest_config.boot_timeout_s)
            for guest in self.guests:
                guest.boot_times.end(boot_times.ACTIVE)
            if self._manager is not None:
                self.start_opensm()
            if self._schedule is not None:
                self.fabric.play(self._schedule)
        except BaseException:
            self.stop(failed=True)
            raise
        return self

    def _make_folders(self) -> None:
        if self._wanted_log_dir is not None:
            self.log_dir = folders.for_logs(self._wanted_log_dir)
        else:
            self.log_dir = folders.for_new_logs()
        self._socket_dir = folders.for_sockets()
        if self.recordings is not None:
            self.recordings.folder = folders.for_logs(self.recordings.folder)
            self._progress.say(
                f"what the cards are told and do goes to {self.recordings.folder}, with the engine in Python;"
                " `vhca replay` plays it"
            )

    def _start_rack(self) -> None:
        if self._cards:
            assert self._socket_dir is not None
            rack = self._rack_factory(self._cards, self._socket_dir)
            rack.start()
            self.rack = rack

    def _start_guests(self) -> None:
        self._network = Network(self.guest_count)
        hcas = iter(self.hcas)
        around = Surroundings(
            self.prepared, self.guest_count, self.log_dir, self.accelerator, self._live_console, self._kept
        )
        for index, end in enumerate(self._network.ends):
            address = self.gdb_address(index)
            own = list(islice(hcas, self._cards_of_guest[index]))
            guest = Guest(index, self.guest_config, around, own, address)
            self.guests.append(guest)
            guest.start(end)
            if address:
                self._progress.say(debug.gdb_advice(guest.name, address, self.prepared.kernel))
        with ThreadPoolExecutor(max_workers=self.guest_count) as pool:
            waits = [pool.submit(guest.bring_up) for guest in self.guests]
            for wait in waits:
                try:
                    wait.result()
                except BaseException:
                    for guest in self.guests:  # the others need not be waited for
                        guest.kill()
                    raise

    def wait_active(self, timeout_s: float = 60.0) -> None:
        """Wait until the port of every card whose guest is running is ACTIVE; `GuestError` if it takes longer."""
        if self.rack is None:
            return
        try:
            self.rack.wait_active(timeout_s)
        except Exception as error:
            raise GuestError(f"the ports did not become ACTIVE: {error} (logs in {self.log_dir})") from error

    def start_opensm(self) -> Process:
        """Start OpenSM in the guest that is to manage the subnet, and wait until it does; gives its process.

        :raises LabError: this lab has no such guest.
        :raises GuestError: OpenSM does not become master.
        """
        if self._manager is None:
            raise LabError("this lab is to be managed by the switch", "make it with sm='opensm@g0'")
        mtu = min((card.mtu for card in self._cards), default=MTU_BYTES)
        self.opensm = opensm.start(self.guests[self._manager], self.fabric, self.rack_config, mtu)
        return self.opensm

    def stop(self, failed: bool = False) -> None:
        """Take everything down. `failed` keeps the logs. May be called again, and from any thread."""
        with self._teardown:
            _LIVING.discard(self)
            self._failed = self._failed or failed
            for guest in self.guests:
                guest.write_back()
            for guest in self.guests:
                guest.kill()
            if self._kept is not None:
                self._kept.close()
            if self.rack is not None:
                with contextlib.suppress(Exception):
                    self.rack.stop()
            if self.recordings is not None:
                self.recordings.close()
            if self._network is not None:
                self._network.close()
            if self._socket_dir is not None:
                self._keep_device_logs(self._socket_dir)
                shutil.rmtree(self._socket_dir, ignore_errors=True)
                self._socket_dir = None
            if self._wanted_log_dir is None and self.log_dir != Path() and self.log_dir.exists():
                if self._failed or self._keep_logs:
                    self._progress.insist(f"the logs of this run are in {self.log_dir}")
                else:
                    shutil.rmtree(self.log_dir, ignore_errors=True)

    def _keep_device_logs(self, folder: Path) -> None:
        """Move what the cards wrote beside their sockets to where the logs are."""
        for path in folder.iterdir():
            if path.is_file():
                with contextlib.suppress(OSError):
                    shutil.move(path, self.log_dir / path.name)

    def mark_failed(self) -> None:
        """Keep the logs of this run although no exception will reach the lab."""
        self._failed = True

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(failed=kind is not None)


def _placed(guest: str, cards: Sequence[CardConfig], topology: Topology) -> Sequence[CardConfig]:
    """The cards of a guest, the first of which takes the place of the host with the guest's name, if there is one."""
    node = topology.nodes.get(guest)
    if not cards or cards[0].host is not None or node is None or node.kind != "host":
        return cards
    return [replace(cards[0], host=guest), *cards[1:]]


def _named(guest: str, cards: Sequence[CardConfig]) -> Sequence[CardConfig]:
    """The cards of a guest, whose cables are called g0/1, g0/2 ... if they have no other name."""
    return [
        card if card.cable is not None else replace(card, cable=f"{guest}/{number}")
        for number, card in enumerate(cards, 1)
    ]


_LIVING: weakref.WeakSet[Lab] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for lab in list(_LIVING):
        lab.stop(failed=True)
