"""vhca: the open virtual ConnectX HCA.

This package is the board and everything people use to drive it. The program on the board lives in
the separate top-level package `firmware` and is loaded by name, like flashing an image.
"""

__version__ = "0.1.0"

DEFAULT_KERNEL = "6.19"
"""What guests run if nothing else is asked for; :mod:`vhca.lab.kernels` says what such a name stands for."""
