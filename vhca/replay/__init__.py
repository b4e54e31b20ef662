"""Recordings of cards: all that a card's program was told and read, and all that it did; and a playback of that.

A program has no clock, no chance and no memory but the board's, so the same input gives the same effects. See
docs/replay.md.
"""
