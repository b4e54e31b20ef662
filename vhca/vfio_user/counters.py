"""What a server counts. `docs/counters.md` is made from this."""

from typing import Final, Literal

from vhca.counting import Name

Access = Literal["mapped", "copied", "message"]
"""How guest memory is reached."""


class ServerCount(Name):
    """Counters of a vfio-user server."""

    CLIENTS = "clients", "Clients that were taken."
    CLIENTS_REFUSED = "clients_refused", "Clients that were turned away since there was one."
    ACCEPT_FAILED = "accept_failed", "Clients that could not be taken: no descriptors, no memory."
    REFUSED = "refused", "Commands that were answered with an error, or not understood."
    POSTED_WRITE_REFUSED = "posted_write_refused", "Writes without a reply that were outside of a region, or too early."
    DEVICE_ERROR = "device_error", "Times that the device raised an exception."
    FRAMING_ERROR = "framing_error", "Clients that were dropped since no message could be made out."
    FDS_OUT_OF_PLACE = "fds_out_of_place", "Descriptors inside the body of a message; closed."
    CLIENT_DOES_NOT_READ = "client_does_not_read", "Clients that were dropped since they did not read their replies."
    SLOW_WAKE = "slow_wake", "Times that messages kept the loop for more than a second."
    UNEXPECTED_REPLY = "unexpected_reply", "Replies to no message."
    LATE_REPLY = "late_reply", "Replies to DMA messages that had been given up."
    DMA_REFUSED = (
        "dma_refused",
        "Accesses to memory that were not asked for: the client waits, or has made others wait.",
    )
    DMA_OVERTAKEN = "dma_overtaken", "DMA messages that were given up since too many others came first."
    DMA_TIMEOUT = "dma_timeout", "DMA messages that were given up since no reply came in time."
    SLOW_DMA_CLIENT = "slow_dma_client", "Clients that were dropped for slow replies."
    DMA_MAP_MAPPED = "dma_map_mapped", "DMA mappings of memory that is mapped here."
    DMA_MAP_COPIED = "dma_map_copied", "DMA mappings of files that are read and written."
    DMA_MAP_MESSAGE = "dma_map_message", "DMA mappings without a file: the client reads and writes."


DMA_MAP: Final[dict[Access, ServerCount]] = {
    "mapped": ServerCount.DMA_MAP_MAPPED,
    "copied": ServerCount.DMA_MAP_COPIED,
    "message": ServerCount.DMA_MAP_MESSAGE,
}
