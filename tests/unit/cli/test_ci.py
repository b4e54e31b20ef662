"""`vhca ci`: what recipes are made of, and that whom they are for would take them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.ci_job import ROOT, recipe, shell_steps
from vhca.cli import recipes
from vhca.cli.main import main

KERNELS = ("--kernels", "6.12,6.19")
SCHEMAS = {"github": "vendor.github-workflows", "gitlab": "vendor.gitlab-ci"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").touch()
    return tmp_path


@pytest.mark.parametrize("kind", SCHEMAS)
@pytest.mark.parametrize("words", [(), ("--", "sh", "-c", "echo 'a: b' | grep \"$X\" # c")])
def test_whom_it_is_for_takes_it(kind: str, words: tuple[str, ...], repository: Path) -> None:
    """The published schema of workflows, or of GitLab's configuration."""
    text = recipe(kind, repository, *KERNELS, *words)
    (repository / "recipe.yml").write_text(text)
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[kind]]
    done = subprocess.run([*checker, str(repository / "recipe.yml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (repository / "recipe.yml").write_text(text.replace("image:", "imaje:"))
    assert subprocess.run([*checker, str(repository / "recipe.yml")], capture_output=True, check=False).returncode == 1


NASTY = "printf '%s\\n' \"${{ github.token }}\" ''' $X `id` }} \\\\ # c"


def test_no_system_reads_a_command_s_own_signs(repository: Path) -> None:
    """Expressions of Actions, escapes and quotes of Groovy and YAML: all shells get the command."""
    scripts = [
        "".join(lines for _, lines in shell_steps(kind, recipe(kind, repository, "--", "sh", "-c", NASTY)))
        for kind in ("github", "gitlab", "jenkins")
    ]
    assert scripts[0] == scripts[1] == scripts[2]
    assert shlex.split(scripts[0].splitlines()[-1])[-1] == NASTY
    text = recipe("github", repository, "--", "sh", "-c", NASTY)
    assert "${{ github.token" not in text
    jenkins = recipe("jenkins", repository, "--", "sh", "-c", NASTY)
    assert jenkins.count("'''") == 2 * len(shell_steps("jenkins", jenkins))


@pytest.mark.parametrize("words", [("--", "sh", "-c", "a\nb"), ("--vhca", "x\n- evil", "--", "a"), ("--", "a\x1b[2J")])
def test_what_is_no_line_of_text_makes_no_recipe(
    words: tuple[str, ...], repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ci", "github", "--repository", str(repository), *words]) == 125
    said = capsys.readouterr()
    assert "lines of text" in said.err
    assert said.out == ""
    assert "\x1b" not in said.err


@pytest.mark.parametrize("words", [(), ("--", "sh", "-c", "echo 'a: b' | grep \"$X\" # c")])
def test_all_run_the_same_lines(words: tuple[str, ...], repository: Path) -> None:
    """So that one that was run (tests/ci_job.py) speaks for all."""
    github, gitlab, jenkins = (
        [
            line
            for _, lines in shell_steps(kind, recipe(kind, repository, *KERNELS, *words))
            for line in lines.splitlines()
        ]
        for kind in ("github", "gitlab", "jenkins")
    )
    assert github == gitlab
    assert github == jenkins
    assert len(github) == 7
    for line in github:
        subprocess.run(["sh", "-n", "-c", line], check=True)
    if words:
        assert "'echo '\"'\"'a: b'\"'\"' | grep \"$X\" # c'" in github[-1]
        assert "--share . " in github[-1]
    else:
        assert "-m pytest --vhca-require-guests" in github[-1]


def test_a_job_for_each_kernel_and_artefacts_of_all(repository: Path) -> None:
    github = yaml.safe_load(recipe("github", repository, *KERNELS))["jobs"]["guests"]
    assert github["strategy"] == {"fail-fast": False, "matrix": {"kernel": ["6.12", "6.19"]}}
    steps = {step.get("uses", step.get("name")): step for step in github["steps"]}
    assert list(steps)[:3] == ["host packages", "actions/checkout@v4", "actions/cache@v4"]
    assert steps["actions/cache@v4"]["with"]["path"] == github["env"]["VHCA_CACHE"]
    assert steps["actions/cache@v4"]["with"]["key"].startswith(steps["actions/cache@v4"]["with"]["restore-keys"])
    assert steps["actions/upload-artifact@v4"]["if"] == "always()"
    assert steps["actions/upload-artifact@v4"]["with"]["path"].split() == ["junit.xml", "artefacts"]
    gitlab = yaml.safe_load(recipe("gitlab", repository, *KERNELS))["guests"]
    assert gitlab["parallel"] == {"matrix": [{"KERNEL": ["6.12", "6.19"]}]}
    assert gitlab["artifacts"]["when"] == "always"
    assert gitlab["artifacts"]["reports"] == {"junit": "junit.xml"}
    assert gitlab["variables"]["VHCA_CACHE"].endswith(gitlab["cache"]["paths"][0])
    jenkins = recipe("jenkins", repository, *KERNELS)
    assert "values '6.12', '6.19'" in jenkins
    assert "testResults: 'junit.xml'" in jenkins
    assert "artifacts: 'artefacts/**'" in jenkins


def test_a_jenkinsfile_is_closed_where_it_is_opened(repository: Path) -> None:
    """Its structure, as far as that can be told without Jenkins: blocks by indentation, all closed."""
    text = re.sub(r"'''.*?'''", "''", recipe("jenkins", repository, *KERNELS), flags=re.DOTALL)
    open_blocks: list[int] = []
    for line in text.splitlines():
        code = re.sub(r"//.*", "", line).rstrip()
        indent = len(line) - len(line.lstrip())
        if code.endswith("{"):
            open_blocks.append(indent)
        elif code.strip() == "}":
            assert open_blocks.pop() == indent, line
        else:
            assert code.count("{") == code.count("}"), line
    assert not open_blocks
    sections = re.findall(r"^ *(\w+)\b.*\{$", text, re.MULTILINE)
    assert sections[0] == "pipeline"
    assert {"stages", "matrix", "axes", "axis", "agent", "environment", "post", "always"} < set(sections)


def test_a_containerfile_has_instructions_only(repository: Path) -> None:
    text = recipe("container", repository, *KERNELS)
    instructions = [line.split()[0] for line in text.replace("\\\n", " ").splitlines() if line and line[0] != "#"]
    assert instructions == ["FROM", "RUN", "COPY", "WORKDIR", "RUN", "ENV", "RUN", "ENTRYPOINT", "CMD"]
    for _, lines in shell_steps("container", text):
        subprocess.run(["sh", "-n", "-c", lines], check=True)
    assert text.count("vhca fetch --quiet --kernel") == 2


@pytest.mark.parametrize(
    ("files", "installed", "tested"),
    [
        ({"pytest.ini": ""}, "'./vhca[pytest]' pytest pytest-timeout", True),
        ({"pyproject.toml": '[project]\nname = "x"\n', "test/a/test_b.py": ""}, "'./vhca[pytest]' . pytest", True),
        (
            {"pyproject.toml": '[project]\nname = "x"\n[project.optional-dependencies]\ntest = []\n[tool.pytest]\n'},
            "'./vhca[pytest]' '.[test]' pytest",
            True,
        ),
        (
            {"pyproject.toml": '[project]\ndependencies = ["vhca @ file:///v"]\n', "conftest.py": ""},
            "quiet . pytest",
            True,
        ),
        ({"pyproject.toml": '[project]\nname = "vhca"\n[tool.pytest.ini_options]\n'}, "quiet '.[pytest]' pytest", True),
        ({"requirements.txt": ""}, "./vhca -r requirements.txt", False),
        ({}, "./vhca", False),
    ],
)
def test_what_a_repository_has_says_what_is_installed(
    files: dict[str, str], installed: str, tested: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    lines = [line for _, lines in shell_steps("github", recipe("github", tmp_path)) for line in lines.splitlines()]
    assert installed in lines[3]
    assert ("-m pytest" in lines[-1]) == tested
    if not tested:
        assert lines[-1].endswith("-- ibv_devinfo")
        assert "no pytest was found" in capsys.readouterr().err


def test_what_makes_no_recipe_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").write_text("[")
    assert main(["ci", "github", "--repository", str(tmp_path)]) == 125
    assert "pyproject.toml: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["ci", "github", "--kernels", "6.19'"])
    with pytest.raises(SystemExit):
        main(["ci", "github", "--kernels", "~/linux"])


def test_the_packages_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "ci.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in recipes.HOST_PACKAGES)
