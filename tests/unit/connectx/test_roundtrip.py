"""Every declared structure: unpacking what was packed gives the same, by view and by generated code."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vhca.layout import Field, Layout, LayoutError
from vhca.layout.fields import Structure
from vhca.layout.pages import layouts, modules

ALL = [layout for module in modules("vhca.wire.connectx") for layout in layouts(module)]


def leaves(layout: type[Structure], prefix: str = "", base: int = 0) -> Iterator[tuple[str, Field, int]]:
    """Every integer and byte field with its dotted name and its bit position in the outermost structure."""
    for field in layout.fields():
        if field.layout is not None:
            yield from leaves(field.layout, f"{prefix}{field.name}.", base + field.start)
        else:
            yield prefix + field.name, field, base + field.start


def read(view: Any, name: str) -> Any:
    for part in name.split("."):
        view = getattr(view, part)
    return view


def write(view: Any, name: str, value: Any) -> None:
    *path, last = name.split(".")
    for part in path:
        view = getattr(view, part)
    setattr(view, last, value)


def value_of(field: Field) -> st.SearchStrategy[Any]:
    if field.kind == "raw":
        size = field.width // 8
        return (
            st.binary(min_size=size, max_size=size)
            if size <= 64
            else st.just(bytes(range(256)) * 16).map(lambda b: b[:size])
        )
    return st.integers(0, (1 << field.width) - 1)


def test_the_walk_finds_the_formats() -> None:
    names = {layout.__name__ for layout in ALL}
    assert len(ALL) > 140
    assert {"Qpc", "Cqc", "Eqc", "Mkc", "XrcSrqc", "Rmpc", "Wq", "CmdHcaCap", "CreateQpIn", "Cqe64", "Eqe"} <= names
    assert len(names) == len(ALL)


@pytest.mark.parametrize("layout", ALL, ids=lambda layout: layout.__name__)
def test_each_field_alone_sets_exactly_its_bits(layout: type[Layout]) -> None:
    """Against plain integer arithmetic on the whole structure, so the C bit fields are not trusted."""
    for name, field, start in leaves(layout):
        size = layout.SIZE * 8
        mask = ((1 << field.width) - 1) << (size - start - field.width)
        view = layout()
        ones: Any = b"\xff" * (field.width // 8) if field.kind == "raw" else (1 << field.width) - 1
        write(view, name, ones)
        assert int.from_bytes(view.to_bytes(), "big") == mask, name
        assert layout.packer(name)(ones) == view.to_bytes(), name
        others = layout.from_bytes((~mask & ((1 << size) - 1)).to_bytes(layout.SIZE, "big"))
        assert not any(read(others, name)) if field.kind == "raw" else read(others, name) == 0, name


@given(data=st.data())
@settings(max_examples=300)
def test_pack_and_unpack_are_inverse(data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from(ALL))
    available = list(leaves(layout))
    if not available:
        return
    chosen = data.draw(st.lists(st.sampled_from(available), min_size=1, max_size=24, unique_by=lambda leaf: leaf[0]))
    names = [name for name, _, _ in chosen]
    values = tuple(data.draw(value_of(field)) for _, field, _ in chosen)
    packed = layout.packer(*names)(*values)
    view = layout.from_bytes(packed)
    assert layout.unpacker(*names)(packed) == values
    assert tuple(read(view, name) for name in names) == values
    assert view.to_bytes() == packed
    again = layout()
    for name, value in zip(names, values, strict=True):
        write(again, name, value)
    assert again == view
    assert layout.__name__ in view.dump()


@given(layout=st.sampled_from(ALL), buffer=st.binary(max_size=300), offset=st.integers(0, 300))
@settings(max_examples=200)
def test_any_bytes_give_a_view_or_a_layout_error(layout: type[Layout], buffer: bytes, offset: int) -> None:
    if len(buffer) - offset < layout.SIZE:
        with pytest.raises(LayoutError):
            layout.from_bytes(buffer, offset)
    else:
        view = layout.from_bytes(buffer, offset)
        assert view.to_bytes() == buffer[offset : offset + layout.SIZE]
        assert view.dump(zeros=True)
