"""Clients that want to hold up the loop, and with it the other devices that it serves."""

import contextlib
import errno
import os
import resource
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.wire.client import Client, closing, eventfds, header
from tests.wire.conftest import Rig, ToyDevice
from vhca.hw.memory import DmaError
from vhca.vfio_user import Server, connection, outbox, proto, server, wait_budget
from vhca.vfio_user.counters import ServerCount
from vhca.vfio_user.loop import SelectLoop
from vhca.vfio_user.proto import Command

ACCESS = proto.REGION_ACCESS.pack
PAGE = 4096


def posted(offset: int, data: bytes = bytes(8)) -> bytes:
    return proto.request(0, Command.REGION_WRITE, ACCESS(offset, 0, len(data)) + data, no_reply=True)


def read(message_id: int, count: int = 4, offset: int = 0) -> bytes:
    return proto.request(message_id, Command.REGION_READ, ACCESS(offset, 0, count))


# ---- clients that do not read ----


def fill(rig: Rig, client: Client, replies: int) -> None:
    """Ask for so many replies of 4 KiB without reading one."""
    client.sock.setblocking(False)
    for message_id in range(replies):
        with contextlib.suppress(BlockingIOError):
            client.post_raw(read(message_id, PAGE))
        rig.loop.run_once(0)


def test_a_client_that_does_not_read_holds_nobody_up_and_is_dropped(
    rig: Rig, client: Client, neighbour: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "STALL_S", 1.0)
    other = neighbour.connect()
    other.negotiate()
    begin = time.monotonic()
    fill(rig, client, 1000)
    assert other.region_read(0, 0, 4) == bytes(4)
    assert rig.server.connected
    while rig.server.connected:
        assert time.monotonic() - begin < 10
        rig.loop.run_once(0.1)
    assert rig.server.counters[ServerCount.CLIENT_DOES_NOT_READ] == 1
    assert rig.loop_is_idle()


def test_what_waits_for_a_client_is_bounded(rig: Rig, client: Client) -> None:
    """A client whose replies pile up is not listened to, so that its next commands stay in the socket."""
    handled: list[int] = []
    rig.device.on_read = lambda region, offset, count: handled.append(count)
    fill(rig, client, 2000)
    in_socket = 2 * client.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert len(handled) * PAGE < outbox.FULL_BYTES + in_socket
    assert rig.loop_is_idle()


