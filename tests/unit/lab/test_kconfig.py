"""What a kernel of one's own needs: the fragment, and what a configuration lacks of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from vhca.cli import status
from vhca.cli.main import main
from vhca.lab.kconfig import DEBUG, GUEST, Group, fragment, missing

SOME = (Group("that it boots", {"PCI": "y", "MLX5_CORE": "m"}), Group("folders", {"9P_FS": "y"}, modular=True))


def test_the_fragment_names_the_purpose_of_each_group() -> None:
    assert fragment(SOME) == "# that it boots\nCONFIG_PCI=y\nCONFIG_MLX5_CORE=m\n\n# folders\nCONFIG_9P_FS=y\n"


def test_what_a_fragment_asks_for_is_enough() -> None:
    assert missing(GUEST, fragment(GUEST)) == []
    assert missing((*GUEST, *DEBUG), fragment((*GUEST, *DEBUG))) == []
    assert {line.split(":")[0] for line in missing(DEBUG, fragment(GUEST))} == {
        f"CONFIG_{symbol}" for group in DEBUG for symbol, value in group.options.items() if value != "n"
    }


@pytest.mark.parametrize(
    ("config", "lacks"),
    [
        ("CONFIG_PCI=y\nCONFIG_MLX5_CORE=y\nCONFIG_9P_FS=m", []),
        ("CONFIG_PCI=m\nCONFIG_MLX5_CORE=m\nCONFIG_9P_FS=y", ["CONFIG_PCI: m, wanted y (that it boots)"]),
        (
            "# CONFIG_PCI is not set\nCONFIG_MLX5_CORE=m\n",
            ["CONFIG_PCI: n, wanted y (that it boots)", "CONFIG_9P_FS: n, wanted y (folders)"],
        ),
    ],
)
def test_what_a_configuration_lacks(config: str, lacks: list[str]) -> None:
    assert missing(SOME, config) == lacks


def test_no_symbol_stands_twice() -> None:
    symbols = [symbol for group in (*GUEST, *DEBUG) for symbol in group.options]
    assert len(symbols) == len(set(symbols))


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["kconfig"]) == status.OK
    plain = capsys.readouterr().out
    assert main(["kconfig", "--debug"]) == status.OK
    debug = capsys.readouterr().out
    assert debug.startswith(plain)
    assert "CONFIG_KASAN=y" in debug.removeprefix(plain)
    (tmp_path / "config").write_text(plain)
    assert main(["kconfig", "--check", str(tmp_path / "config")]) == status.OK
    assert "has all that a guest needs" in capsys.readouterr().out
    assert main(["kconfig", "--debug", "--check", str(tmp_path / "config")]) == status.FAILED
    assert "CONFIG_KASAN: n, wanted y" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["kconfig", "--check", str(tmp_path / "none")])
    assert "No such file" in capsys.readouterr().err
