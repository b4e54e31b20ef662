"""The maker of mutants: what it changes, what it leaves alone, and how survivors are explained."""

import ast

import pytest

from tests.mutants.__main__ import Explanation, all_mutants, explanations, sources
from tests.mutants.operators import Mutant, mutants, mutated, sample


def changes(body: str) -> list[str]:
    """All that becomes of the body of a function, line by line."""
    source = "def f():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return [
        "; ".join(ast.unparse(mutated(source, mutant.number)).splitlines()[1:]).replace("    ", "")
        for mutant in mutants("x.py", source)
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a < b", ["return a <= b"]),
        ("return a is not b", ["return a is b"]),
        ("return a + b << c", ["return a + b >> c", "return a - b << c"]),
        ("return a and b", ["return a or b"]),
        ("return not a", ["return not not a"]),
        ("return 5", ["return 6", "return 4"]),
        ("return True", ["return False"]),
        ("return min(a, b)", ["return max(a, b)"]),
        ("a.b = c", ["pass"]),
        ("a = b", []),
        ("a.b += c", ["pass", "a.b -= c"]),
        ("if a:\n    return", ["if not a:; return", "if a:; pass"]),
        ("f(a)", ["pass"]),
        ("hca.note('a', b=1)", []),
        ("hca.count[Count.NAKS] += 1", []),
        ("hca.count_of.add(CountOf.SEND_ERRORS, 1)", []),
        ("'a text'", []),
        ("raise E('a text')", ["pass"]),
    ],
)
def test_what_becomes_of_a_statement(body: str, expected: list[str]) -> None:
    assert changes(body) == expected


def test_only_functions_are_changed_and_each_mutant_is_named_by_the_outermost() -> None:
    source = (
        "LIMIT = 5\nif TYPE_CHECKING:\n    import x\nclass C:\n    size = 3\n    def m(self, a=1):\n"
        "        def inner():\n            return 2\n        return inner\n"
    )
    assert [(mutant.function, mutant.line, mutant.new) for mutant in mutants("x.py", source)] == [
        ("C.m", 8, "return 3"),
        ("C.m", 8, "return 1"),
    ]


def test_an_explanation_covers_what_it_names_and_no_more() -> None:
    mutant = Mutant("a.py", 1, 10, "f", "if x[0] > LIMIT:", "if x[0] >= LIMIT:")
    row = Explanation("a.py", "f", "x[0] > LIMIT", "why", "x[0] >= *")
    assert row.covers(mutant)
    for other in (Explanation("b.py", "f", "x[0]", ""), Explanation("a.py", "g", "x[0]", ""),
                  Explanation("a.py", "f", "x0", ""), Explanation("a.py", "f", "x[0]", "", "x[1]")):  # fmt: skip
        assert not other.covers(mutant)


def test_every_explanation_has_a_reason_and_a_mutant() -> None:
    found = all_mutants(sources())
    for row in explanations():
        assert row.reason
        assert any(row.covers(mutant) for mutant in found), f"nothing to explain: {row}"


def test_a_sample_stays_when_other_code_changes() -> None:
    source = "".join(f"def f{at}(a):\n    a.b = a.c + {at}\n    a.b = a.c + {at}\n" for at in range(40))
    before = sample(mutants("x.py", source), 1, 50)
    assert len(set(before)) == 50
    assert [mutant.number for mutant in before] == sorted(mutant.number for mutant in before)
    assert sample(mutants("x.py", source), 2, 50) != before

    def texts(chosen: list[Mutant]) -> set[tuple[str, str, str]]:
        return {(mutant.function, mutant.old, mutant.new) for mutant in chosen}

    # 2 new functions of 42 are a twentieth of the mutants: so many of the old ones may give way
    moved = "def g(a):\n    a.b = a.c - 1\n" + source + "def h(a):\n    return not a\n"
    after = texts(sample(mutants("x.py", moved), 1, 50))
    old = {text for text in after if text[0] not in ("g", "h")}
    assert old <= texts(before)
    assert len(texts(before) - old) <= 6
