"""Options: their types, and the options that every command with guests has.

A type either returns a value that fits or raises `argparse.ArgumentTypeError` with a sentence for people.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vhca import DEFAULT_KERNEL
from vhca.cli.fault_options import add_fault_option, guest_cards
from vhca.cli.guest_options import add_extra_options, add_root_options, extras
from vhca.cli.kernel_options import add_bench_options, guest_settings
from vhca.cli.record_options import add_record_options, record_bytes
from vhca.subnet.engines import ENGINES

if TYPE_CHECKING:
    from vhca.chip.card_profiles import Profile
    from vhca.fabric.topology import Topology
    from vhca.lab import CardConfig, GuestConfig, Lab, Progress, RackConfig
    from vhca.subnet.partitions import Partitions


def whole(low: int, high: int) -> Callable[[str], int]:
    """A type for whole numbers in `low` .. `high`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not in {low} .. {high}")
        return value

    return convert


_MEMORY_UNITS = {"": 1 << 20, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def memory(low_mib: int, high_mib: int = 1 << 20) -> Callable[[str], int]:
    """A type for an amount of memory, in MiB: `2048`, `2048M`, `2G`, `1.5GiB`; units are powers of 1024."""

    def convert(text: str) -> int:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
        size = float(match[1]) * _MEMORY_UNITS[match[2]] / (1 << 20) if match else math.nan
        if not math.isfinite(size) or size != int(size):
            raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory in whole MiB: give 2048, 2048M or 2G")
        if not low_mib <= size <= high_mib:
            raise argparse.ArgumentTypeError(f"{text} is not in {low_mib}M .. {high_mib}M")
        return int(size)

    return convert


def kernel_arguments(text: str) -> str:
    """A type for words of the kernel's command line."""
    if not text.strip() or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is nothing that can stand on a kernel's command line")
    return text.strip()


def seconds(text: str) -> float:
    """A type for a time that is more than nothing, in seconds; `90`, `1.5`, `2m` and `1h` are understood."""
    factor = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:], 0.0)
    try:
        value = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: give seconds such as 90, or 2m, or 1h")
    return value


