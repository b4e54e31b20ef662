"""When something is to be done next: asked for in each round of the loop in which something happens."""


def earliest(*times_ns: int | None) -> int | None:
    """The least of these times; None if there is none."""
    first = None
    for time_ns in times_ns:
        if time_ns is not None and (first is None or time_ns < first):
            first = time_ns
    return first
