"""The subnet manager and subnet administration: they know a fabric only by the datagrams they send and get."""
