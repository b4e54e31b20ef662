"""The routing engines of the subnet manager, by name; :mod:`vhca.subnet.routing` says what they do."""

from typing import Final, Literal, get_args

Engine = Literal["min-hop", "up-down", "fat-tree"]
ENGINES: Final[tuple[Engine, ...]] = get_args(Engine)
