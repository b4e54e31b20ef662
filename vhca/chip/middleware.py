"""What can be put between a board and its program, and between the program and its memory.

A board boots an image; an image that wraps another one is middleware: what it returns has the shape of
:class:`vhca.hw.hardware.Firmware`, and what it hands to the program inside has the shape of
:class:`vhca.hw.hardware.Hardware`. :class:`ProgramTap` and :class:`MemoryTap` pass everything on; derive from them what
looks at it or changes it, and make the image with :func:`tapped`. `CardConfig(middleware=...)` puts it
into a card.
"""

from collections.abc import Callable, Mapping, Sequence

from vhca.hw.effects import Effects
from vhca.hw.events import Event
from vhca.hw.findings import Finding, ObjectLife, Place, Strictness
from vhca.hw.hardware import BoardInfo, Firmware, FirmwareImage, Hardware, Tamper, Through, TraceSink
from vhca.hw.memory import Memory
from vhca.wire.packet import Route
from vhca.wire.smp import PortInfo

Middleware = Callable[[str, FirmwareImage], FirmwareImage]
"""Name of a card and its image: the image that is booted instead."""


class ProgramTap:
    """A program that does what `inner` does."""

    def __init__(self, inner: Firmware) -> None:
        self.inner = inner

    def handle(self, event: Event, now_ns: int, out: Effects) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        self.inner.handle(event, now_ns, out)

    def next_deadline(self) -> int | None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        return self.inner.next_deadline()

    def on_timer(self, now_ns: int, out: Effects) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        self.inner.on_timer(now_ns, out)

    def waiting(self) -> bool:
        """See :class:`vhca.hw.hardware.Firmware`."""
        return self.inner.waiting()

    def step(self, now_ns: int, out: Effects) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        self.inner.step(now_ns, out)

    def watch(self, on: bool) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        self.inner.watch(on)

    def tamper(self, tamper: Tamper | None) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        self.inner.tamper(tamper)

    def keep_lives(self, level: Strictness) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        self.inner.keep_lives(level)

    def findings(self, card: str) -> Sequence[Finding]:
        """See :class:`vhca.hw.hardware.Firmware`."""
        return self.inner.findings(card)

    def known(self) -> Sequence[Place]:
        """See :class:`vhca.hw.hardware.Firmware`."""
        return self.inner.known()

    def life(self, kind: str, number: int) -> ObjectLife | None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        return self.inner.life(kind, number)

    def inherit(self, old: Firmware) -> None:
        """See :class:`vhca.hw.hardware.Firmware`; the program that failed was wrapped in the same way."""
        self.inner.inherit(old.inner if isinstance(old, ProgramTap) else old)

    def counters(self) -> Mapping[str, int]:
        """See :class:`vhca.hw.hardware.Firmware`."""
        return self.inner.counters()

    def objects(self) -> Mapping[str, int]:
        """See :class:`vhca.hw.hardware.Firmware`."""
        return self.inner.objects()

    def port_info(self, port: int) -> PortInfo:
        """See :class:`vhca.hw.hardware.Firmware`."""
        return self.inner.port_info(port)


class MemoryTap:
    """A memory that does what `inner` does. A program reads; it writes by effects, which its board carries out."""

    def __init__(self, inner: Memory) -> None:
        self.inner = inner

    def read(self, addr: int, size: int) -> bytes:
        """See :class:`vhca.hw.memory.Memory`."""
        return self.inner.read(addr, size)

    def write(self, addr: int, data: bytes | bytearray | memoryview) -> None:
        """See :class:`vhca.hw.memory.Memory`."""
        self.inner.write(addr, data)


class _Wrapped:
    """The hardware with another memory, and no way past the border."""

    def __init__(self, inner: Hardware, memory: Memory) -> None:
        self.memory = memory
        self.device_memory: Memory = inner.device_memory
        self.info: BoardInfo = inner.info
        self.trace: TraceSink | None = inner.trace
        self.memory_limit: Callable[[], int] = inner.memory_limit

    def through(self, port: int, route: Route, back: Route, pkeys: tuple[int, int]) -> Through | None:
        """None: whoever taps a card wants to see what it does."""
        return None


class _TappedImage:
    def __init__(
        self,
        inner: FirmwareImage,
        program: Callable[[Firmware], Firmware] | None,
        memory: Callable[[Memory], Memory] | None,
    ) -> None:
        self._inner = inner
        self._program = program
        self._memory = memory

    def power_up(self, hardware: Hardware) -> Firmware:
        memory = hardware.memory if self._memory is None else self._memory(hardware.memory)
        firmware = self._inner.power_up(_Wrapped(hardware, memory))
        return firmware if self._program is None else self._program(firmware)

    def explain(self, syndrome: int) -> tuple[str, str] | None:
        return self._inner.explain(syndrome)


def tapped(
    image: FirmwareImage,
    program: Callable[[Firmware], Firmware] | None = None,
    memory: Callable[[Memory], Memory] | None = None,
) -> FirmwareImage:
    """The image with something put around its program, and around the memory that the program reads."""
    return _TappedImage(image, program, memory)
