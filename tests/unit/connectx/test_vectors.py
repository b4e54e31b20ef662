"""Known bytes decode to known values, and the values encode to those bytes."""

import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

from vhca.layout import Layout, reserved_nonzero

VECTORS = tomllib.loads((Path(__file__).parents[2] / "vectors" / "connectx.toml").read_text("utf-8"))["vector"]


def _layout(path: str) -> type[Layout]:
    module, name = path.rsplit(".", 1)
    layout: type[Layout] = getattr(importlib.import_module(f"vhca.wire.connectx.{module}"), name)
    return layout


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{v['layout']}-{i}" for i, v in enumerate(VECTORS)])
def test_vector(vector: dict[str, Any]) -> None:
    layout = _layout(vector["layout"])
    data = bytes.fromhex(vector["hex"])
    expected = {key: bytes.fromhex(v) if isinstance(v, str) else v for key, v in vector["fields"].items()}
    view = layout.from_bytes(data)
    found = {field.name: getattr(view, field.name) for field in layout.fields()}
    set_fields = {name: v for name, v in found.items() if (any(v) if isinstance(v, bytes) else v)}
    assert set_fields == expected
    assert not reserved_nonzero(view)
    assert layout.packer(*expected)(*expected.values()) == data
