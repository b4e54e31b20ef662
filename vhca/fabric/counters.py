"""What cables and switches count. `docs/counters.md` is made from this."""

from vhca.counting import Name


class PortCount(Name):
    """Counters of a card's port as the switch sees it: what the card sent (xmit) and was sent (rcv)."""

    XMIT_DATA = "xmit_data", "Words of 4 bytes that the card sent, from LRH to ICRC."
    RCV_DATA = "rcv_data", "Words of 4 bytes that the card was sent."
    XMIT_PKTS = "xmit_pkts", "Packets that the card sent."
    RCV_PKTS = "rcv_pkts", "Packets that the card was sent."
    MULTICAST_XMIT_PKTS = "multicast_xmit_pkts", "Multicast packets among those that the card sent."
    MULTICAST_RCV_PKTS = "multicast_rcv_pkts", "Multicast packets among those that the card was sent."
    LINK_DOWNED = "link_downed", "Times that the link went down."
    SYMBOL_ERRORS = "symbol_errors", "Wrong symbols that came out of the cable at the card."
    LINK_ERROR_RECOVERY = "link_error_recovery", "Times that the card's end recovered the link after many bad packets."
    XMIT_WAIT = "xmit_wait", "Ticks of 4 ns in which the card's end had something to send, and the other end no room."


class Drop(Name):
    """Why a packet went no further at a port of the switch."""

    BAD_CRC = "bad_crc", "Its CRC was wrong."
    PORT_NOT_ACTIVE = "port_not_active", "The port of arrival or departure does not pass data."
    BAD_SLID = "bad_slid", "Its source LID is not that of what hangs on the port."
    BAD_LID = "bad_lid", "Its destination is no LID that can be looked up."
    NO_ROUTE = "no_route", "The forwarding table has no port for its destination."
    LOOP = "loop", "It would leave where it came in."
    NO_GROUP = "no_group", "Its multicast group has no member."
    MTU = "mtu", "It is longer than the MTU of the port of departure."
    HOQ = "hoq", "It waited for the cable of departure for longer than HOQLife."
    SL_TO_VL = "sl_to_vl", "Its service level has no operational virtual lane at the port of departure."
    VL = "vl", "It came on a virtual lane that is not operational at its port of arrival."
    PKEY = "pkey", "Its P_Key is none that the port of arrival, or that of departure, lets pass."
    KEYS = "keys", "It was for the management port, whose P_Key or Q_Key it does not have."
    NO_MANAGER = "no_manager", "It was for the subnet manager, and there is none."
    BAD_SMP = "bad_smp", "It came on VL15 and is no subnet management."
    BAD_PATH = "bad_path", "Its directed route leads nowhere."
    BAD_MKEY = "bad_mkey", "It does not know the M_Key."
    LINK_DOWN = "link_down", "An SMP was to leave by a port whose link is down."
    GMP_BUSY = "gmp_busy", "As many questions from its port wait as may."
    GMP_NO_REPLY = "gmp_no_reply", "A datagram for a general service that deserves no answer."


class CableDrop(Name):
    """Why a packet was lost on a cable."""

    LINK_DOWN = "link_down", "The link was down, or went down while it was on the way."
    FAULT = "fault", "A fault that was ordered took it."
    VL15 = "vl15", "It came on VL15, which has no flow control, and the cable was full."
