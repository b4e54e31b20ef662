"""What is built on the library to show that cards do what they should: users of :mod:`vhca.lab`, as anybody could be.

:mod:`.claims` observes in two guests what is said of RDMA on Linux; :mod:`.conformance` runs rdma-core's own suite;
:mod:`.benchmark` runs perftest on a card and on Soft-RoCE; :mod:`.demo` is the short tour. Nothing in `vhca.lab`
knows of this package, and this package uses the library through its door alone.
"""
