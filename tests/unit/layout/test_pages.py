"""The format pages: rendered from declarations, and checked for staleness."""

from pathlib import Path

import pytest

from vhca.layout import pages
from vhca.wire.connectx import cqe


def test_a_page_names_every_field_and_code() -> None:
    text = pages.render(cqe)
    for field in cqe.Cqe64.fields():
        assert f"`{field.name}`" in text
    assert "| 0x038 | 23:0 | `qpn` | 24 |" in text
    assert "| 0x5 | `RESIZE_CQ` |" in text
    assert "0x03c  [31:16 wqe_counter] [15:8 signature] [7:4 opcode]" in text


def test_check_finds_missing_stale_and_left_over_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "formats"
    assert pages.main(["vhca.wire", str(folder), "--check"]) == 1
    assert pages.main(["vhca.wire", str(folder)]) == 0
    assert pages.main(["vhca.wire", str(folder), "--check"]) == 0
    (folder / "connectx-cqe.md").write_text("old", "utf-8")
    (folder / "connectx-gone.md").write_text("gone", "utf-8")
    capsys.readouterr()
    assert pages.main(["vhca.wire", str(folder), "--check"]) == 1
    complaint = capsys.readouterr().err
    assert "connectx-cqe.md is stale" in complaint
    assert "connectx-gone.md is stale" in complaint
    assert pages.main(["vhca.wire", str(folder)]) == 0
    assert pages.main(["vhca.wire", str(folder), "--check"]) == 0
    assert not (folder / "connectx-gone.md").exists()


def test_the_committed_pages_of_the_card_are_current() -> None:
    folder = Path(pages.__file__).parents[2] / "docs" / "formats"
    if not folder.is_dir():
        pytest.skip("docs/formats is not part of this installation; run from a checkout")
    for name, text in pages.render_all("vhca.wire").items():
        if name.startswith("connectx-"):
            assert (folder / name).read_text("utf-8") == text, f"{name}: run make formats"
