"""Rates and times as people write them: `25Gbps`, `2us`."""

import re
from typing import Final

MAX_RATE_BPS: Final = 10**13
MIN_RATE_BPS: Final = 10**6
"""Of a cable: with less, one message would keep it busy for minutes."""
MAX_TIME_NS: Final = 30 * 24 * 3600 * 10**9

_PREFIXES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS_NS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


def rate(text: str) -> int:
    """Bits per second of `25Gbps`, `100 Mbit/s`.

    :raises ValueError: it is no rate, or less than 1 Mbit/s, or more than 10 Tbit/s.
    """
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)\s*([kmgt]?)(?:bps|bit/s)", text.strip().lower())
    value = round(float(match[1]) * _PREFIXES[match[2]]) if match else 0
    if not MIN_RATE_BPS <= value <= MAX_RATE_BPS:
        raise ValueError(f"{text[:80]!r} is no rate of 1 Mbit/s to 10 Tbit/s: give 25Gbps or 100Mbps")
    return value


def time(value: object, most_ns: int = MAX_TIME_NS) -> int:
    """Nanoseconds of `2us`, `1.5 ms`, `10s`, `2m`, `1h`, or of a number of seconds.

    :raises ValueError: it is no time, or longer than `most_ns`.
    """
    text = f"{value}s" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*(ns|us|ms|s|m|h)", text.strip().lower())
    found = round(float(match[1]) * _UNITS_NS[match[2]]) if match else -1
    if not 0 <= found <= most_ns:
        raise ValueError(f"{text[:80]!r} is no time up to {told_time(most_ns)}: give 2us, 1.5ms, 10s or 2m")
    return found


def told_rate(bps: int) -> str:
    """A rate as it is read back: `25Gbps`."""
    for prefix in "TGMK":
        unit = _PREFIXES[prefix.lower()]
        if bps >= unit:
            return f"{bps / unit:.12g}{prefix}bps"
    return f"{bps}bps"


def told_time(ns: int) -> str:
    """A time as it is read back: `2us`."""
    for unit in ("h", "m", "s", "ms", "us"):
        if ns >= _UNITS_NS[unit] and ns * 1000 % _UNITS_NS[unit] == 0:
            return f"{ns / _UNITS_NS[unit]:.12g}{unit}"
    return f"{ns}ns"
