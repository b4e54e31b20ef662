"""What trunks count. `docs/counters.md` is made from this."""

from vhca.counting import Name


class TrunkCount(Name):
    """Counters of one trunk, at this rack's end."""

    SESSIONS = "sessions", "Times that both racks had found each other."
    XMIT_FRAMES = "xmit_frames", "Packets and bursts that were sent to the other rack."
    XMIT_BYTES = "xmit_bytes", "Bytes of payload in those that were sent."
    RCV_FRAMES = "rcv_frames", "Packets and bursts that came from the other rack."
    RCV_BYTES = "rcv_bytes", "Bytes of payload in those that came."
    WAITS = "waits", "Times that packets had to wait because the other rack had no room."
    LOST_DOWN = "lost_down", "Packets that were to be sent while the other rack was not there."
    LOST_VL15 = "lost_vl15", "Management packets that were lost because the other rack had no room."
    UNSENDABLE = "unsendable", "Packets that no cable could carry."
    LOST_SESSIONS = "lost_sessions", "Sessions that ended because nothing was heard, or nothing could be sent."
    MALFORMED = "malformed", "Frames that were none, or that said something that cannot be; they were dropped."
    OVERRUN = "overrun", "Packets beyond what the other rack was granted; they were dropped."
    STALE = "stale", "Frames of another session, which were dropped."
    STRANGERS = "strangers", "Racks with the right key that are built from another file, or are not at this cable."
    IGNORED = "ignored", "Frames that were dropped unread, because the other rack had sent too many wrong ones."
    REFUSED = "refused", "Connections with a key that is not the other rack's, or without one."
