"""QEMU's command line, the choice of accelerator, and the control port against a scripted QMP server."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from vhca.lab import qemu
from vhca.lab.errors import QemuError


def config(**changes: object) -> qemu.MachineConfig:
    settings: dict[str, object] = {
        "name": "g0",
        "kernel": Path("/k/vmlinuz"),
        "image": Path("/k/image"),
        "console_fd": 6,
        "agent_fd": 7,
        "qmp_fd": 8,
    }
    return qemu.MachineConfig(**{**settings, **changes})  # type: ignore[arg-type]


def options(arguments: list[str], name: str) -> list[str]:
    return [arguments[i + 1] for i, word in enumerate(arguments) if word == name]


def test_memory_is_shared_with_the_cards() -> None:
    arguments = qemu.command_line(config(memory_mib=768))
    assert options(arguments, "-object") == ["memory-backend-memfd,id=ram,size=768M,share=on"]
    assert "q35,memory-backend=ram" in options(arguments, "-machine")[0]
    assert options(arguments, "-m") == ["768M"]


def test_each_card_sits_in_a_root_port_of_its_own() -> None:
    arguments = qemu.command_line(config(hca_sockets=[Path("/s/0"), Path("/s/1")]))
    cards = [json.loads(d) for d in options(arguments, "-device") if d.startswith("{")]
    ports = [d for d in options(arguments, "-device") if d.startswith("pcie-root-port")]
    assert [c["socket"] for c in cards] == [{"type": "unix", "path": "/s/0"}, {"type": "unix", "path": "/s/1"}]
    assert {c["driver"] for c in cards} == {"vfio-user-pci"}
    assert [c["rombar"] for c in cards] == [0, 0]
    assert all(c["x-msg-timeout"] > 5000 for c in cards)
    assert len({c["bus"] for c in cards}) == len(ports) == 2
    assert all(f"id={c['bus']}," in p for c, p in zip(cards, ports, strict=True))


def test_a_machine_without_extras_has_no_network_share_or_card() -> None:
    text = " ".join(qemu.command_line(config()))
    assert "virtio-net" not in text
    assert "9p" not in text
    assert "vfio-user" not in text
    assert "-no-reboot" not in text


def test_descriptors_and_paths_are_handed_over() -> None:
    arguments = qemu.command_line(config(network_fd=9, share=Path("/my,share")))
    chardevs = options(arguments, "-chardev")
    assert "socket,id=agent,fd=7" in chardevs
    assert "socket,id=qmp,fd=8" in chardevs
    assert "socket,id=console,fd=6" in chardevs
    assert options(arguments, "-netdev") == ["dgram,id=management,local.type=fd,local.str=9"]
    assert "path=/my,,share" in options(arguments, "-fsdev")[0]
    readonly = qemu.command_line(config(share=Path("/s"), share_writable=False))
    assert options(readonly, "-fsdev")[0].endswith("readonly=on")


def test_a_root_is_read_only_and_kept_files_are_a_disk_that_fails_softly() -> None:
    arguments = qemu.command_line(config(root=Path("/my,root"), kept=Path("/my,kept.img")))
    (served,) = options(arguments, "-fsdev")
    assert served.startswith("local,id=root,path=/my,,root,")
    assert served.endswith(",readonly=on")
    (disk,) = (json.loads(text) for text in options(arguments, "-blockdev"))
    assert (disk["driver"], disk["file"]["filename"]) == ("raw", "/my,kept.img")
    (device,) = (text for text in options(arguments, "-device") if text.startswith("virtio-blk"))
    assert "serial=vhca-kept" in device
    assert "werror=report" in device


def test_settings_reach_the_kernel_command_line() -> None:
    arguments = qemu.command_line(config(kernel_arguments={"index": "3"}, extra_kernel_arguments="debug"))
    words = options(arguments, "-append")[0].split()
    assert "vhca.index=3" in words
    assert words[-1] == "debug"


@pytest.mark.parametrize(("accelerator", "cpu"), [("tcg", "max,la57=off,erms=off,fsrm=off"), ("kvm", "host")])
def test_the_accelerator_decides_the_processor(accelerator: str, cpu: str) -> None:
    arguments = qemu.command_line(config(accelerator=accelerator))
    assert options(arguments, "-cpu") == [cpu]
    assert options(arguments, "-accel")[0].startswith(accelerator)


def test_no_kvm_without_hardware_virtualization(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("flags : fpu vme svmfoo hypervisor\n")
    assert "neither vmx nor svm" in qemu.kvm_trouble(info)
    info.write_text("flags : fpu svm vme\n")
    assert "No such file" in qemu.kvm_trouble(info, tmp_path / "kvm")
    (tmp_path / "kvm").touch()
    assert qemu.kvm_trouble(info, tmp_path / "kvm") != ""  # a file, not the device


def test_the_environment_overrides_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VHCA_ACCEL", "kvm")
    qemu.accelerator.cache_clear()
    assert qemu.accelerator() == "kvm"
    monkeypatch.setenv("VHCA_ACCEL", "turbo")
    qemu.accelerator.cache_clear()
    with pytest.raises(QemuError, match="turbo"):
        qemu.accelerator()
    qemu.accelerator.cache_clear()


@pytest.mark.parametrize(("version", "good"), [("10.1.0", False), ("10.1.1", True), ("11.0.0", True), ("7.2.1", False)])
def test_a_host_qemu_must_be_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, good: bool
) -> None:
    program = tmp_path / "qemu-system-x86_64"
    program.write_text(f"#!/bin/sh\necho QEMU emulator version {version}\n")
    program.chmod(0o755)
    monkeypatch.delenv("VHCA_QEMU", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = qemu.host_qemu()
    assert (found is not None) is good
    monkeypatch.setenv("VHCA_QEMU", "cache")
    assert qemu.host_qemu() is None
    monkeypatch.setenv("VHCA_QEMU", "no-such-qemu")
    with pytest.raises(QemuError, match="no-such-qemu"):
        qemu.host_qemu()


def serve_qmp(end: socket.socket, answers: list[str]) -> list[dict[str, object]]:
    """Play the server's part from a script; return what the client sent."""
    seen: list[dict[str, object]] = []

    def serve() -> None:
        end.sendall(b'{"QMP": {}}\n')
        stream = end.makefile("r")
        for answer in answers:
            seen.append(json.loads(stream.readline()))
            end.sendall(answer.encode())
        end.close()
        stream.close()

    threading.Thread(target=serve, daemon=True).start()
    return seen


