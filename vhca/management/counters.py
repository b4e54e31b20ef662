"""What the agents that cards and switches share count. `docs/counters.md` is made from this."""

from vhca.counting import Family, Name


class PerfCount(Name):
    """Counters of a performance agent; they begin again at power-on."""

    PERF_DISCARDED = "perf_discarded", "Datagrams that are not of the performance class."
    PERF_NO_REPLY = "perf_no_reply", "Responses and traps, which ask for no answer."


class PerfCountOf(Family):
    """Counters of a performance agent, by number."""

    UNSUPPORTED_ATTRIBUTE = (
        "perf_unsupported_attribute_{:#06x}",
        "Questions about an attribute that the agent does not have.",
        32,
    )
