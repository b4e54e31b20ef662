"""What the socket for host programs counts. `docs/counters.md` is made from this."""

from vhca.counting import Name


class ToolCount(Name):
    """Counters of the socket at which host programs attach."""

    CLIENTS = "clients", "Programs that attached."
    CLIENTS_REFUSED = "clients_refused", "Programs that could not: no such node, too many, a second manager."
    CLIENTS_LOST = "clients_lost", "Programs that ended, or read nothing any more, without taking leave."
    FOREIGN = "foreign", "Messages of other users of the host, which are not looked at."
    BAD_CONTROL = "bad_control", "Control messages that mean nothing."
    BAD_DATA = "bad_data", "Data messages that mean nothing."
    SENT = "sent", "Datagrams that programs sent."
    DELIVERED = "delivered", "Datagrams that programs were sent."
    UNANSWERED = "unanswered", "Requests that came back to their program, since nobody answered."
    NOT_READ = "not_read", "Datagrams that were lost since their program did not read."
