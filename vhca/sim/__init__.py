"""Time and the order of things: clocks and the event loop of a rack."""
