"""The page says what the samples say, and goals are reached by them or not."""

import re
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

import pytest

from tests.bench import goals, page
from tests.bench.chart import Chart, Line, quantity
from tests.bench.results import PYTHON, SOFT, C, Results

DOCS = Path(__file__).parents[3] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


def some_results() -> Results:
    results = Results({"processors": 2, "repeats": 5})
    for size, rate in ((2, 100e3), (64, 90e3), (1 << 20, 5e3)):
        for who, slower in ((C, 1), (PYTHON, 4), (SOFT, 20)):
            results.add(f"curve/{size}/{who}", [rate / slower * share for share in (1.1, 0.8, 1, 1.2, 0.9)])
    results.add("engine/WRITE/64/C", [0.5, 0.6, 2])
    results.add("guests/ib_write_lat/8/C", [40, 41, 42])
    results.add("guests/ib_write_lat/8/Soft-RoCE", [300, 328, 400])
    results.add("boot/whole", [7.0])
    return results


def test_the_committed_page_is_what_the_committed_samples_say() -> None:
    wanted = page.files(Results.from_json((DOCS / "speed.json").read_text()), DOCS)
    assert "../README.md" in wanted
    for name, text in wanted.items():
        assert (DOCS / name).read_text() == text, f"{name}: run make bench-page, or see docs/speed.json"
    assert {f"images/{path.name}" for path in (DOCS / "images").glob("speed-*.svg")} <= wanted.keys()


def test_results_survive_their_file() -> None:
    results = some_results()
    again = Results.from_json(results.to_json())
    assert again.to_json() == results.to_json()
    assert again.samples.keys() == results.samples.keys()


def test_goals_are_reached_by_medians() -> None:
    rows = {(of, what): (figure, reached) for of, what, figure, _, reached in goals.rows(some_results())}
    assert rows[goals.ENGINE, "WRITE 64 B"] == ("1.67 M/s", "yes")
    assert rows[goals.GUESTS_PAIRED, "WRITE, latency"] == ("8.00 x", "no")
    assert rows["two guests", "from command to ACTIVE"] == ("7.00 s", "no")
    assert rows[goals.ENGINE, "SEND 64 B"] == ("not measured", "-")


def test_rounding_does_not_hide_what_was_missed() -> None:
    goal = goals.Goal("engine", "queue pairs", 0.8, "x", lambda results: 0.7968)
    assert goal.row(Results({})) == ("engine", "queue pairs", "0.7968 x", ">= 0.80 x", "no")


def test_the_committed_page_is_a_run_that_counts() -> None:
    results = Results.from_json((DOCS / "speed.json").read_text())
    assert int(results.machine["repeats"]) >= 5
    assert not results.busy
    assert not [row for row in goals.rows(results) if row[2] == "not measured"]


def test_every_row_of_the_goals_has_a_name_of_its_own() -> None:
    names = [(goal.of, goal.what) for goal in goals.GOALS]
    assert len(set(names)) == len(names)


def test_points_lie_where_their_medians_are() -> None:
    results = some_results()
    chart = page.charts(results)["rate"]
    root = ElementTree.fromstring(chart.svg())
    circles = {spot.get("class"): [] for spot in root.iter(f"{SVG}circle")}  # type: ignore[var-annotated]
    for spot in root.iter(f"{SVG}circle"):
        circles[spot.get("class")].append((float(spot.get("cx", "")), float(spot.get("cy", ""))))
    assert [len(spots) for spots in circles.values()] == [3, 3, 3]
    # As far above the other line everywhere as their ratio is: the axis is logarithmic.
    above = [low[1] - high[1] for high, low in zip(circles["f0"], circles["f2"], strict=True)]
    assert above == pytest.approx([above[0]] * 3, abs=0.2)
    assert above[0] > 0
    assert median(results.samples["curve/64/C"]) == 90e3


def test_a_chart_is_readable_in_the_light_and_in_the_dark() -> None:
    line = Line("a < b", [(1, 10, 9, 11), (64, 200, 150, 300)], 0)
    root = ElementTree.fromstring(Chart("t & u", "x", "y", "/s", [line], [(1, "1"), (64, "64")]).svg())
    style = root.findtext(f"{SVG}style") or ""
    assert "prefers-color-scheme: dark" in style
    assert "background" not in style
    labels = [text.text for text in root.iter(f"{SVG}text")]
    assert {"t & u", "a < b", "10 /s", "100 /s", "64"} <= set(labels)


def test_a_chart_without_points_is_one_with_a_title() -> None:
    root = ElementTree.fromstring(Chart("t", "x", "y", "", [Line("a", [], 0)], []).svg())
    assert [text.text for text in root.iter(f"{SVG}text")] == ["t"]


@pytest.mark.parametrize(
    ("value", "text"), [(950, "950 /s"), (1000, "1 k/s"), (1.5e6, "1.5 M/s"), (2e9, "2 G/s"), (0.02, "20 m/s")]
)
def test_quantities_have_prefixes(value: float, text: str) -> None:
    assert quantity(value, "/s") == text


def test_numbers_in_tables_stand_to_the_right() -> None:
    text = page.markdown(some_results())
    assert re.search(r"^\|-+\|-+-\|-+:\|-+-\|-+-\|$", text, re.MULTILINE)
    assert "1.67 M/s" in text
    assert '<td class="no">no</td>' in page.html(some_results())


def test_check_finds_what_is_not_what_the_results_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, docs = tmp_path / "results.json", tmp_path / "docs"
    front = tmp_path / "README.md"
    front.write_text("before\n```text\nother\n```\n(`make bench`; medians of three):\n\n```text\nold\n```\nbehind\n")
    some_results().save(source)
    command = [str(source), str(docs)]
    assert page.main([*command, "--check"]) == 1
    assert page.main(command) == 0
    assert page.main([*command, "--check"]) == 0
    assert re.fullmatch(
        r"before\n```text\nother\n```\n\(`make bench`; medians of 5\):\n\n```text\nprogram .*8\.0x\n```\nbehind\n",
        front.read_text(),
        re.DOTALL,
    )
    (docs / "images" / "speed-old.svg").write_text("")
    (docs / "speed.md").write_text("better figures")
    capsys.readouterr()
    assert page.main([*command, "--check"]) == 1
    said = capsys.readouterr().out
    assert "speed.md" in said
    assert "speed-old.svg" in said


def test_figures_of_a_busy_machine_are_no_claim() -> None:
    results = some_results()
    assert page.BUSY not in page.markdown(results) + page.html(results)
    results.machine["load before"] = 1.1
    text = "(`make bench`; medians of three):\n\n```text\nold\n```\n"
    assert page.BUSY in page.markdown(results)
    assert page.BUSY in page.html(results)
    assert page.readme(results, text) == text
    assert {row[-1] for row in goals.rows(results)} == {"machine busy", "-"}


def test_what_soft_roce_failed_at_is_said() -> None:
    results = some_results()
    assert "tried again" not in page.markdown(results)
    results.add("failed/Soft-RoCE", [1, 1])
    assert "tried again: 2." in page.markdown(results)
    assert "tried again: 2." in page.html(results)
