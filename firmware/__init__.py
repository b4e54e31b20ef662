"""The program on the board: it turns events into ordered effects and owns no socket, clock, thread or chance.

``power_up`` is the entry point the board looks for when it loads a firmware package by name.
"""

from firmware.boot import power_up

__all__ = ["power_up"]
