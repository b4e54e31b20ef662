"""The subnet management agent of the card's ports, and the packets that carry its answers."""
