"""The chip: BAR bytes become events, effects become bytes in guest memory, packets and interrupts."""
