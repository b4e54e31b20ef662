"""Formats only: InfiniBand headers and ConnectX structures as bytes, without behaviour."""
