"""The museum: faults of drivers and libraries that this card makes visible, each shown by a script in a guest."""
