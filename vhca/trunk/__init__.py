"""Cables that lead to a rack on another host: what goes over them, who may be at the other end, and which there are."""
