"""The engine out of its crate: the kernel proper, taken out of a bzImage, so that no guest has to unpack it.

A bzImage is a small program with the compressed kernel in it; an emulated processor needs about a second to unpack
that, the host a quarter. QEMU starts the kernel proper itself if it has the PVH entry point (CONFIG_PVH): the ELF note
XEN_ELFNOTE_PHYS32_ENTRY (Linux, Documentation/arch/x86/boot.rst, "payload_offset"; the Xen note's number is 18).
What cannot be done that way is booted from its bzImage, and why is said.
"""

from __future__ import annotations

import bz2
import contextlib
import hashlib
import lzma
import mmap
import struct
import subprocess
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from vhca.lab.cache import Cache, Progress
from vhca.lab.elf import notes
from vhca.lab.errors import ImageError
from vhca.lab.guest_system import guest_root, loader, python_of
from vhca.lab.kernels import Kernel

_RECIPE: Final = "1"  # part of every key: raise it when the code below makes other files
_PAYLOAD_AT: Final = 0x248  # payload_offset and payload_length of the setup header, 4 bytes each
_PAYLOAD_SINCE: Final = 0x0208  # the version of the boot protocol that has them
_XEN_PHYS32_ENTRY: Final = 18
_SIZE_BYTES: Final = 4  # behind the compressed kernel: how large it is unpacked
_MAX_BYTES: Final = 1 << 30
_UNPACK_TIMEOUT_S: Final = 120
# The guest's Python has ctypes, and its packages the library: nothing is asked of the host.
_ZSTD: Final = """
import ctypes, sys
library = ctypes.CDLL("libzstd.so.1")
library.ZSTD_decompress.restype = library.ZSTD_isError.restype = ctypes.c_size_t
library.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
library.ZSTD_isError.argtypes = [ctypes.c_size_t]
data, size = sys.stdin.buffer.read(), int(sys.argv[1])
target = ctypes.create_string_buffer(size)
got = library.ZSTD_decompress(target, size, data, len(data))
if library.ZSTD_isError(got) or got != size:
    sys.exit("zstd: the data is damaged")
sys.stdout.buffer.write(target)
"""
_MAGIC: Final = MappingProxyType(
    {
        b"\x28\xb5\x2f\xfd": "zstd",
        b"\xfd7zXZ\0": "xz",
        b"\x1f\x8b": "gzip",
        b"BZh": "bzip2",
        b"\x5d\0\0": "lzma",
        b"\x02\x21\x4c\x18": "lz4",
        b"\x89LZO": "lzo",
        b"\x7fELF": "nothing",
    }
)


class _NotSo(Exception):
    """This kernel cannot be entered directly; the text says why."""


@dataclass(slots=True, frozen=True)
class BootFile:
    """What QEMU is given as the kernel: `path`, and in `how` how it is entered, for people.

    :ivar direct: is it the kernel proper, entered by PVH? Else it is the bzImage, which unpacks itself.
    """

    path: Path
    direct: bool
    how: str


def boot_file(kernel: Kernel, cache: Cache, progress: Progress) -> BootFile:
    """The file to boot `kernel` from: unpacked, in the cache, if it can be entered so; else its bzImage."""

    if _is_instrumented(kernel):
        return _by_itself(kernel)

    def build(place: Path) -> None:
        progress.step(f"unpacking kernel {kernel.release}")
        try:
            content = unpacked(kernel.image.read_bytes(), guest_root(cache, progress))
        except _NotSo as reason:
            content = str(reason).encode()  # kept, too: it is not tried again
        place.write_bytes(content)

    return _described(cache.obtain("vmlinux", _key(kernel), build, progress, _is_sound), kernel)


def known_boot_file(kernel: Kernel, cache: Cache) -> BootFile | None:
    """What :func:`boot_file` returns, if it has been asked before; nothing is unpacked."""
    if _is_instrumented(kernel):
        return _by_itself(kernel)
    place = cache.path("vmlinux", _key(kernel))
    return _described(place, kernel) if place.exists() and _is_sound(place) else None


def _is_instrumented(kernel: Kernel) -> bool:
    """Does its configuration, if it is there, say that it has KASAN? Entered by PVH, 6.19 then resets the machine."""
    for place in (kernel.image.with_name(f"config-{kernel.release}"), *_tree_configuration(kernel)):
        with contextlib.suppress(OSError):
            return "\nCONFIG_KASAN=y\n" in place.read_text(encoding="utf-8", errors="replace")
    return False


def _tree_configuration(kernel: Kernel) -> list[Path]:
    return [kernel.order.parent / ".config"] if kernel.order is not None else []