def test_control_port_commands_events_errors_and_end() -> None:
    ours, theirs = socket.socketpair()
    seen = serve_qmp(
        theirs,
        [
            '{"return": {}}\n',
            '{"event": "RESET"}\n{"return": {"status": "running"}}\n',
            '{"error": {"desc": "no such command"}}\n',
        ],
    )
    client = qemu.QmpClient(ours, "g0")
    assert client.command("query-status") == {"status": "running"}
    assert [e["event"] for e in client.events] == ["RESET"]
    with pytest.raises(QemuError, match="no such command"):
        client.command("nonsense", depth=3)
    assert [s["execute"] for s in seen] == ["qmp_capabilities", "query-status", "nonsense"]
    assert seen[2]["arguments"] == {"depth": 3}
    with pytest.raises(QemuError):
        client.command("query-status")
    client.close()


def test_a_silent_control_port_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    client = qemu.QmpClient(ours, "g0")
    with pytest.raises(QemuError, match="does not answer"):
        client.command("query-status", timeout_s=0.05)
    client.close()
    theirs.close()


def test_a_started_machine_leaves_its_words_in_the_log(tmp_path: Path) -> None:
    fake = qemu.Qemu(("/bin/sh",), (11, 0, 0), {"WORD": "hello"}, "host")
    process, recorder = qemu.start(fake, ["-c", "echo $WORD"], [], tmp_path / "log")
    assert process.wait(20) == 0
    recorder.join(20)
    assert (tmp_path / "log").read_text().splitlines() == ["/bin/sh -c echo $WORD", "hello"]
