"""The seam between board and firmware: what the chip tells the program, and what the program may ask of it.

Nothing else crosses this line: :mod:`vhca.hw.events` go in, :mod:`vhca.hw.effects` come out, and guest memory is read
through :class:`vhca.hw.memory.Memory`.
"""
