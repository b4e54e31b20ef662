"""OpenSM, a subnet manager of the trade, as the master of a lab's subnet: in which guest, told what, and how it starts.

It is Debian's package in a guest, as it is. It waits in standby until the embedded manager of the switch, which has a
lower priority, hands over to it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vhca.chip.rack_config import RackConfig
from vhca.lab.errors import GuestError, LabError, last_lines
from vhca.subnet import partition_file
from vhca.wire.smp import mtu_code

if TYPE_CHECKING:
    from vhca.chip.live_fabric import LiveFabric
    from vhca.lab.agent_process import Process
    from vhca.lab.guest import Guest

EMBEDDED: Final = "embedded"
PRIORITY: Final = 14
START_S: Final = 60.0
LOG: Final = "/var/log/opensm.log"
_FOLDER: Final = "/etc/opensm"
_RATE_100_GBPS: Final = 16


def guest_of(sm: str, guests: int) -> int | None:
    """The guest that `opensm@gN` names; None for the embedded manager.

    :raises LabError: it is neither, or there is no such guest.
    """
    if sm == EMBEDDED:
        return None
    named = re.fullmatch(r"opensm@g(\d{1,4})", sm)
    if named is None:
        raise LabError(f"{sm!r}: there is no such subnet manager", "give embedded, or opensm@g0 (or another guest)")
    if int(named[1]) >= guests:
        raise LabError(f"{sm}: there is no such guest", f"there are g0 to g{guests - 1}")
    return int(named[1])


def with_heirs(config: RackConfig, cards: Sequence[int], guest: int) -> RackConfig:
    """The description of a rack whose subnet is managed by a guest; `cards` has the number of cards of each.

    :raises LabError: that guest has no card.
    """
    if not cards[guest]:
        raise LabError(f"opensm@g{guest}: this guest has no card", "give it one")
    first = sum(cards[:guest])
    return replace(config, heirs=[f"h{first}"], mkey=config.mkey or 0)


def start(guest: Guest, fabric: LiveFabric, config: RackConfig, mtu: int) -> Process:
    """Start OpenSM at the first card of a guest and wait until it manages the subnet.

    :raises GuestError: it ends, or does not become master in time.
    """
    heir = (config.heirs or [""])[0]
    partitions = fabric.partitions()
    described = partition_file.write(partitions) if partitions.partitions else _one_partition(mtu)
    settings = [f"sm_priority {PRIORITY}", f"lmc {config.lmc}", f"partition_config_file {_FOLDER}/partitions.conf"]
    if partitions.has_both:
        settings.append("allow_both_pkeys TRUE")
    if config.mkey:
        settings += [f"m_key {config.mkey:#x}", "m_key_protection_level 2", "m_key_lookup FALSE"]
    for name, text in (("opensm.conf", "\n".join(settings) + "\n"), ("partitions.conf", described)):
        guest.run(
            ["sh", "-c", f"mkdir -p {_FOLDER} /var/cache/opensm /var/log && cat > {_FOLDER}/{name}"],
            stdin=text,
            check=True,
        )
    process = guest.popen(["opensm", "-F", f"{_FOLDER}/opensm.conf", "-f", LOG])
    deadline_s = time.monotonic() + START_S
    while not _manages(fabric, heir):
        if process.poll() is not None or time.monotonic() > deadline_s:
            log = process.stdout.read_all().decode(errors="replace") if process.poll() is not None else ""
            log += guest.run(["tail", "-n", "20", LOG]).stdout
            raise GuestError(f"{guest.name}: OpenSM does not manage the subnet:\n{last_lines(log, 20)}")
        time.sleep(0.1)
    return process


def _manages(fabric: LiveFabric, heir: str) -> bool:
    """Does every port that has a link know the manager at that card, and is active?"""
    if fabric.manager_state() != "standby" or not fabric.active():
        return False
    lids = {fabric.sm_lid(port.name) for port in fabric.status() if port.up}
    return lids == {fabric.lid(heir)}


def _one_partition(mtu: int) -> str:
    """Everybody in the default partition, with a group for IPoIB like that of the embedded manager."""
    return f"Default=0x7fff, ipoib, mtu={mtu_code(mtu)}, rate={_RATE_100_GBPS} : ALL=full ;\n"
