"""What happened in cards and on cables, in the order in which it happened: read from a capture, shown as a ladder.

Assumes captures of :mod:`vhca.fabric.capture` with records of cards. Guarantees: any bytes are read or refused with
:class:`vhca.trace.reading.TraceError`; what is kept is bounded, and what is left out is counted.
"""
