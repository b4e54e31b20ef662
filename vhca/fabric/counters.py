"""What cables, switch, subnet manager and subnet administration count. `docs/counters.md` is made from this."""

from vhca.counting import Family, Name


class PortCount(Name):
    """Counters of a card's port as the switch sees it: what the card sent (xmit) and was sent (rcv)."""

    XMIT_DATA = "xmit_data", "Words of 4 bytes that the card sent, from LRH to ICRC."
    RCV_DATA = "rcv_data", "Words of 4 bytes that the card was sent."
    XMIT_PKTS = "xmit_pkts", "Packets that the card sent."
    RCV_PKTS = "rcv_pkts", "Packets that the card was sent."
    MULTICAST_XMIT_PKTS = "multicast_xmit_pkts", "Multicast packets among those that the card sent."
    MULTICAST_RCV_PKTS = "multicast_rcv_pkts", "Multicast packets among those that the card was sent."
    LINK_DOWNED = "link_downed", "Times that the link went down."


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
    SL_TO_VL = "sl_to_vl", "Its service level has no virtual lane at the port of departure."
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


class ManagerCount(Name):
    """Counters of the subnet manager."""

    HEAVY_SWEEPS = "heavy_sweeps", "Times that it found and set up the whole subnet."
    LIGHT_SWEEPS = "light_sweeps", "Times that it looked whether the subnet is as it was left."
    TRAPS = "traps", "Notices from agents."
    TIMEOUTS = "timeouts", "Requests that got no answer."
    LATE_ANSWERS = "late_answers", "Answers to no request, or by another port."
    REFUSED_SETS = "refused_sets", "Sets that agents refused."
    BAD_SMP = "bad_smp", "Datagrams with another length than an SMP has."
    UNEXPECTED_SMP = "unexpected_smp", "SMPs that are no answer, no trap and no question about the manager."
    CHANGED_TABLES = "changed_tables", "Table blocks of switches that were not as they were left."
    CHANGED_PKEYS = "changed_pkeys", "P_Key tables of cards that were not as they were left."
    CHANGED_GUIDS = "changed_guids", "GUID tables of cards that were not as they were left."
    ENABLED_PORTS = "enabled_ports", "Ports of switches that were found disabled and polled again."


class DirectoryCount(Name):
    """Counters of subnet administration."""

    REQUESTS = "requests", "Requests that were taken."
    TOO_MANY_REQUESTS = "too_many_requests", "Requests that came while their sender's queue was full."
    BAD_PACKET = "bad_packet", "Datagrams that are no subnet administration."
    BAD_SM_KEY = "bad_sm_key", "Requests with an SM_Key; nobody knows one."
    NOT_ONES_OWN = "not_ones_own", "Requests for what is another port's."
    LONG_REQUESTS = "long_requests", "Requests of several segments, which no record has."
    RESPONSES = "responses", "Responses, for which nobody here waits."
    REPORTS = "reports", "Reports sent to subscribers."
    REPORTS_LOST = "reports_lost", "Events that subscribers did not hear of since too many waited."


class DirectoryCountOf(Family):
    """Counters of subnet administration, by number."""

    UNSUPPORTED_ATTRIBUTE = "unsupported_attribute_{:#06x}", "Requests for an attribute that is not kept.", 32
