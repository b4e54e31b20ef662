"""The conformance run: rdma-core's own test suite on the card and on Soft-RoCE, test by test.

:mod:`.run` is the command, :mod:`.machine` the guest with one device, :mod:`.agent` what runs inside it;
:mod:`.results` holds outcomes, :mod:`.skips` says why tests cannot run, :mod:`.report` makes the page.
"""
