"""The cables and the switch between the cards, with a subnet manager inside; everything it does is packets."""

from vhca.fabric.capture import CaptureLimits
from vhca.fabric.capture_filter import CaptureFilter
from vhca.fabric.capture_writer import Ring
from vhca.fabric.faults import Action, Direction, Fault
from vhca.fabric.line import LineConfig
from vhca.fabric.schedule import Schedule, ScheduleError
from vhca.fabric.schedule import read as read_schedule

__all__ = [
    "Action",
    "CaptureFilter",
    "CaptureLimits",
    "Direction",
    "Fault",
    "LineConfig",
    "Ring",
    "Schedule",
    "ScheduleError",
    "read_schedule",
]
