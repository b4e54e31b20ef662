"""The management network without guests: a wire for two, a learning switch for other numbers."""

from __future__ import annotations

import socket

import pytest

from vhca.lab.network import Network, address_of, mac_of


def frame(to: int | None, sender: int, text: bytes = b"") -> bytes:
    def mac(index: int) -> bytes:
        return bytes.fromhex(mac_of(index).replace(":", ""))

    return (b"\xff" * 6 if to is None else mac(to)) + mac(sender) + b"\x08\x00" + text


def receive(end: socket.socket) -> bytes:
    end.settimeout(10)
    return end.recv(65536)


def nothing(end: socket.socket) -> bool:
    end.setblocking(False)
    try:
        end.recv(65536)
    except BlockingIOError:
        return True
    return False


def test_names_and_addresses_do_not_repeat() -> None:
    assert (address_of(0), address_of(1), address_of(250)) == ("10.0.0.1", "10.0.0.2", "10.0.1.1")
    assert len({address_of(i) for i in range(1000)}) == len({mac_of(i) for i in range(1000)}) == 1000
    assert int(mac_of(999)[:2], 16) & 3 == 2  # locally administered, not a group


def test_two_guests_are_joined_directly() -> None:
    network = Network(2)
    network.ends[0].send(frame(1, 0, b"hi"))
    assert receive(network.ends[1]) == frame(1, 0, b"hi")
    network.close()


def test_the_switch_floods_then_learns() -> None:
    network = Network(3)
    a, b, c = network.ends
    a.send(frame(None, 0, b"who"))
    assert receive(b) == receive(c) == frame(None, 0, b"who")
    b.send(frame(0, 1, b"me"))  # a is known now: c must not see it
    assert receive(a) == frame(0, 1, b"me")
    a.send(frame(None, 0, b"end"))
    assert receive(c) == frame(None, 0, b"end")
    assert receive(b) == frame(None, 0, b"end")
    assert nothing(a)
    network.close()
    assert (network.counters.received, network.counters.forwarded) == (3, 5)


@pytest.mark.parametrize("junk", [b"", b"short", b"\x00" * 13])
def test_junk_is_not_forwarded(junk: bytes) -> None:
    network = Network(3)
    network.ends[0].send(junk)
    network.ends[0].send(frame(None, 0))
    assert receive(network.ends[1]) == frame(None, 0)
    assert network.counters.received == 1
    network.close()


def test_a_guest_that_is_gone_delays_nobody() -> None:
    network = Network(3)
    network.ends[1].close()
    network.ends[0].send(frame(None, 0))
    assert receive(network.ends[2]) == frame(None, 0)
    network.close()
    assert network.counters.dropped == 1


def test_a_guest_that_does_not_read_delays_nobody() -> None:
    network = Network(3)
    for number in range(300):  # 18 MB, more than any queue
        network.ends[0].send(frame(None, 0, bytes(60_000) + number.to_bytes(4, "big")))
        assert receive(network.ends[2])[-4:] == number.to_bytes(4, "big")
    network.close()
    assert network.counters.dropped > 0
