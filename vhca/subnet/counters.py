"""What the subnet manager and subnet administration count. `docs/counters.md` is made from this."""

from vhca.counting import Family, Name


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
    ORDERS = "orders", "Orders of other managers that it obeyed: to take over, to be silent, to look again."
    REFUSED_ORDERS = "refused_orders", "Orders of other managers that it refused."
    HANDOVERS = "handovers", "Times that it handed the subnet over to a better manager."
    TAKEOVERS = "takeovers", "Times that the master was gone and it looked who is next."
    ENABLED_PORTS = "enabled_ports", "Ports of switches that were found disabled and polled again."


class DirectoryCount(Name):
    """Counters of subnet administration."""

    REQUESTS = "requests", "Requests that were taken."
    TOO_MANY_REQUESTS = "too_many_requests", "Requests that came while their sender's queue was full."
    BAD_PACKET = "bad_packet", "Datagrams that are no subnet administration."
    NOT_HERE = "not_here", "Datagrams while another manager was master, whose administration is elsewhere."
    BAD_SM_KEY = "bad_sm_key", "Requests with a wrong SM_Key."
    NOT_ONES_OWN = "not_ones_own", "Requests for what is another port's."
    RESPONSES = "responses", "Responses, for which nobody here waits."
    REPORTS = "reports", "Reports sent to subscribers."
    REPORTS_LOST = "reports_lost", "Events that subscribers did not hear of since too many waited."


class DirectoryCountOf(Family):
    """Counters of subnet administration, by number."""

    UNSUPPORTED_ATTRIBUTE = "unsupported_attribute_{:#06x}", "Requests for an attribute that is not kept.", 32
