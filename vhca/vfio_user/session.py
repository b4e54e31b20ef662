"""The conversation with one client: negotiation, dispatch of its commands, replies and error replies.

No I/O: messages come as header fields and payload bytes, replies go back as bytes, descriptors are
plain ints. What a descriptor is good for (mapping, signalling, closing) is handed in. The session owns
the descriptors of a message from the call of :meth:`Session.handle` on, and closes or hands over every
one of them on every path.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from vhca.vfio_user import proto
from vhca.vfio_user.counters import DMA_MAP, Access, ServerCount
from vhca.vfio_user.device import Device, RegionInfo
from vhca.vfio_user.irqs import IrqTable
from vhca.vfio_user.proto import Command, IrqIndex, ProtocolError

_SLOW_WAYS: Final[dict[Access, str]] = {
    "copied": "copying, at a fraction of the speed",
    "message": "messages, which is slow",
}


class Outgoing(NamedTuple):
    """A message to send, with descriptors that stay the sender's."""

    data: bytes
    fds: tuple[int, ...] = ()


class DmaMaps(Protocol):
    """What the session needs of the DMA table; see :class:`vhca.vfio_user.dma.DmaTable`."""

    def map(self, address: int, size: int, offset: int, flags: int, fd: int | None) -> Access:
        """Add a mapping and say how it is reached ("mapped", "copied", "message"); the caller keeps the descriptor.

        Raises OSError with the errno of the reply.
        """
        ...

    def unmap(self, address: int, size: int) -> None:
        """Remove every mapping inside the range; there may be none. Raises OSError with the errno of the reply."""
        ...

    def unmap_all(self) -> None:
        """Remove every mapping."""
        ...


