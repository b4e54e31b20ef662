"""QEMU's qtest: a machine without a running CPU, whose port, memory and PCI accesses a test makes one by one."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from vhca.vfio_user.loop import SelectLoop
from vhca.vfio_user.server import Server

ANSWER_TIMEOUT_S = 30.0
GIB = 1 << 30


@dataclass(frozen=True)
class QemuProgram:
    """How to start QEMU: the first arguments of its command line, and what to add to the environment."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def find_qemu() -> QemuProgram | str:
    """Return a QEMU with the vfio-user client, or the reason why there is none. Downloads nothing."""
    from vhca.lab import cache, qemu

    store = cache.Cache()
    found = qemu.host_qemu()
    if found is None and store.path("qemu", qemu.package_key()).exists():
        found = qemu.find_qemu(store, cache.Progress(quiet=True))
    if found is None:
        return "no QEMU >= 10.1.1 on this host or in the cache"
    return QemuProgram(tuple(found.command), dict(found.environment))


class QemuEnded(Exception):
    """QEMU is gone; `status` is its exit status, negative for a signal."""

    def __init__(self, status: int, log: str) -> None:
        super().__init__(f"QEMU ended with status {status}:\n{log}")
        self.status = status


class ServerThread:
    """A server in a loop of its own, so that the test can wait for QEMU, and QEMU for the server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._loop = SelectLoop()
        self._stop_r, self._stop_w = socket.socketpair()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ServerThread:
        self.server.start(self._loop)
        self._loop.add_reader(self._stop_r, self._stop)
        self._thread.start()
        return self

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        while not self._stopping:
            self._loop.run_once()
        self.server.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_w.send(b"x")
        self._thread.join(10)
        assert not self._thread.is_alive(), "the server's thread hangs"
        self._loop.close()
        self._stop_r.close()
        self._stop_w.close()


class Qtest:
    """One QEMU under qtest, with its QMP monitor."""

    def __init__(self, program: QemuProgram, folder: Path, arguments: Sequence[str]) -> None:
        listeners = [_listen(folder / name) for name in ("qtest", "qmp")]
        self._log = (folder / "qemu.log").open("w+")
        self.process = subprocess.Popen(
            [
                *program.command,
                *("-display", "none", "-nodefaults", "-accel", "qtest"),
                *("-qtest", f"unix:{folder}/qtest"),
                *("-chardev", f"socket,id=qmp,path={folder}/qmp", "-mon", "chardev=qmp,mode=control"),
                *arguments,
            ],
            env={**os.environ, **program.environment},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        try:
            self._files = [self._accept(listener) for listener in listeners]
            self._qtest, self._qmp = self._files
            self._read_qmp()
            self.qmp("qmp_capabilities")
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Qtest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End QEMU if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for file in getattr(self, "_files", []):
            with contextlib.suppress(OSError):
                file.close()
        self._log.close()

    def log(self) -> str:
        """What QEMU has printed."""
        return Path(self._log.name).read_text()

    def wait(self) -> int:
        """Wait for QEMU's end and return its status, negative for a signal."""
        return self.process.wait(ANSWER_TIMEOUT_S)

    def _accept(self, listener: socket.socket) -> TextIO:
        with listener:
            listener.settimeout(0.05)
            for _ in range(int(ANSWER_TIMEOUT_S * 20)):
                with contextlib.suppress(TimeoutError):
                    sock, _ = listener.accept()
                    sock.settimeout(ANSWER_TIMEOUT_S)
                    with sock:
                        return sock.makefile("rw")
                if self.process.poll() is not None:
                    raise QemuEnded(self.process.returncode, self.log())
        raise TimeoutError("QEMU did not connect")

    def _send(self, file: TextIO, line: str) -> None:
        try:
            file.write(line + "\n")
            file.flush()
        except ConnectionError:
            raise QemuEnded(self.wait(), self.log()) from None

    def _receive(self, file: TextIO) -> str:
        try:
            line = file.readline()
        except ConnectionError:
            line = ""
        if not line:
            raise QemuEnded(self.wait(), self.log())
        return line

    # ---- qtest ----

    def command(self, text: str) -> list[str]:
        """Send one qtest command and return the words of its answer after OK."""
        self._send(self._qtest, text)
        while True:
            words = self._receive(self._qtest).split()
            # an interrupt of the machine may be reported in between
            if words[0] == "OK":
                return words[1:]
            assert words[0] == "IRQ", words

    def _value(self, text: str) -> int:
        return int(self.command(text)[0], 16)

    def read(self, address: int, size: int) -> int:
        """Read 1, 2, 4 or 8 bytes of guest memory or a BAR."""
        return self._value(f"read{'bwlq'[size.bit_length() - 1]} {address:#x}")

    def write(self, address: int, size: int, value: int) -> None:
        """Write 1, 2, 4 or 8 bytes of guest memory or a BAR."""
        self.command(f"write{'bwlq'[size.bit_length() - 1]} {address:#x} {value:#x}")

    def read_bytes(self, address: int, size: int) -> bytes:
        """Read guest memory."""
        return bytes.fromhex(self.command(f"read {address:#x} {size:#x}")[0][2:])

    def write_bytes(self, address: int, data: bytes) -> None:
        """Write guest memory."""
        self.command(f"write {address:#x} {len(data):#x} 0x{data.hex()}")

    def config_read(self, bus: int, slot: int, offset: int, size: int) -> int:
        """Read a PCI configuration register through ports cf8 and cfc."""
        self._config_address(bus, slot, offset)
        return self._value(f"in{'bwl'[size.bit_length() - 1]} {0xCFC + offset % 4:#x}")

    def config_write(self, bus: int, slot: int, offset: int, size: int, value: int) -> None:
        """Write a PCI configuration register through ports cf8 and cfc."""
        self._config_address(bus, slot, offset)
        self.command(f"out{'bwl'[size.bit_length() - 1]} {0xCFC + offset % 4:#x} {value:#x}")

    def _config_address(self, bus: int, slot: int, offset: int) -> None:
        assert offset < 256
        self.command(f"outl 0xcf8 {0x80000000 | bus << 16 | slot << 11 | (offset & 0xFC):#x}")

    # ---- QMP ----

    def _read_qmp(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._receive(self._qmp))
        return answer

    def qmp(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Run a QMP command and return its answer: a dict with `return` or `error`."""
        self._send(self._qmp, json.dumps({"execute": command, "arguments": arguments}))
        while True:
            answer = self._read_qmp()
            if "event" not in answer:
                return answer


def machine(*, ram: str = "memfd,share=on", size: int = GIB) -> list[str]:
    """Return the arguments for a q35 with guest RAM of the given backend and an empty root port `rp1`."""
    backend, _, options = ram.partition(",")
    memory = f"memory-backend-{backend},id=m0,size={size}" + (f",{options}" if options else "")
    return [
        *("-machine", "q35,memory-backend=m0", "-m", f"{size >> 20}M"),
        *("-object", memory),
        *("-device", "pcie-root-port,id=rp1,slot=1,chassis=1,addr=4,pref64-reserve=64M"),
    ]


def client(path: Path, **properties: Any) -> list[str]:
    """Return the arguments for the device that connects to `path`."""
    return ["-device", json.dumps(client_properties(path, **properties))]


def client_properties(path: Path, **properties: Any) -> dict[str, Any]:
    """Return the properties of the device that connects to `path`."""
    socket_address = {"type": "unix", "path": str(path)}
    return {"driver": "vfio-user-pci", "id": "card0", "bus": "rp1", "socket": socket_address, **properties}


def _listen(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen(1)
    return sock
