"""Host programs on the fabric: the socket at which programs under `libumad2sim` attach to a node.

That library, of the simulator ibsim, is preloaded into OpenSM and the tools of infiniband-diags; it takes the place of
Linux's user access to management datagrams (ib_umad) and sends them to a server by local datagram sockets. Here is such
a server: :mod:`proto` knows the messages, :mod:`session` what they do, :mod:`server` the sockets. What a node offers to
programs is handed in.
"""
