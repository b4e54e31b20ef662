"""The description of a rack: what its cards and its fabric are to be like. Knows nothing of how they are made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from vhca.hw.findings import strictness
from vhca.hw.identity import BOARD_ID, DEVICE_ID, FW_VERSION, MTU_BYTES
from vhca.management.link_speed import USUAL, LinkSpeed
from vhca.subnet.engines import Engine

if TYPE_CHECKING:
    # Not at run time: a session of pytest loads this description whether it wants a card or not.
    from vhca.chip.middleware import Middleware
    from vhca.fabric.capture import CaptureLimits
    from vhca.fabric.capture_filter import CaptureFilter
    from vhca.fabric.capture_writer import Ring
    from vhca.fabric.line import LineConfig
    from vhca.fabric.topology import Topology
    from vhca.subnet.partitions import Partitions
    from vhca.trunk.rack_file import RackShare

MTUS: Final = (2048, 4096)
"""Of a port, in bytes. IPoIB's broadcast group has that of the smallest: all ports of a subnet must be able to join."""
BOARD_ID_BYTES: Final = 15
DESCRIPTION_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class CardConfig:
    """What one card of a rack is like. It has one port.

    :ivar firmware: name of the package with its program.
    :ivar memory: bytes of this process that the objects of its guest may take; None: a quarter of the guest's memory,
        256 MiB to 2 GiB. See :class:`vhca.chip.card.Card`.
    :ivar middleware: puts something around its program; see :mod:`vhca.chip.middleware`.
    :ivar node_guid: EUI-64; None: made of the card's name, so that it is the same in every run.
    :ivar port_guid: EUI-64 of the port; None: the one behind the node GUID.
    :ivar description: node description, at most 64 bytes of UTF-8; None: the card's name.
    :ivar mtu: the largest of its port, in bytes: 2048 or 4096.
    :ivar link: the most that its port trains at; a cable of a topology may make it less.
    :ivar device_id: of its PCI function: which card a driver takes it for. It stays what it is.
    :ivar board_id: parameter-set identifier (PSID), 1 to 15 characters of ASCII.
    :ivar fw_version: major, minor and subminor version that it tells of its program.
    :ivar host: the host of the rack's topology whose place it takes, with that one's GUIDs and description where none
        are given here; None: the host with the card's name, else the first that is left. Only with a topology.
    :ivar cable: another name of its cable, such as g0/1, for orders.
    :ivar capabilities: what it has less of than its program offers, by the names of
        :class:`vhca.wire.connectx.caps.CmdHcaCap`: `{"dct": 0, "log_max_qp": 10}`. The program refuses what the card
        then does not have; fields that only describe it, such as its clock's frequency, it tells as they are given.
    :ivar faults: rules of what goes wrong inside it, from the beginning; see docs/faults.md.
    :ivar findings: how strictly it looks for what its guest does wrong with its objects: "off", "normal" or "pedantic";
        see docs/findings.md.

    :raises ValueError: no card can be like that.
    """

    firmware: str = "firmware"
    memory: int | None = None
    middleware: "Middleware | None" = None
    node_guid: int | None = None
    port_guid: int | None = None
    description: str | None = None
    mtu: int = MTU_BYTES
    link: LinkSpeed = USUAL
    device_id: int = DEVICE_ID
    board_id: str = BOARD_ID
    fw_version: tuple[int, int, int] = FW_VERSION
    host: str | None = None
    cable: str | None = None
    capabilities: Mapping[str, int] = field(default_factory=dict)
    faults: Sequence[str] = ()
    findings: str = "off"

    def __post_init__(self) -> None:
        strictness(self.findings)
        for name, guid in (("node_guid", self.node_guid), ("port_guid", self.port_guid)):
            if guid is not None and not 0 < guid < 1 << 64:
                raise ValueError(f"{name} {guid:#x}: not an EUI-64")
        if self.mtu not in MTUS:
            raise ValueError(f"mtu {self.mtu}: a port has one of {', '.join(map(str, MTUS))} bytes")
        if not 0 <= self.device_id < 1 << 16:
            raise ValueError(f"device_id {self.device_id:#x}: it has 16 bits")
        if not (self.board_id.isascii() and 0 < len(self.board_id) <= BOARD_ID_BYTES):
            raise ValueError(f"board_id {self.board_id!r}: 1 to {BOARD_ID_BYTES} characters of ASCII")
        if self.description is not None and len(self.description.encode()) > DESCRIPTION_BYTES:
            raise ValueError(f"description {self.description!r}: more than {DESCRIPTION_BYTES} bytes")
        major, minor, subminor = self.fw_version
        if not (0 <= major < 1 << 8 and 0 <= minor < 1 << 8 and 0 <= subminor < 1 << 16):
            raise ValueError(f"fw_version {self.fw_version}: 8, 8 and 16 bits")


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """A recording of a rack's cables, from before the first packet until the rack stops.

    :ivar path: the pcapng file; one that is there is replaced.
    :ivar ports: the cards to record (h0, h1 ...), and other ends of cables; None for all cards.
    :ivar both_ends: record each packet also where it arrives, behind all faults.
    :ivar records: record what cards tell of themselves: commands, doorbells, work requests, completions ...
    :ivar only: which packets; None: all.
    :ivar limits: where it ends by itself; None: nowhere.
    :ivar ring: several files instead of one; None: one.

    See :class:`vhca.fabric.captures.CaptureChoice`.
    """

    path: Path
    ports: Sequence[str] | None = None
    both_ends: bool = False
    records: bool = False
    only: "CaptureFilter | None" = None
    limits: "CaptureLimits | None" = None
    ring: "Ring | None" = None


