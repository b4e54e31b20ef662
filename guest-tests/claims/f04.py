"""F04: side 1 sends side 0 bytes over a TCP connection to an address of IPoIB; nothing here knows of RDMA."""

import hashlib
import random
import socket

from common import Peer, arguments, tell

PORT = 5004


def receive(options):
    """Side 0."""
    peer = Peer(options)
    listener = socket.create_server((options.address, PORT))
    peer.meet()
    connection, caller = listener.accept()
    digest, count = hashlib.sha256(), 0
    while data := connection.recv(1 << 16):
        digest.update(data)
        count += len(data)
    tell(bytes=count, sha256=digest.hexdigest(), caller=caller[0])


def send(options):
    """Side 1."""
    data = random.Random(4).randbytes(options.bytes)
    peer = Peer(options)
    peer.meet()
    with socket.create_connection((options.address, PORT)) as connection:
        own = connection.getsockname()[0]
        connection.sendall(data)
    tell(sha256=hashlib.sha256(data).hexdigest(), own=own)


arguments_ = arguments(("address", {}), ("bytes", {"type": int}))
(receive if arguments_.peer.startswith("0") else send)(arguments_)
