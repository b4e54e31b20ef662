"""The `vhca` command. One module per command; see :mod:`vhca.cli.main`."""
