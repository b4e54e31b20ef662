"""The kernel options that a guest needs, as a fragment for `merge_config.sh`, each group with its reason.

A test looks every symbol up in the configuration of a packaged kernel, which boots as a guest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Group:
    """Options that serve one purpose; by symbol without `CONFIG_`. Those that are `modular` may be modules as well."""

    purpose: str
    options: Mapping[str, str]
    modular: bool = False


def _all(value: str, symbols: str) -> dict[str, str]:
    return dict.fromkeys(symbols.split(), value)


GUEST: Final = (
    Group(
        "a guest of this project boots",
        _all(
            "y",
            "64BIT SMP HYPERVISOR_GUEST PVH PRINTK TTY MODULES MODULE_UNLOAD BLK_DEV_INITRD RD_GZIP BINFMT_ELF"
            " BINFMT_SCRIPT DEVTMPFS TMPFS SHMEM PROC_FS SYSFS SERIAL_8250 SERIAL_8250_CONSOLE",
        ),
    ),
    Group(
        "its card's slot, where it can be plugged and pulled",
        _all("y", "PCI PCI_MSI ACPI PCIEPORTBUS HOTPLUG_PCI HOTPLUG_PCI_PCIE"),
    ),
    Group(
        "networks",
        _all("y", "NET INET UNIX NETDEVICES NETWORK_FILESYSTEMS VIRTIO_MENU"),
    ),
    Group(
        "the agent that runs commands, the guests' own network, shared folders",
        _all("y", "VIRTIO_PCI VIRTIO_CONSOLE VIRTIO_NET IPV6 PACKET NET_9P NET_9P_VIRTIO 9P_FS"),
        modular=True,
    ),
    Group(
        "what programs ask of a kernel",
        _all(
            "y",
            "MULTIUSER FUTEX EPOLL EVENTFD SIGNALFD TIMERFD POSIX_TIMERS HIGH_RES_TIMERS FILE_LOCKING AIO"
            " ADVISE_SYSCALLS UNIX98_PTYS HUGETLBFS DEBUG_FS",
        ),
    ),
    Group(
        "the card's drivers, verbs, management datagrams, connections",
        {
            **_all("y", "ETHERNET NET_VENDOR_MELLANOX INFINIBAND_ADDR_TRANS INFINIBAND_ON_DEMAND_PAGING"),
            **_all("m", "MLX5_CORE INFINIBAND MLX5_INFINIBAND INFINIBAND_USER_MAD INFINIBAND_USER_ACCESS"),
        },
    ),
    Group(
        "IP over InfiniBand, and the software device to compare with",
        {**_all("m", "INFINIBAND_IPOIB RDMA_RXE"), **_all("y", "INFINIBAND_IPOIB_CM")},
    ),
)
"""What a guest needs."""

DEBUG: Final = (
    Group(
        "addresses that are wrong",
        {"SLUB_TINY": "n", **_all("y", "KASAN KASAN_GENERIC KASAN_OUTLINE"), "FRAME_WARN": "0"},
    ),
    Group("locks, and sleep where none is allowed", _all("y", "DEBUG_KERNEL PROVE_LOCKING DEBUG_ATOMIC_SLEEP")),
    Group("mappings for DMA that do not pair up", _all("y", "DMA_API_DEBUG")),
    Group("memory that nobody has any more", _all("y", "DEBUG_KMEMLEAK")),
    Group(
        "allocations and commands that fail when asked to",
        _all("y", "FAULT_INJECTION FAULT_INJECTION_DEBUG_FS FAILSLAB FAIL_PAGE_ALLOC"),
    ),
    Group("which code a program reached (fuzzers)", _all("y", "KCOV")),
    Group("messages, events and probes", _all("y", "DYNAMIC_DEBUG FTRACE FTRACE_SYSCALLS KPROBES KPROBE_EVENTS")),
    Group("what a dump of the memory is read by", _all("y", "KEXEC CRASH_DUMP FW_CFG_SYSFS"), modular=True),
    Group("names and lines for gdb and traces", _all("y", "DEBUG_INFO_DWARF5 GDB_SCRIPTS KALLSYMS")),
)
"""What finds faults of a driver, at the price of its speed."""


def fragment(groups: Iterable[Group]) -> str:
    """The text of a fragment: a comment above each group."""
    blocks = []
    for group in groups:
        lines = [f"# {group.purpose}", *(f"CONFIG_{symbol}={value}" for symbol, value in group.options.items())]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def missing(groups: Iterable[Group], config: str) -> list[str]:
    """The options of a `.config` that are less than the groups want, with what they are for."""
    given = dict(line.split("=", 1) for line in config.splitlines() if line.startswith("CONFIG_") and "=" in line)
    found = []
    for group in groups:
        for symbol, wanted in group.options.items():
            have = given.get(f"CONFIG_{symbol}", "n")
            enough = (wanted, "y", "m") if group.modular else (wanted, "y") if wanted == "m" else (wanted,)
            if have not in enough:
                found.append(f"CONFIG_{symbol}: {have}, wanted {wanted} ({group.purpose})")
    return found