def _by_itself(kernel: Kernel) -> BootFile:
    why = "bzImage, unpacked by the guest: entered by PVH, a kernel with KASAN was seen to reset"
    return BootFile(kernel.image, False, why)


def _key(kernel: Kernel) -> str:
    status = kernel.image.stat()
    text = f"{_RECIPE} {kernel.image} {status.st_size} {status.st_mtime_ns}"
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _described(place: Path, kernel: Kernel) -> BootFile:
    with place.open("rb") as stream:
        if stream.read(4) == b"\x7fELF":
            return BootFile(place, True, "unpacked on the host, entered by PVH")
    return BootFile(kernel.image, False, f"bzImage, unpacked by the guest: {place.read_text()}")


def _is_sound(place: Path) -> bool:
    """Is an entry of the cache whole? It holds a kernel, or a line that says why there is none."""
    try:
        with place.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data[:4] != b"\x7fELF" or _may_be_entered(data)
    except (OSError, ValueError):
        return False


def _may_be_entered(elf: bytes | mmap.mmap) -> bool:
    return any(name == b"Xen" and kind == _XEN_PHYS32_ENTRY for name, kind in notes(elf))


def unpacked(image: bytes, root: Path) -> bytes:
    """The kernel proper (ELF) out of a bzImage; `_NotSo` if there is none that can be entered by PVH.

    :param root: the folder with the guest's packages, for kernels packed with zstd.
    """
    payload = _payload(image)
    packing = next((name for magic, name in _MAGIC.items() if payload.startswith(magic)), "something unknown")
    (size,) = struct.unpack("<I", payload[-_SIZE_BYTES:])
    if not 0 < size <= _MAX_BYTES:
        raise _NotSo(f"unpacked it would have {size} bytes")
    packed = payload[:-_SIZE_BYTES] if packing not in ("gzip", "nothing") else payload  # gzip ends with it itself
    if packing == "zstd":
        content = _unpacked_zstd(packed, size, root)
    elif packing in _UNPACKERS:
        try:
            content = _UNPACKERS[packing](packed)
        except (lzma.LZMAError, zlib.error, OSError, ValueError, EOFError) as error:
            raise _NotSo(f"its {packing} data cannot be unpacked ({error})") from error
    else:
        raise _NotSo(f"it is packed with {packing}")
    if content[:4] != b"\x7fELF":
        raise _NotSo("it holds no ELF file")
    if not _may_be_entered(content):
        raise _NotSo("it has no PVH entry point (CONFIG_PVH)")
    return content


def _payload(image: bytes) -> bytes:
    """The packed kernel and the four bytes behind it (Linux, Documentation/arch/x86/boot.rst)."""
    if len(image) < _PAYLOAD_AT + 8 or image[0x202:0x206] != b"HdrS":
        raise _NotSo("it is no bzImage")
    (version,) = struct.unpack_from("<H", image, 0x206)
    if version < _PAYLOAD_SINCE:
        raise _NotSo(f"its boot protocol {version >> 8}.{version & 255:02} does not say where the kernel is")
    offset, length = struct.unpack_from("<II", image, _PAYLOAD_AT)
    begin = ((image[0x1F1] or 4) + 1) * 512 + offset
    if length <= _SIZE_BYTES or begin + length > len(image):
        raise _NotSo("it is cut short")
    return image[begin : begin + length]


def _unpacked_zstd(packed: bytes, size: int, root: Path) -> bytes:
    try:
        done = subprocess.run(
            [*loader(root, python_of(root)), "-I", "-S", "-c", _ZSTD, str(size)],
            env={"PYTHONHOME": str(root / "usr")},
            input=packed,
            capture_output=True,
            check=False,
            timeout=_UNPACK_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ImageError(f"the guest's Python cannot be run on the host: {error}") from error
    if done.returncode or len(done.stdout) != size:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["too little came"]
        raise _NotSo(f"its zstd data cannot be unpacked ({words[-1]})")
    return done.stdout


_UNPACKERS: Final[Mapping[str, Callable[[bytes], bytes]]] = MappingProxyType(
    {
        "nothing": bytes,
        "gzip": lambda packed: zlib.decompressobj(wbits=31).decompress(packed, _MAX_BYTES),
        "bzip2": lambda packed: bz2.BZ2Decompressor().decompress(packed, _MAX_BYTES),
        "xz": lambda packed: lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(packed, _MAX_BYTES),
        "lzma": lambda packed: lzma.LZMADecompressor(lzma.FORMAT_ALONE).decompress(packed, _MAX_BYTES),
    }
)