def test_large_replies_of_one_slice_are_bounded(rig: Rig, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast the host makes them."""
    monkeypatch.setattr(connection, "SLICE_S", 10.0)
    size = 1 << 20
    rig.device.regions[0].size = size
    rig.server.disconnect()
    client = rig.connect()
    client.negotiate()
    handled: list[int] = []

    def on_read(region: int, offset: int, count: int) -> bytes:
        handled.append(count)
        return large

    large = bytes(size)
    rig.device.on_read = on_read
    client.post_raw(b"".join(read(message_id, size) for message_id in range(50)))
    rig.loop.run_once(0)
    # one fills the socket and the better part of the outbox, the next one the rest of it
    assert len(handled) <= 3


def test_a_full_outbox_lets_no_command_in_with_a_message(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    fill(rig, client, 1000)
    handled: list[int] = []
    rig.device.on_read = lambda region, offset, count: handled.append(count)
    with pytest.raises(DmaError, match="no reply in time"):
        rig.server.dma.read(0, 4)
    assert handled == []


def test_replies_that_had_to_wait_come_whole_and_in_order(rig: Rig, client: Client) -> None:
    rig.device.on_read = lambda region, offset, count: bytes([len(asked) & 0xFF]) * count
    asked: list[int] = []
    client.sock.setblocking(False)
    for message_id in range(1500):
        try:
            client.post_raw(read(message_id, PAGE))
        except BlockingIOError:
            break
        rig.loop.run_once(0)
        asked.append(message_id)
    assert len(asked) > outbox.FULL_BYTES // PAGE
    client.sock.setblocking(True)
    seen = []
    for _ in asked:
        rig.loop.run_once(0)
        message = client.receive()
        assert len(set(message.payload[16:])) == 1
        seen.append(message.message_id)
    assert seen == asked
    assert client.region_read(0, 0, 4) == bytes([len(asked) & 0xFF]) * 4


def test_a_descriptor_goes_with_the_reply_that_had_to_wait(rig: Rig, client: Client) -> None:
    asked = proto.REGION_INFO.pack(64, 0, 3, 0, 0, 0)
    count = 0
    client.sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while count < 400:
            client.post_raw(read(7, PAGE))
            client.post_raw(proto.request(8, Command.DEVICE_GET_REGION_INFO, asked))
            rig.loop.run_once(0)
            count += 1
    client.sock.setblocking(True)
    for _ in range(count):
        assert client.receive().fds == []
        message = client.receive()
        assert len(message.fds) == 1
        with closing(*message.fds):
            rig.step()


# ---- slices ----


def test_a_flood_is_served_in_slices(rig: Rig, client: Client, neighbour: Rig) -> None:
    """400 writes of 1 ms: the neighbour's read comes between them, and they all come, in order."""
    rig.device.on_write = lambda *access: time.sleep(0.001)
    other = neighbour.connect()
    other.negotiate()
    client.post_raw(b"".join(posted(8 * i, i.to_bytes(8, "little")) for i in range(400)) + read(9, 3200))
    rig.loop.run_once(0)
    other.post_raw(read(5))
    rig.loop.run_once(0)
    assert len(rig.device.writes) < 10
    assert other.receive().message_id == 5
    for _ in range(400):  # however long a write takes on a busy host, a slice has one at least
        if len(rig.device.writes) == 400:
            break
        rig.loop.run_once(1)
    assert len(rig.device.writes) == 400
    rig.loop.run_once(1)
    assert client.receive().payload[16:] == b"".join(i.to_bytes(8, "little") for i in range(400))
    assert rig.loop_is_idle()


def test_refused_commands_are_served_in_slices(rig: Rig, client: Client) -> None:
    """Each refusal costs a line of log or a count, and a reply."""
    bad = proto.request(3, Command.REGION_READ, ACCESS(1 << 40, 0, 4))
    client.post_raw(bad * 1500)
    rig.loop.run_once(0)
    assert 0 < rig.server.counters[ServerCount.REFUSED] < 1000
    for _ in range(1500):
        rig.loop.run_once(0)
        assert client.receive().errno == errno.EINVAL


def test_a_failure_in_the_middle_of_messages_ends_the_connection(
    rig: Rig, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would go on with what is left of them, or with nobody listening."""
    monkeypatch.setattr(rig.server._connection, "_dispatch", lambda *message: bytes(1 << 62))
    client.post_raw(read(1))
    with pytest.raises((MemoryError, OverflowError)):
        rig.loop.run_once(0)
    rig.step()
    assert not rig.server.connected
    assert rig.connect().negotiate()


def test_a_client_that_leaves_between_two_slices(rig: Rig, client: Client) -> None:
    rig.device.on_write = lambda *access: time.sleep(0.001)
    client.post_raw(posted(0) * 20)
    client.close()
    begin = time.monotonic()
    while rig.server.connected and time.monotonic() - begin < 60:
        rig.loop.run_once(0.1)
    assert len(rig.device.writes) == 20
    rig.step()
    assert rig.loop_is_idle()


def test_a_client_that_spoils_its_eventfds_holds_nobody_up(rig: Rig, client: Client) -> None:
    """The open file is shared: the client lets writes to it wait, and fills the counter."""
    with closing(*eventfds(1)) as (fd,):
        client.set_irqs(0x24, 2, 0, 1, fds=[fd])
        os.set_blocking(fd, True)
        os.eventfd_write(fd, (1 << 64) - 2)
        # a server that waits would wait for ever
        guard = threading.Timer(5, os.eventfd_read, [fd])
        guard.start()
        begin = time.monotonic()
        rig.server.irqs.raise_irq(0)
        client.set_irqs(0x21, 2, 0, 1)
        assert time.monotonic() - begin < 4
        guard.cancel()
        guard.join()


def test_a_device_with_too_much_to_do_is_given_no_more(rig: Rig, client: Client, neighbour: Rig) -> None:
    busy = True
    rig.device.overloaded = lambda: busy  # type: ignore[attr-defined]
    rig.server.disconnect()
    client = rig.connect()
    other = neighbour.connect()
    client.post_raw(proto.request(1, Command.VERSION, proto.pack_version(0, None)) + posted(0))
    rig.step()
    assert rig.device.writes == []
    assert other.negotiate()
    busy = False
    rig.step()
    assert len(rig.device.writes) == 1
    assert client.receive().command == Command.VERSION
    assert rig.loop_is_idle()


# ---- DMA by message ----


def reading(rig: Rig, count: int) -> list[str]:
    """Have the device read guest memory `count` times in each write; return the errors of that."""
    errors: list[str] = []

    def on_write(*access: object) -> None:
        for _ in range(count):
            try:
                rig.server.dma.read(0, 4)
            except DmaError as error:
                errors.append(str(error))

    rig.device.on_write = on_write
    return errors


def test_unanswered_messages_of_a_step_share_one_wait(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    errors = reading(rig, 100)
    begin = time.monotonic()
    client.region_write(0, 0, bytes(8), posted=True)
    # each for itself would take 20 s
    assert time.monotonic() - begin < 5
    assert len(errors) == 100
    assert "no reply in time" in errors[0]
    assert all("long enough" in text for text in errors[1:])
    assert rig.server.counters[ServerCount.DMA_TIMEOUT] == 1
    assert client.receive().command == Command.DMA_READ
    # nothing was sent for those that could not be waited for
    assert client.is_quiet()


def test_a_client_that_does_it_again_is_dropped_whoever_it_is(rig: Rig, client: Client) -> None:
    """The time is the card's: a new connection does not get it anew."""
    errors = reading(rig, 1)
    for _ in range(20):
        if not rig.server.connected:
            client = rig.connect()
            client.negotiate()
        rig.server.dma.unmap_all()
        rig.server.dma.map(0, PAGE, 0, 3, None)
        client.region_write(0, 0, bytes(8), posted=True)
    assert rig.server.counters[ServerCount.SLOW_DMA_CLIENT] >= 1
    assert len(errors) == 20
    # what is left is a debt, or what comes back in a moment
    assert rig.server._wait_budget.limit(time.monotonic()) < wait_budget.ACCOUNT_S / 10


def test_a_slow_client_is_dropped_and_a_quick_one_is_not(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    errors = reading(rig, 1)
    answer = proto.reply(0, Command.DMA_READ, proto.DMA_ACCESS.pack(0, 4) + b"1234")
    for message_id in range(500):
        client.post_raw(posted(0) + message_id.to_bytes(2, "little") + answer[2:])
        rig.step()
    assert errors == []
    assert rig.server.connected


def test_many_messages_in_one_step(rig: Rig, client: Client) -> None:
    """Answers are not what may not come before an answer."""
    client.dma_map(0, PAGE)
    count = 3 * connection.MAX_AHEAD
    answer = proto.DMA_ACCESS.pack(0, 4) + b"1234"
    for message_id in range(count):
        client.post_raw(proto.reply(message_id, Command.DMA_READ, answer))
        assert rig.server.dma.read(0, 4) == b"1234"


def test_what_comes_before_a_reply_is_bounded(rig: Rig, client: Client) -> None:
    """A flood of writes, each of which reads guest memory: without a bound all of them would nest or pile up."""
    client.dma_map(0, PAGE)
    handled: list[int] = []
    rig.device.on_write = lambda region, offset, data: handled.append(offset)
    per_send = 1000
    client.sock.setblocking(False)

    def flood() -> None:
        with contextlib.suppress(BlockingIOError):
            client.sock.send(posted(0) * per_send)

    poll, patched = connection.Connection._wait, 0

    def wait(self: connection.Connection, timeout_s: float) -> bool:
        nonlocal patched
        patched += 1
        flood()
        return poll(self, timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection.Connection, "_wait", wait)
        with pytest.raises(DmaError, match="no reply among"):
            rig.server.dma.read(0, 4)
        with pytest.raises(DmaError, match="long enough"):
            rig.server.dma.read(0, 4)
    assert patched > 0
    assert len(handled) == connection.MAX_AHEAD
    begin = time.monotonic()
    while len(handled) < per_send and time.monotonic() - begin < 60:
        rig.loop.run_once(0.1)
    # what had come meanwhile was kept, and comes after others had their turn
    assert len(handled) >= per_send
    assert rig.server.connected


def test_a_flood_with_messages_in_between_gets_one_slice_a_round(rig: Rig, client: Client) -> None:
    """Each unanswered message leaves something to be taken up again, but not once more each time."""
    client.dma_map(0, PAGE)
    reads = iter(range(1 << 30))

    def on_write(*access: object) -> None:
        time.sleep(0.0001)
        if next(reads) % 200 == 0:
            with contextlib.suppress(DmaError):
                rig.server.dma.read(0, 4)

    rig.device.on_write = on_write
    client.sock.setblocking(False)
    while rig.server.counters[ServerCount.DMA_OVERTAKEN] < 8:
        with contextlib.suppress(BlockingIOError):
            client.sock.send(posted(0) * 1000)
        rig.loop.run_once(0)
        # the next slice, and the end of the round of a message
        assert len(rig.loop._later) <= 2


def test_what_came_behind_a_reply_is_handled_soon(rig: Rig, client: Client) -> None:
    """DMA from a timer or a packet: no wake-up of the socket is left for what was read along."""
    client.dma_map(0, PAGE)
    answer = proto.reply(0, Command.DMA_READ, proto.DMA_ACCESS.pack(0, 4) + b"1234")
    client.post_raw(posted(0) + answer + posted(8) + read(3))
    assert rig.server.dma.read(0, 4) == b"1234"
    assert [offset for _, offset, _ in rig.device.writes] == [0]
    rig.step()
    assert [offset for _, offset, _ in rig.device.writes] == [0, 8]
    assert client.receive().command == Command.DMA_READ
    assert client.receive().message_id == 3


# ---- hanging up, and what is not in the book ----


@pytest.mark.parametrize("unread", [b"", posted(0), posted(0)[:9]])
def test_who_comes_next_does_not_suffer_for_one_that_has_just_gone(rig: Rig, unread: bytes) -> None:
    gone = rig.connect()
    if unread:
        gone.post_raw(unread)
    gone.close()
    client = rig.connect()
    assert client.negotiate()
    assert rig.server.counters[ServerCount.CLIENTS_REFUSED] == 0
    assert rig.device.resets == ["lost_connection"]
    assert client.region_read(0, 0, 4) == bytes(4)


def test_a_client_that_only_stops_sending_is_still_there(rig: Rig, client: Client) -> None:
    client.sock.shutdown(socket.SHUT_WR)
    second = rig.connect()
    assert rig.server.counters[ServerCount.CLIENTS_REFUSED] == 1
    rig.step()
    assert second.sock.recv(1) == b""


def test_a_byte_out_of_band_ends_the_connection(rig: Rig, client: Client) -> None:
    try:
        client.sock.send(b"x", socket.MSG_OOB)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("this kernel knows no bytes out of band on unix sockets")
    rig.step()
    assert not rig.server.connected
    assert rig.server.counters[ServerCount.FRAMING_ERROR] == 1
    assert rig.loop_is_idle()


def test_no_reply_means_no_reply_to_too_many_descriptors_either(rig: Rig, client: Client) -> None:
    with closing(*eventfds(17)) as fds:
        client.send_raw(proto.request(5, Command.DEVICE_SET_IRQS, bytes(20), no_reply=True), fds)
    assert client.is_quiet()
    assert rig.server.counters[ServerCount.REFUSED] == 1


def test_no_reply_means_no_reply_to_an_unknown_type_either(rig: Rig, client: Client) -> None:
    client.send_raw(header(5, Command.REGION_READ, 16, flags=proto.FLAGS_NO_REPLY | 3))
    assert client.is_quiet()
    assert rig.server.counters[ServerCount.REFUSED] == 1


def test_no_reply_means_no_reply_to_a_bad_size_either(rig: Rig, client: Client) -> None:
    client.send_raw(header(5, Command.REGION_READ, 8, flags=proto.FLAGS_NO_REPLY))
    assert client.hung_up()


def test_a_server_without_descriptors_accepts_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ACCEPT_PAUSE_S", 0.1)
    loop = SelectLoop()
    card = Server(tmp_path / "card.sock", ToyDevice(-1))
    card.start(loop)
    waiting = socket.socket(socket.AF_UNIX)
    waiting.connect(str(card.path))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        loop.run_once(0)
        for _ in range(3):
            # it does not try again at once
            assert not loop.run_once(0)
        assert card.counters[ServerCount.ACCEPT_FAILED] == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    loop.run_once(1)
    loop.run_once(1)
    assert card.connected
    waiting.close()
    card.close()
    loop.close()


def test_clients_do_not_fill_the_log(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by one message after the other, nor by one connection after the other."""
    monkeypatch.setattr(server, "LOG_LINES_PER_S", 0)
    for _ in range(5):
        client = rig.connect()
        client.negotiate()
        for _ in range(server.LOG_LINES // 2):
            rig.connect()
            with pytest.raises(OSError, match="Invalid argument"):
                client.region_read(0, 1 << 40, 4)
        client.close()
    assert (
        rig.server.counters[ServerCount.REFUSED]
        == rig.server.counters[ServerCount.CLIENTS_REFUSED]
        == 5 * server.LOG_LINES // 2
    )
    assert len(caplog.records) == server.LOG_LINES + 1


def test_the_log_has_room_again_after_a_while(
    rig: Rig, client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LOG_LINES_PER_S", 0)
    for _ in range(2 * server.LOG_LINES):
        rig.connect()
    monkeypatch.setattr(server, "LOG_LINES_PER_S", 1e9)
    caplog.clear()
    rig.connect()
    assert "a second client" in caplog.text
