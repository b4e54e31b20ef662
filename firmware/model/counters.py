"""What the firmware counts. `docs/counters.md` is made from this."""

from enum import IntEnum
from typing import Final

from vhca.counting import Family, Name
from vhca.wire.connectx.cmd import Op


class Count(Name):
    """Counters of one card's program; resets do not clear them."""

    COMMANDS = "commands", "Commands that were executed, well or not."
    COMMANDS_REFUSED = "commands_refused", "Commands that ended with a status other than OK."
    COMMAND_UNKNOWN = "command_unknown", "Commands with an opcode that nobody has declared."
    REGISTER_UNKNOWN = "register_unknown", "ACCESS_REG commands for a register, or a way of access, that is not there."
    LEAKED_OBJECTS = "leaked_objects", "Objects that the host had not destroyed when it said goodbye."
    MEMORY_USED_BYTES = "memory_used_bytes", "Bytes of the server that the card's objects take now."
    MEMORY_MOST_BYTES = "memory_most_bytes", "The most bytes that they took at once."
    MEMORY_LIMIT_BYTES = "memory_limit_bytes", "Bytes that they may take."

    SQ_DOORBELLS = "sq_doorbells", "Doorbells of send queues that were heard."
    SQ_DOORBELL_UNKNOWN = (
        "sq_doorbell_unknown",
        "Doorbells for a queue pair that is not there or listens to another page.",
    )
    CQ_DOORBELL_UNKNOWN = (
        "cq_doorbell_unknown",
        "Doorbells for a completion queue that is not there or listens to another page.",
    )
    EQ_DOORBELL_UNKNOWN = (
        "eq_doorbell_unknown",
        "Doorbells for an event queue that is not there or listens to another page.",
    )
    EQ_DOORBELL_INVALID = "eq_doorbell_invalid", "Doorbells with a consumer index in front of the producer's; ignored."
    DOORBELLS_EARLY = "doorbells_early", "Doorbells of queue pairs that do not send yet; looked at on the way into RTS."

    EQES = "eqes", "Entries written to event queues."
    EQ_OVERRUN = "eq_overrun", "Events that were lost because their queue was full."
    INTERRUPTS = "interrupts", "MSI-X vectors raised."
    CQES = "cqes", "Completions written."
    CQES_LOST = "cqes_lost", "Completions that were lost because their queue had failed."
    CQ_ERRORS = "cq_errors", "Completion queues that failed (overrun, or memory that is not there)."

    QP_EVENTS_WITHOUT_ROW = (
        "qp_events_without_row",
        "Events inside the card that meant nothing to a queue pair in its state: a fault of ours, without effect.",
    )
    DMA_READ_ERRORS = "dma_read_errors", "Reads of guest memory that failed: queues, records, data."
    PAGE_FAULTS = "page_faults", "Pages that the host was asked for (on-demand paging)."
    PAGE_FAULTS_RESUMED = "page_faults_resumed", "Page faults that the host answered with the page."
    PAGE_FAULTS_FAILED = "page_faults_failed", "Page faults that the host answered with an error."

    TX_PACKETS = "tx_packets", "Packets that connected queue pairs sent."
    TX_BYTES = "tx_bytes", "Bytes of payload that connected queue pairs sent."
    COMPRESSED_SESSIONS = "compressed_sessions", "Times that several completions were written as one, compressed."
    TRAINS = "trains", "Runs of messages to another card of the process that the engine in C executed at once."
    TRAIN_MESSAGES = "train_messages", "Messages in them."
    TRAINS_APART = "trains_apart", "Those that were left to another thread while other cards had their turn."
    TX_UD_PACKETS = "tx_ud_packets", "Datagrams sent."
    TX_UD_BYTES = "tx_ud_bytes", "Bytes of payload in datagrams sent, without GRH."
    TX_DROP_PORT_INACTIVE = (
        "tx_drop_port_inactive",
        "Packets or bursts that were not sent since the port was not active, or had no lane for their service level.",
    )
    RETRANSMITS = "retransmits", "Times that a requester went back to an unacknowledged PSN."
    NAKS = "naks", "NAKs sent, without those for receivers that are not ready."
    RNR_NAKS = "rnr_naks", "NAKs sent because no receive was posted or a page was missing."
    UMRS = "umrs", "User-mode memory registrations that were executed."
    REMOTE_INVALIDATES = "remote_invalidates", "Keys that a peer's SEND with invalidate took away."
    DC_CONNECTS = "dc_connects", "Connections that dynamically connected initiators made."
    DC_ACCEPTS = "dc_accepts", "Connections that dynamically connected targets took."
    DC_KEY_VIOLATIONS = "dc_key_violations", "Requests for a target with another access key."

    RX_PACKETS = "rx_packets", "Packets that passed the checks of a connected queue pair."
    RX_BYTES = "rx_bytes", "Bytes of payload that connected queue pairs stored."
    RX_UD_PACKETS = "rx_ud_packets", "Datagrams received."
    RX_UD_BYTES = "rx_ud_bytes", "Bytes of payload in datagrams received, without GRH."
    RX_NAKS = "rx_naks", "NAKs received, without those of receivers that were not ready."
    RX_RNR_NAKS = "rx_rnr_naks", "NAKs received because the peer was not ready."
    RX_GHOST_ACKS = "rx_ghost_acks", "Acknowledges and responses that answer nothing that is outstanding."
    RX_OUT_OF_SEQUENCE = "rx_out_of_sequence", "Requests that came in front of the expected PSN."
    RX_DUPLICATE_REQUESTS = "rx_duplicate_requests", "Requests that had been executed before."
    RX_DUPLICATE_RESPONSES = "rx_duplicate_responses", "Responses that had been taken before."
    RX_BURSTS_CUT = "rx_bursts_cut", "Bursts that were stored in parts since their memory is in many pieces."
    RX_MULTICAST_LOOPBACK_BLOCKED = (
        "rx_multicast_loopback_blocked",
        "Copies of a multicast datagram that its own sender did not want.",
    )
    SMPS_HANDLED = "smps_handled", "Subnet management packets from the wire for the card's agent."
    SMPS_UNANSWERED = "smps_unanswered", "Those of them that got no answer."

    RX_DROP_CRC = "rx_drop_crc", "Packets or bursts whose CRC was wrong."
    RX_DROP_PORT = "rx_drop_port", "Packets or bursts for a port that the card does not have."
    RX_DROP_PORT_INACTIVE = "rx_drop_port_inactive", "Packets or bursts that arrived while the port was not active."
    RX_DROP_MALFORMED = "rx_drop_malformed", "Packets whose length or form does not go with their opcode."
    RX_DROP_UNKNOWN_QP = "rx_drop_unknown_qp", "Packets for a number that is no queue pair and no target."
    RX_DROP_SERVICE = "rx_drop_service", "Packets for a queue pair of another service or port."
    RX_DROP_QP_STATE = "rx_drop_qp_state", "Packets for a queue pair whose state does not take them."
    RX_DROP_PATH = "rx_drop_path", "Packets of a connection with LIDs that are not its own."
    RX_DROP_DLID = "rx_drop_dlid", "Datagrams to a LID that is not the port's."
    RX_DROP_GID = "rx_drop_gid", "Packets whose GRH is missing, superfluous, or has other GIDs."
    RX_DROP_PKEY = "rx_drop_pkey", "Packets of another partition."
    RX_DROP_QKEY = "rx_drop_qkey", "Datagrams with another Q_Key."
    RX_DROP_SMP = "rx_drop_smp", "Packets for QP0 that are no subnet management, or not on VL15."
    RX_DROP_NO_MANAGEMENT_QP = "rx_drop_no_management_qp", "Datagrams for QP0 or QP1 that nobody served."
    RX_DROP_NO_RECEIVE = "rx_drop_no_receive", "Unreliable messages that found no receive posted."
    RX_DROP_TOO_LONG = "rx_drop_too_long", "Unreliable messages that were longer than their receive."
    RX_DROP_PAGING = "rx_drop_paging", "Packets that could not be stored while a page was missing."
    RX_DROP_BACKLOG = "rx_drop_backlog", "Packets that came while too many waited behind one that is stored in parts."
    RX_DROP_CARD_MEMORY = "rx_drop_card_memory", "Packets that there was no memory of the card to keep."
    RX_DROP_REFUSED = "rx_drop_refused", "Requests behind one whose refusal waits to be sent."
    RX_DROP_REPLIES = "rx_drop_replies", "Requests that came while as many replies waited as a peer can ask for."
    RX_DROP_STALE_DUPLICATE = "rx_drop_stale_duplicate", "Duplicates of requests whose answer is not known any more."
    RX_DROP_SYNDROME = "rx_drop_syndrome", "Acknowledges with a reserved syndrome."
    RX_DROP_MULTICAST_UNKNOWN = "rx_drop_multicast_unknown", "Multicast datagrams for a group without a member here."
    RX_DROP_MULTICAST_BACKLOG = "rx_drop_multicast_backlog", "Multicast datagrams that came while too many were copied."
    RX_DROP_UC_SEQUENCE = "rx_drop_uc_sequence", "UC packets that do not continue the message under way."
    RX_DROP_UC_OPCODE = "rx_drop_uc_opcode", "UC packets with an operation that UC does not have."
    RX_DROP_UC_LENGTH = "rx_drop_uc_length", "UC WRITEs whose data are not as long as they say."
    RX_DROP_UC_RIGHTS = "rx_drop_uc_rights", "UC WRITEs to a queue pair that allows none."
    RX_DROP_UC_KEY = "rx_drop_uc_key", "UC WRITEs to memory that their key does not open."
    RX_DROP_XRC_INITIATOR = "rx_drop_xrc_initiator", "Requests for an XRC initiator, which takes none."
    RX_DROP_DC_INITIATOR = "rx_drop_dc_initiator", "Requests for a DC initiator, which takes none."


