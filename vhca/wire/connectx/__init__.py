"""Structures that a ConnectX shares with its host: contexts, commands, work requests, completions and events.

Every format is a `vhca.layout` declaration, named as in the device manual with its words joined (`xrc_srqc`
is `XrcSrqc`). Offsets are those of the manual; bits that no field covers are reserved. Tails of variable
length (page lists, register data) are no fields: they start at `SIZE`.
"""
