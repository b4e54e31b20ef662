"""The data path in C: what is common between two cards of one process, on the state that the engine in Python has."""
