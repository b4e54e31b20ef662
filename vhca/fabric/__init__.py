"""The cables and the switch between the cards, with a subnet manager inside; everything it does is packets."""

from vhca.fabric.faults import Action, Direction, Fault
from vhca.fabric.line import LineConfig

__all__ = ["Action", "Direction", "Fault", "LineConfig"]