def duration(text: str) -> str:
    """A type for a time with its unit, such as 2us or 1.5s; it stays a text."""
    from vhca.fabric import quantities

    try:
        quantities.time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def line_rate(text: str) -> str:
    """A type for the rate of a cable, such as 25Gbps, or 0; it stays a text."""
    from vhca.fabric import quantities

    if text != "0":
        try:
            quantities.rate(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return text


def bit_error_rate(text: str) -> float:
    """A type for a bit error rate, 0 to 0.1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 0.1:
        raise argparse.ArgumentTypeError(f"{text!r} is no bit error rate: give 0 to 0.1, such as 1e-9")
    return value


def existing_folder(text: str) -> Path:
    """A type for a folder that is there."""
    path = Path(text).expanduser()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return path


def capture_file(text: str) -> Path:
    """A type for a pcapng file that can be written: its folder is there and its name ends as it should."""
    path = Path(text).expanduser()
    if path.suffix != ".pcapng":
        raise argparse.ArgumentTypeError(f"{text!r} must end in .pcapng")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path.resolve()


def management_key(text: str) -> int:
    """A type for an M_Key: 64 bits, decimal or with 0x."""
    try:
        value = int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: give 0, or a key such as 0x1234") from None
    if not 0 <= value < 1 << 64:
        raise argparse.ArgumentTypeError(f"{text} does not have 64 bits")
    return value


def add_mkey_option(parser: argparse._ActionsContainer) -> None:
    """Give a command with a fabric the option that says how its ports are protected."""
    parser.add_argument(
        "--mkey",
        type=management_key,
        metavar="KEY",
        help="one M_Key for all ports, for your own tools (smpquery -y KEY); 0: no protection, guests may change each"
        " other's ports (default: a secret one for each port)",
    )


def add_topology_options(parser: argparse._ActionsContainer) -> None:
    """Give a command with a fabric the options that describe it."""
    parser.add_argument(
        "--topology",
        type=topology_file,
        metavar="FILE",
        help="switches, cables and hosts of the fabric: TOML, or what ibnetdiscover prints (`vhca fabric make --help`);"
        " cards take the places of the hosts called g0, g1, ... or h0, h1, ..., else of the first ones; the others are"
        " simulated (default: one switch)",
    )
    parser.add_argument(
        "--routing",
        choices=ENGINES,
        default=ENGINES[0],
        help="how the subnet manager leads packets: by the fewest switches, up and then down (no credit loops), or so"
        " with the load of a fat tree spread (default: %(default)s)",
    )


def manager(text: str) -> str:
    """A type for who manages a lab's subnet: `embedded`, or `opensm@g0`."""
    if not re.fullmatch(r"embedded|opensm@g\d{1,4}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: there are embedded, and opensm@g0 (or another guest)")
    return text


def add_manager_options(parser: argparse._ActionsContainer, *, guests: bool) -> None:
    """Give a command with a fabric the options about its subnet manager; `guests`: whether it boots guests itself."""
    embedded = "who manages the subnet: embedded, our manager in the switch; "
    if guests:
        parser.add_argument(
            "--sm",
            type=manager,
            default="embedded",
            metavar="embedded|opensm@gN",
            help=f"{embedded}opensm@g0, OpenSM in that guest, with M_Keys off unless --mkey gives one"
            " (default: %(default)s)",
        )
    else:
        parser.add_argument(
            "--sm",
            choices=("embedded", "any"),
            default="embedded",
            help=f"{embedded}any, whoever has the highest priority, with M_Keys off unless --mkey gives one"
            " (default: %(default)s)",
        )
    parser.add_argument(
        "--sm-priority",
        type=whole(0, 15),
        metavar="N",
        help="of the embedded manager: where there is another one, that with the higher priority is master"
        " (default: 14, 1 if it is to hand over)",
    )
    parser.add_argument(
        "--partitions",
        type=partition_description,
        metavar="FILE",
        help="who may speak to whom, as in OpenSM's partitions.conf; cards by their names, too: `one=0x8001, ipoib :"
        " h0=full, h1=full ;` (default: everybody to everybody)",
    )
    parser.add_argument(
        "--lids",
        type=Path,
        metavar="FILE",
        help="give ports the LIDs that this file has for them, as OpenSM's guid2lid does; written at the end",
    )
    parser.add_argument(
        "--lmc", type=whole(0, 7), default=0, metavar="N", help="each card has 2**N LIDs (default: %(default)s)"
    )


def partition_description(text: str) -> Partitions:
    """A type for a file that describes partitions."""
    from vhca.subnet.partition_file import PartitionError, read

    try:
        return read(Path(text).expanduser().read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"cannot read {text}: {error}") from None
    except PartitionError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def topology_file(text: str) -> Topology:
    """A type for a file that describes a fabric."""
    from vhca.fabric.topology import TopologyError
    from vhca.fabric.topology_files import load

    try:
        return load(Path(text).expanduser())
    except TopologyError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_lab_options(parser: argparse.ArgumentParser, guests: int) -> None:
    """Give a command the options that describe guests, their kernel and their cards."""
    group = parser.add_argument_group("guests")
    group.add_argument(
        "--guests", type=whole(1, 64), default=guests, metavar="N", help="how many to boot (default: %(default)s)"
    )
    group.add_argument(
        "--hcas", type=whole(0, 16), default=1, metavar="N", help="cards in each guest (default: %(default)s)"
    )
    add_kernel_options(group)
    add_extra_options(group)
    add_mkey_option(group)
    add_topology_options(group)
    add_manager_options(group, guests=True)
    group.add_argument(
        "--memory",
        type=memory(384),
        default=1024,
        metavar="SIZE",
        help="each guest's: MiB, or with a unit: 768M, 2G (default: %(default)s)",
    )
    add_card_memory_option(group)
    add_profile_options(group)
    add_fault_option(group)
    group.add_argument("--cpus", type=whole(1, 64), default=1, metavar="N", help="each guest's (default: %(default)s)")
    group.add_argument(
        "--share",
        type=existing_folder,
        metavar="DIR",
        help="a host folder that every guest sees at /mnt/share, and may change",
    )
    add_root_options(group)
    group.add_argument(
        "--no-autoload", action="store_true", help="boot without loading mlx5_ib and the RDMA user interfaces"
    )
    group.add_argument(
        "--boot-timeout", type=seconds, default=120.0, metavar="S", help="how long a boot may take (default: 120)"
    )
    add_machine_options(group)
    add_bench_options(group)
    add_debug_options(group)
    logs = parser.add_argument_group("evidence")
    add_capture_options(logs)
    add_record_options(logs, memory(1))
    logs.add_argument("--keep-logs", action="store_true", help="keep the logs of a run that did not fail, too")
    logs.add_argument("--log-dir", type=Path, metavar="DIR", help="keep the logs in this folder, always")


def add_machine_options(group: argparse._ActionsContainer) -> None:
    """Give a command the options that go to the guests' kernel and to QEMU as they are."""
    group.add_argument(
        "--append",
        type=kernel_arguments,
        action="append",
        default=[],
        metavar="TEXT",
        help="add this to the kernel's command line; may be given again (--append 'ftrace=function loglevel=7')",
    )
    group.add_argument(
        "--qemu-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="give QEMU this argument, in every guest; may be given again (--qemu-arg=-d --qemu-arg=guest_errors)",
    )


def add_debug_options(group: argparse._ActionsContainer) -> None:
    """Give a command the options that show and stop guests while they run."""
    group.add_argument(
        "--console",
        action="store_true",
        help="show on standard error what the guests' consoles print, as it comes; of several, with names before it",
    )
    group.add_argument(
        "--gdb",
        type=whole(1, 65535 - 64),
        nargs="?",
        const=0,
        metavar="PORT",
        help="let gdb attach, and print how: at a private socket, or for guest I at PORT + I of 127.0.0.1, which"
        " every user of this host can reach (a guest that gdb holds does not stop time-outs: raise --boot-timeout)",
    )


def live_console(options: argparse.Namespace, line_end: str = "\n") -> Callable[[str], Callable[[bytes], None]] | None:
    """What `--console` makes of the console of a guest of that name; None without it."""
    if not options.console:
        return None

    def of_guest(name: str) -> Callable[[bytes], None]:
        from vhca.lab.debug import LiveConsole

        def show(data: bytes) -> None:
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()

        return LiveConsole(show, f"{name}: " if options.guests > 1 else "", line_end)

    return of_guest


def add_capture_options(parser: argparse._ActionsContainer) -> None:
    """Give a command with a fabric the options that record its packets."""
    parser.add_argument(
        "--capture",
        type=capture_file,
        metavar="FILE.pcapng",
        help="write every InfiniBand packet to this file, once, where it was sent; what a card sends to itself, too"
        " (`vhca tshark -r FILE.pcapng` shows it)",
    )
    parser.add_argument(
        "--capture-port",
        action="append",
        metavar="NAME",
        help="record here only: a card (h0, h1, ...); with a topology also a port of a switch (leaf1/3), a node, or"
        " all, every cable; may be given several times",
    )
    parser.add_argument(
        "--capture-both-ends",
        action="store_true",
        help="record each packet also where it arrives, behind all faults: one that is lost on the way is there once",
    )
    parser.add_argument(
        "--capture-records",
        action="store_true",
        help="record what the cards do, too: commands, doorbells, work requests, completions, events, interrupts",
    )


def card_config(options: argparse.Namespace) -> CardConfig:
    """What the options say of each card: its kind, what it has less of, its memory, and faults of all cards."""
    from vhca.lab import CardConfig

    mib: int | None = options.card_memory
    faults = tuple(rule for card, rule in options.fault if card is None)
    card = CardConfig() if options.profile is None else options.profile.card
    capabilities = {**card.capabilities, **dict(options.set)}
    more = {} if (level := getattr(options, "findings", "off")) == "off" else {"findings": level}
    return replace(card, memory=None if mib is None else mib << 20, faults=faults, capabilities=capabilities, **more)


def card_profile(text: str) -> Profile:
    """A type for the kind of cards."""
    from vhca.chip.card_profiles import ProfileError, find

    try:
        return find(text)
    except ProfileError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def card_capability(text: str) -> tuple[str, int]:
    """A type for a capability and its number."""
    from vhca.chip.card_profiles import ProfileError, capability

    try:
        return capability(text)
    except ProfileError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_profile_options(parser: argparse._ActionsContainer) -> None:
    """Give a command with cards the options that say of which kind they are."""
    parser.add_argument(
        "--profile",
        type=card_profile,
        metavar="NAME",
        help="of which kind cards are: cx4, cx5, cx6, cx6dx, cx7, or a file (`vhca cards` lists them)",
    )
    parser.add_argument(
        "--set",
        type=card_capability,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="let cards have less of a capability: --set odp=0, --set dct=0, --set log_max_qp=12; may be given again",
    )


def rack_config(options: argparse.Namespace, cards: int) -> RackConfig:
    """What the options say of a rack of so many cards: `--mkey` and those that record packets.

    :raises LabError: they do not fit together.
    """
    from vhca.lab import CaptureConfig, LabError, RackConfig

    ports: list[str] | None = options.capture_port
    if options.capture is None and (ports or options.capture_both_ends or options.capture_records):
        raise LabError("there is nothing to capture to", "name a file with --capture FILE.pcapng")
    for name in ports or ():
        node = name.rpartition("/")[0] or name
        known = name == "all" or (options.topology is not None and node in options.topology.nodes)
        if not known and name not in {f"h{index}" for index in range(cards)}:
            there = f"there are h0 to h{cards - 1}" if cards else "there are none"
            raise LabError(f"--capture-port {name}: there is no such card", there)
    capture = None
    if options.capture is not None:
        capture = CaptureConfig(options.capture, ports, options.capture_both_ends, options.capture_records)
    heirs: Literal["any"] | None = "any" if options.sm == "any" else None
    return RackConfig(
        mkey=options.mkey or 0 if heirs else options.mkey,
        topology=options.topology,
        routing=options.routing,
        capture=capture,
        lmc=options.lmc,
        lids=options.lids,
        partitions=options.partitions,
        heirs=heirs,
        sm_priority=options.sm_priority,
    )


def add_kernel_bug_options(parser: argparse.ArgumentParser) -> None:
    """Give a command the options that say what a complaint of a guest's kernel means for its exit status."""
    group = parser.add_argument_group("the kernel's word")
    group.add_argument(
        "--fail-on-kernel-bug",
        action=argparse.BooleanOptionalAction,
        default=os.environ.get("CI", "").lower() not in ("", "0", "false"),
        help="end with 122 if a guest's kernel reported a bug (BUG, KASAN, Oops, WARNING, lockdep, stall, hung task,"
        " DMA-API); reports are printed in any case (default: on if CI is set in the environment)",
    )
    group.add_argument(
        "--allow-kernel-bug",
        type=expression,
        action="append",
        default=[],
        metavar="REGEX",
        help="a report whose headline this matches somewhere is expected (may be given more than once)",
    )


def expression(text: str) -> re.Pattern[str]:
    """A type for a regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def add_card_memory_option(parser: argparse._ActionsContainer) -> None:
    """Give a command the option that limits what a guest's objects on a card take of the host."""
    parser.add_argument(
        "--card-memory",
        type=memory(16),
        metavar="SIZE",
        help="what the objects of one card's guest may take of this process: MiB, or with a unit: 512M, 1G (default: a"
        " quarter of the guest's memory, 256M to 2G)",
    )


def add_kernel_options(group: argparse._ActionsContainer) -> None:
    """Give a command the options that name a kernel."""
    group.add_argument(
        "--kernel",
        default=DEFAULT_KERNEL,
        metavar="SPEC",
        help="a version (6.19, fetched as a package; `vhca kernels` lists them), a kernel build tree, a package (.deb,"
        " .rpm) or a folder of them, a folder or .tar with usr/lib/modules/VERSION and its image (there, or in boot/),"
        " or a bzImage (default: %(default)s)",
    )
    group.add_argument(
        "--modules", type=existing_folder, metavar="DIR", help="modules for a bzImage, as installed or in their tree"
    )


def guest_config(options: argparse.Namespace) -> GuestConfig:
    """What the options say of each guest."""
    from vhca.lab import GuestConfig

    return GuestConfig(
        memory_mib=options.memory,
        cpus=options.cpus,
        share=options.share,
        root=options.root,
        keep=options.keep,
        autoload=not options.no_autoload,
        boot_timeout_s=options.boot_timeout,
        kernel_arguments=" ".join(options.append),
        qemu_arguments=options.qemu_arg,
        **guest_settings(options),
    )


def make_lab(options: argparse.Namespace, progress: Progress, **more: Any) -> Lab:
    """A lab, not started yet, as the options describe it."""
    from vhca.lab import Lab

    more.setdefault("live_console", live_console(options))
    if any(card is not None for card, _ in options.fault):
        more.setdefault("guest_cards", guest_cards(options, card_config(options)))
    return Lab(
        guests=options.guests,
        kernel=options.kernel,
        hcas_per_guest=options.hcas,
        guest=guest_config(options),
        card=card_config(options),
        rack=rack_config(options, options.guests * options.hcas),
        sm=options.sm,
        log_dir=options.log_dir,
        modules_dir=options.modules,
        **extras(options),
        replaced_modules=options.replace_module,
        keep_logs=options.keep_logs,
        gdb=options.gdb,
        record=options.record,
        record_bytes=record_bytes(options),
        progress=progress,
        **more,
    )
