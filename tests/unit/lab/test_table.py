"""Tables keep their shape whatever is written into them."""

from __future__ import annotations

from vhca.lab.table import aligned


def test_columns_are_aligned() -> None:
    assert aligned(("a", "bb"), [("one", "1"), ("x", "")]) == ["a    bb", "---  --", "one  1", "x"]


def test_a_cell_of_several_lines_takes_several_and_a_long_one_is_wrapped() -> None:
    lines = aligned(("what", "found"), [("mirror", "apt failed:\n" + "word " * 60 + "\n\tE: no"), ("qemu", "there")])
    assert lines[2] == "mirror  apt failed:"
    assert all(line.startswith(" " * 8) for line in lines[3:-1])
    assert "E: no" in lines[-2]
    assert lines[-1] == "qemu    there"
    assert max(map(len, lines)) <= 120


def test_a_long_word_stays_whole_and_does_not_stretch_the_rule() -> None:
    path = "/" + "x" * 300
    lines = aligned(("what", "found"), [("image", path)])
    assert path in lines[2]
    assert len(lines[1]) < 140