@dataclass(frozen=True, slots=True)
class RackConfig:
    """What a rack does beside its cards, each of which has a :class:`CardConfig`.

    :ivar logs: keep a log of each card beside its socket.
    :ivar mkey: one M_Key for all ports, 0 for none; None: a secret one for each, so that tools which send SMPs
        (smpquery, ibnetdiscover) get no answer. See :class:`vhca.fabric.fabric.Fabric`.
    :ivar topology: the switches, cables and hosts of the fabric; None: one switch. Hosts whose place no card takes are
        simulated: they answer managers and nobody else. See docs/topologies.md.
    :ivar routing: how the subnet manager leads packets; see :mod:`vhca.subnet.routing`.
    :ivar lmc: each card has 2**lmc LIDs (0 to 7); where there are several ways, they are spread over them.
    :ivar lids: a file with the LIDs of ports, by GUID, that they are to have again; written when the rack stops.
    :ivar partitions: who may speak to whom, see docs/fabric.md; None: everybody to everybody.
    :ivar heirs: the cards (h0, h1 ...) whose hosts may be the subnet manager instead of ours, or "any"; then that with
        the higher priority is master, ours takes over when it is gone, and M_Keys are no secrets: `mkey` is 0 or a key
        that the other one knows. None: ours is master whatever the others say.
    :ivar sm_priority: of our subnet manager, 0 to 15; None: 14, or 1 if there are heirs.
    :ivar capture: what to record.
    :ivar share: what this rack is of a fabric that several hosts make together; then it brings the topology, and there
        are as many cards as it says. See docs/cluster.md.
    :ivar lines: what cables take of time and bits, by their names; see :mod:`vhca.fabric.cables` for those.
    :ivar tools: a name of sockets (`IBSIM_SOCKNAME`) at which programs of this user attach under libumad2sim; None:
        there are none until somebody asks for them. See docs/fabric.md.

    :raises ValueError: it contradicts itself.
    """

    logs: bool = True
    mkey: int | None = None
    topology: "Topology | None" = None
    routing: Engine = "min-hop"
    capture: CaptureConfig | None = None
    share: "RackShare | None" = None
    lines: "Mapping[str, LineConfig]" = field(default_factory=dict)
    tools: str | None = None
    lmc: int = 0
    lids: Path | None = None
    partitions: "Partitions | None" = None
    heirs: Sequence[str] | Literal["any"] | None = None
    sm_priority: int | None = None

    def __post_init__(self) -> None:
        if self.heirs is not None and self.mkey is None:
            raise ValueError("another subnet manager knows no secret M_Keys: give mkey=0, or one that it is told")
        if not 0 <= self.lmc <= 7:
            raise ValueError(f"lmc {self.lmc}: it is 0 to 7")
        if self.sm_priority is not None and not 0 <= self.sm_priority <= 15:
            raise ValueError(f"sm_priority {self.sm_priority}: it is 0 to 15")