class Outcome(IntEnum):
    """What became of a WQE, or why it is for the engine in Python."""

    FINE = 0
    """It was executed."""
    MISSING = 1
    """It needs a key that the card's table lacks."""
    OPERATION = 2
    """An operation that only Python knows."""
    REGISTRATION = 3
    """A registration, which Python executes at once."""
    DESTINATION = 4
    """A datagram or XRC message for somebody else than the train is for."""
    MALFORMED = 5
    """Not the WQE that is expected there."""
    LENGTH = 6
    """Longer than a train carries, or than its service does."""
    KEY = 7
    """A key that is not granted, or that C cannot translate."""
    MEMORY = 8
    """Memory that is not reached by address, or that is in too many pieces."""
    RIGHTS = 9
    """The queue pair does not let its peer do that."""
    RECEIVE = 10
    """No receive is posted, or none that is long enough."""
    LIMIT = 11
    """The limit of a shared receive queue is due."""
    ROOM = 12
    """A completion queue is full."""
    RING = 13
    """A ring, or its record, is not reached by address."""
    NO_WAY = 14
    """No two cards of one process with nothing between them, or not of the common kind."""
    NOT_EXPECTED = 15
    """The other side does something else, or expects another message."""


class CountOf(Family):
    """Counters of one card's program, by number."""

    COMMAND_UNKNOWN = "command_unknown_{}", "Commands that this card does not have, by the name of their opcode.", Op
    EVENT_UNCLAIMED = "event_{:#04x}_unclaimed", "Events that no event queue had asked for, by type.", 256
    MAD_CLASS_REFUSED = "mad_class_{:#04x}_refused", "Datagrams of a management class that is not served.", 256
    SEND_ERRORS = "send_errors_{:#04x}", "Send completions in error, by syndrome, without flushed ones.", 256
    RECEIVE_ERRORS = "receive_errors_{:#04x}", "Receive completions in error, by syndrome, without flushed ones.", 256
    TRAIN_ENDS = "train_ends_{}", "Times that the engine in C left the next message to Python, by its reason.", Outcome