class Session:
    """The server's end of one connection.

    :ivar negotiated: VERSION has been agreed on.
    :ivar closing: the client broke the protocol so that the connection has to end after the reply.
    :ivar client: what the client can take, after VERSION.
    :ivar awaiting_reply: a command is being handled whose sender waits for the reply.
    :ivar overloaded: whether the device wants no more messages for now.
    """

    def __init__(
        self,
        device: Device,
        dma: DmaMaps,
        irqs: IrqTable,
        *,
        close_fd: Callable[[int], None],
        check_eventfd: Callable[[int], bool],
        log: Callable[[str, BaseException | None], None],
        counters: Counter[ServerCount],
    ) -> None:
        self.negotiated = False
        self.closing = False
        self.client = proto.Capabilities()
        self.awaiting_reply = False
        self._memory_is_fast = True
        self._device = device
        self._dma = dma
        self._irqs = irqs
        self._close_fd = close_fd
        self._check_eventfd = check_eventfd
        self._log = log
        self._counters = counters
        self._regions: list[RegionInfo] = list(device.regions)
        # For the hot path: sizes of the regions that may be written, 0 for the others.
        self._write_sizes = [region.size if region.writable else 0 for region in self._regions]
        self._dma_changed: Callable[[], None] | None = getattr(device, "dma_changed", None)
        self._irq_changed: Callable[[], None] | None = getattr(device, "irq_state_changed", None)
        self.overloaded: Callable[[], bool] = getattr(device, "overloaded", _never)
        self._handlers: dict[int, Callable[[bytes, list[int]], Outgoing]] = {
            Command.DMA_MAP: self._dma_map,
            Command.DMA_UNMAP: self._dma_unmap,
            Command.DEVICE_GET_INFO: self._get_info,
            Command.DEVICE_GET_REGION_INFO: self._get_region_info,
            Command.DEVICE_GET_REGION_IO_FDS: self._get_region_io_fds,
            Command.DEVICE_GET_IRQ_INFO: self._get_irq_info,
            Command.DEVICE_SET_IRQS: self._set_irqs,
            Command.REGION_READ: self._region_read,
            Command.REGION_WRITE: self._region_write,
            Command.DEVICE_RESET: self._reset,
            Command.REGION_WRITE_MULTI: self._region_write_multi,
            Command.DEVICE_FEATURE: self._feature,
        }

    def posted_write(self, offset: int, region: int, data: bytes) -> None:
        """Carry out a REGION_WRITE that wants no reply: the hot path, without descriptors.

        Failures are counted and logged; a posted write has nobody to tell.
        """
        if not self.negotiated:
            self._counters[ServerCount.POSTED_WRITE_REFUSED] += 1
            self.closing = True
            return
        count = len(data)
        if region >= len(self._write_sizes) or count > self._write_sizes[region] - offset:
            self._counters[ServerCount.POSTED_WRITE_REFUSED] += 1
            return
        if not count:
            return
        try:
            self._device.region_write(region, offset, data)
        except Exception as error:
            self._counters[ServerCount.DEVICE_ERROR] += 1
            self._log(f"posted write of {count} bytes to region {region} at {offset:#x} failed", error)

    def handle(
        self, message_id: int, command: int, flags: int, payload: bytes, fds: Sequence[int] = ()
    ) -> Outgoing | None:
        """Carry out one command; return its reply, or None if the sender wants none.

        The message is a command (type bits 0): replies to the server's own requests never come here.
        """
        no_reply = bool(flags & proto.FLAGS_NO_REPLY)
        # Commands nest only while a DMA message waits for its reply, which is never while this is set.
        self.awaiting_reply = not no_reply
        # Handlers take what they keep out of this list; the rest is closed.
        owned = list(fds)
        code = 0
        result = Outgoing(b"")
        try:
            result = self._dispatch(command, flags, payload, owned)
        except ProtocolError as error:
            code = error.errno
            self._counters[ServerCount.REFUSED] += 1
            self._log(str(error), None)
        except OSError as error:
            # from the DMA table: the errno is the answer
            code = error.errno or errno.EIO
            self._counters[ServerCount.REFUSED] += 1
            self._log(f"command {command} failed: {error}", None)
        except Exception as error:
            code = errno.EIO
            self._counters[ServerCount.DEVICE_ERROR] += 1
            self._log(f"command {command} failed in the device", error)
        finally:
            self.awaiting_reply = False
            for fd in owned:
                self._close_fd(fd)
        if no_reply:
            return None
        if code:
            return Outgoing(proto.error_reply(message_id, command, code))
        return Outgoing(proto.reply(message_id, command, result.data), result.fds)

    def _dispatch(self, command: int, flags: int, payload: bytes, fds: list[int]) -> Outgoing:
        if flags & ~proto.FLAGS_NO_REPLY:
            raise ProtocolError(errno.EINVAL, f"bad message flags {flags:#x}")
        if not self.negotiated:
            self.closing = True
            if command != Command.VERSION:
                raise ProtocolError(errno.EINVAL, f"command {command} before VERSION")
            result = self._version(payload, fds)
            self.closing = False
            return result
        handler = self._handlers.get(command)
        if handler is None:
            raise ProtocolError(errno.EINVAL, f"unknown command {command}")
        if fds and command not in (Command.DMA_MAP, Command.DEVICE_SET_IRQS):
            raise ProtocolError(errno.EINVAL, f"command {command} takes no descriptors")
        return handler(payload, fds)

    def _device_call(self, call: Callable[[], object]) -> None:
        """Call into the device; its OSErrors are its own and not errnos for the client."""
        try:
            call()
        except OSError as error:
            raise RuntimeError("the device failed") from error

    # ---- set-up ----

    def _version(self, payload: bytes, fds: list[int]) -> Outgoing:
        if fds:
            raise ProtocolError(errno.EINVAL, "VERSION takes no descriptors")
        version = proto.parse_version(payload)
        self.client = version.capabilities
        self.negotiated = True
        return Outgoing(proto.pack_version(proto.VERSION_MINOR, proto.SERVER_CAPABILITIES))

    def _get_info(self, payload: bytes, _fds: list[int]) -> Outgoing:
        proto.parse_device_info(payload)
        flags = proto.DeviceFlags.RESET | proto.DeviceFlags.PCI
        return Outgoing(proto.pack_device_info(flags, len(self._regions), len(self._irqs.counts)))

    def _region(self, index: int) -> RegionInfo:
        if index >= len(self._regions):
            raise ProtocolError(errno.EINVAL, f"no region {index}")
        return self._regions[index]

    def _get_region_info(self, payload: bytes, _fds: list[int]) -> Outgoing:
        argsz, index = proto.parse_region_info(payload)
        region = self._region(index)
        flags = 0
        if region.size:
            flags |= proto.RegionFlags.READ if region.readable else 0
            flags |= proto.RegionFlags.WRITE if region.writable else 0
        if not region.size or region.mmap_fd < 0:
            return Outgoing(proto.pack_region_info(proto.REGION_INFO.size, flags, index, region.size, 0))
        flags |= proto.RegionFlags.MMAP
        areas = list(region.mmap_areas)
        capabilities = proto.pack_sparse_areas(areas) if areas else b""
        needed = proto.REGION_INFO.size + len(capabilities)
        if argsz < needed:
            # The client asks again with this argsz; capability and descriptor wait for that.
            info = proto.pack_region_info(needed, flags, index, region.size, region.mmap_offset)
            return Outgoing(info)
        info = proto.pack_region_info(needed, flags, index, region.size, region.mmap_offset, capabilities)
        return Outgoing(info, (region.mmap_fd,))

    def _get_region_io_fds(self, payload: bytes, _fds: list[int]) -> Outgoing:
        index = proto.parse_region_io_fds(payload)
        self._region(index)
        return Outgoing(proto.pack_region_io_fds(index))

    def _get_irq_info(self, payload: bytes, _fds: list[int]) -> Outgoing:
        index = proto.parse_irq_info(payload)
        if index >= len(self._irqs.counts):
            raise ProtocolError(errno.EINVAL, f"no interrupt index {index}")
        count = self._irqs.counts[index]
        flags = proto.IrqInfoFlags.EVENTFD if count else proto.IrqInfoFlags(0)
        if count and index in (IrqIndex.INTX, IrqIndex.MSI, IrqIndex.MSIX):
            flags |= proto.IrqInfoFlags.MASKABLE
        return Outgoing(proto.pack_irq_info(flags, index, count))

    def _set_irqs(self, payload: bytes, fds: list[int]) -> Outgoing:
        request = proto.parse_set_irqs(payload)
        for fd in fds:
            # Writing to anything else could block the device for as long as the client likes.
            if not self._check_eventfd(fd):
                raise ProtocolError(errno.EINVAL, "SET_IRQS: not an eventfd")
        self._irqs.set_irqs(request, fds)
        fds.clear()
        if self._irq_changed is not None:
            self._device_call(self._irq_changed)
        return Outgoing(b"")

    # ---- DMA ----

    def _dma_map(self, payload: bytes, fds: list[int]) -> Outgoing:
        request = proto.parse_dma_map(payload)
        if len(fds) > 1:
            raise ProtocolError(errno.EINVAL, f"DMA_MAP: {len(fds)} descriptors")
        fd = fds[0] if fds else None
        how = self._dma.map(request.address, request.size, request.offset, request.flags, fd)
        self._counters[DMA_MAP[how]] += 1
        if fd is not None and how != "mapped" and self._memory_is_fast:
            self._memory_is_fast = False
            self._log(f"memory is not a sealed memfd, so it is reached by {_SLOW_WAYS[how]}", None)
        if self._dma_changed is not None:
            self._device_call(self._dma_changed)
        return Outgoing(b"")

    def _dma_unmap(self, payload: bytes, _fds: list[int]) -> Outgoing:
        request = proto.parse_dma_unmap(payload)
        if request.everything:
            self._dma.unmap_all()
        else:
            self._dma.unmap(request.address, request.size)
        if self._dma_changed is not None:
            self._device_call(self._dma_changed)
        return Outgoing(payload)

    # ---- access ----

    def _check_access(self, index: int, offset: int, count: int, *, write: bool) -> None:
        region = self._region(index)
        if offset + count > region.size or not (region.writable if write else region.readable):
            direction = "write" if write else "read"
            raise ProtocolError(errno.EINVAL, f"{direction} of {count} at {offset:#x} of region {index}")

    def _region_read(self, payload: bytes, _fds: list[int]) -> Outgoing:
        offset, index, count = proto.parse_region_read(payload)
        self._check_access(index, offset, count, write=False)
        data = b""
        if count:
            try:
                data = self._device.region_read(index, offset, count)
            except OSError as error:
                raise RuntimeError("the device failed") from error
            if len(data) != count:
                raise RuntimeError(f"the device returned {len(data)} bytes for a read of {count}")
        return Outgoing(payload + data)

    def _region_write(self, payload: bytes, _fds: list[int]) -> Outgoing:
        write = proto.parse_region_write(payload)
        self._write(write)
        return Outgoing(payload[: proto.REGION_ACCESS.size])

    def _write(self, write: proto.RegionWrite) -> None:
        self._check_access(write.region, write.offset, len(write.data), write=True)
        if write.data:
            self._device_call(lambda: self._device.region_write(write.region, write.offset, write.data))

    def _region_write_multi(self, payload: bytes, _fds: list[int]) -> Outgoing:
        writes = proto.parse_region_write_multi(payload)
        for write in writes:
            self._check_access(write.region, write.offset, len(write.data), write=True)
        for write in writes:
            self._write(write)
        return Outgoing(payload[: proto.MULTI_COUNT.size])

    def _reset(self, payload: bytes, _fds: list[int]) -> Outgoing:
        proto.no_payload(payload, "DEVICE_RESET")
        self._device_call(lambda: self._device.reset("device"))
        return Outgoing(b"")

    def _feature(self, payload: bytes, _fds: list[int]) -> Outgoing:
        flags = proto.parse_device_feature(payload)
        raise ProtocolError(errno.ENOTTY, f"DEVICE_FEATURE {flags & 0xFFFF} is not supported")


def _never() -> bool:
    return False
