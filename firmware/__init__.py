"""The program on the board: it turns events into ordered effects and owns no socket, clock, thread or chance.

The board loads a firmware package by name and calls `power_up` of its module `boot`.
"""