class SmpCount(Name):
    """Counters of the subnet management agent; they begin again at power-on."""

    SMP_DISCARDED = "smp_discarded", "Datagrams that are no SMP, or for a port that is not there."
    SMP_NO_REPLY = "smp_no_reply", "SMPs whose method asks for no answer."
    SMP_BAD_PATH = "smp_bad_path", "Directed-route SMPs whose path does not end here."
    SMP_BAD_MKEY = "smp_bad_mkey", "SMPs without the M_Key."
    SMP_TRAPS = "smp_traps", "Traps that were sent, each time that they were."


class SmpCountOf(Family):
    """Counters of the subnet management agent, by number."""

    UNSUPPORTED_ATTRIBUTE = (
        "smp_unsupported_attribute_{:#06x}",
        "SMPs for an attribute that the agent does not have.",
        32,
    )


class QCount(Name):
    """Counters of a counter set, as QUERY_Q_COUNTER gives them; each is a field of its output."""

    RX_WRITE_REQUESTS = "rx_write_requests", "WRITE requests received."
    RX_READ_REQUESTS = "rx_read_requests", "READ requests received."
    RX_ATOMIC_REQUESTS = "rx_atomic_requests", "Atomic requests received."
    OUT_OF_BUFFER = "out_of_buffer", "Messages that found no receive posted."
    OUT_OF_SEQUENCE = "out_of_sequence", "Requests that came in front of the expected PSN."
    DUPLICATE_REQUEST = "duplicate_request", "Requests that had been executed before."
    RNR_NAK_RETRY_ERR = "rnr_nak_retry_err", "Times that a peer was not ready."
    PACKET_SEQ_ERR = "packet_seq_err", "NAKs received for a sequence error."
    IMPLIED_NAK_SEQ_ERR = "implied_nak_seq_err", "Responses that showed that an earlier one was lost."
    LOCAL_ACK_TIMEOUT_ERR = "local_ack_timeout_err", "Times that no acknowledge came in time."
    RESP_LOCAL_LENGTH_ERROR = "resp_local_length_error", "Receives that were too short."
    REQ_LOCAL_LENGTH_ERROR = "req_local_length_error", "Sends with a length that their service does not have."
    RESP_LOCAL_QP_ERROR = "resp_local_qp_error", "Receives that the queue pair could not execute."
    LOCAL_OPERATION_ERROR = "local_operation_error", "Sends that the queue pair could not execute."
    RESP_LOCAL_PROTECTION = "resp_local_protection", "Receives into memory that their key does not open."
    REQ_LOCAL_PROTECTION = "req_local_protection", "Sends from memory that their key does not open."
    RESP_CQE_ERROR = "resp_cqe_error", "Receive completions in error."
    REQ_CQE_ERROR = "req_cqe_error", "Send completions in error."
    REQ_MW_BINDING = "req_mw_binding", "Binds of memory windows that failed."
    REQ_BAD_RESPONSE = "req_bad_response", "Responses with an opcode that was not expected."
    REQ_REMOTE_INVALID_REQUEST = "req_remote_invalid_request", "Sends that the peer refused as invalid."
    REQ_REMOTE_ACCESS_ERRORS = "req_remote_access_errors", "Sends that the peer refused for want of access."
    RESP_REMOTE_ACCESS_ERRORS = "resp_remote_access_errors", "Requests refused for want of access."
    RESP_REMOTE_INVALID_REQUEST = "resp_remote_invalid_request", "Requests refused as invalid."
    REQ_REMOTE_OPERATION_ERRORS = "req_remote_operation_errors", "Sends that the peer could not execute."
    REQ_TRANSPORT_RETRIES_EXCEEDED = "req_transport_retries_exceeded", "Sends that nobody acknowledged at last."
    REQ_RNR_RETRIES_EXCEEDED = "req_rnr_retries_exceeded", "Sends whose peer was not ready at last."
    RESP_CQE_FLUSH_ERROR = "resp_cqe_flush_error", "Receives that were flushed."
    REQ_CQE_FLUSH_ERROR = "req_cqe_flush_error", "Sends that were flushed."


# Those of each packet and entry, under names that cost no look into the enum.
TRAINS: Final = Count.TRAINS
TRAIN_MESSAGES: Final = Count.TRAIN_MESSAGES
TX_PACKETS: Final = Count.TX_PACKETS
TX_BYTES: Final = Count.TX_BYTES
TX_UD_PACKETS: Final = Count.TX_UD_PACKETS
TX_UD_BYTES: Final = Count.TX_UD_BYTES
RX_PACKETS: Final = Count.RX_PACKETS
RX_BYTES: Final = Count.RX_BYTES
RX_UD_PACKETS: Final = Count.RX_UD_PACKETS
RX_UD_BYTES: Final = Count.RX_UD_BYTES
CQES: Final = Count.CQES
EQES: Final = Count.EQES
INTERRUPTS: Final = Count.INTERRUPTS
SQ_DOORBELLS: Final = Count.SQ_DOORBELLS
