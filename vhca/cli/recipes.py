"""Recipes for continuous integration: the same steps, written for GitHub Actions, GitLab, Jenkins, or a container.

A recipe's shell lines are the same wherever they run: a Debian container as root, with the kernel in `$KERNEL`.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

IMAGE: Final = "debian:trixie"
CACHE: Final = "/var/cache/vhca"
ARTEFACTS: Final = "artefacts"
JUNIT: Final = "junit.xml"
#: What `vhca doctor` asks of a host, and a compiler for the data path in C.
HOST_PACKAGES: Final = (
    "ca-certificates", "debian-archive-keyring", "git", "gcc", "libc6-dev", "libffi-dev", "python3-dev", "python3-venv",
)  # fmt: skip
_VENV: Final = ".venv-ci"
_TEST_EXTRAS: Final = ("test", "tests", "testing", "dev")
_REQUIREMENTS: Final = ("requirements-test.txt", "requirements-dev.txt", "requirements.txt")
_LITERAL: Final = "${{ '${{' }}"
_SMOKE: Final = ("ibv_devinfo",)


@dataclass(slots=True, frozen=True)
class Step:
    """One step: its name and its lines of POSIX shell, run by `sh -e`."""

    name: str
    lines: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Plan:
    """What a recipe does.

    `requirement` is what pip installs vhca by; `project` what else it installs; `pytest` whether pytest runs the tests;
    `command` is else run in a guest; `notes` are what the repository did not say.
    """

    kernels: tuple[str, ...]
    requirement: str
    project: tuple[str, ...]
    pytest: bool
    command: tuple[str, ...]
    minutes: int
    notes: tuple[str, ...] = ()


def look(
    root: Path, kernels: Sequence[str], requirement: str | None, command: Sequence[str] | None, minutes: int
) -> Plan:
    """A plan for the repository in `root`: from what it has, if nothing else was asked for.

    :raises ValueError: its pyproject.toml is none, or a word cannot be in one line of text.
    """
    try:
        project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        project = {}
    except ValueError as error:
        raise ValueError(f"{root / 'pyproject.toml'}: {error}") from error
    notes = []
    if wrong := [word for word in (requirement or "", *(command or ())) if not word.isprintable()]:
        raise ValueError(f"{wrong[0]!r}: a recipe is made of lines of text; put such a command into a file")
    tested = not command and _has_pytest(root, project)
    if requirement is None:
        requirement, note = _vhca_of(root, project, tested)
        notes += [note] if note else []
    if not tested and not command:
        command = _SMOKE
        notes.append(f"no pytest was found here: the job runs {' '.join(_SMOKE)}; say what behind `--`")
    return Plan(
        tuple(kernels), requirement, _project_of(root, project), tested, tuple(command or ()), minutes, tuple(notes)
    )


def _has_pytest(root: Path, project: dict[str, Any]) -> bool:
    if "pytest" in project.get("tool", {}) or (root / "pytest.ini").is_file() or (root / "conftest.py").is_file():
        return True
    return any(
        next((root / folder).rglob("test_*.py"), None) for folder in ("test", "tests") if (root / folder).is_dir()
    )


def _vhca_of(root: Path, project: dict[str, Any], pytest: bool) -> tuple[str, str]:
    """What pip shall install vhca by, "" if the project asks for it itself, and what should be said of that."""
    table = project.get("project", {})
    asked = [
        *table.get("dependencies", ()),
        *(word for more in table.get("optional-dependencies", {}).values() for word in more),
    ]
    if table.get("name") == "vhca":
        return "", ""
    if any(word.partition("@")[0].strip().split("[")[0].strip() == "vhca" for word in asked):
        return "", ""
    extra = "[pytest]" if pytest else ""
    return f"./vhca{extra}", "vhca is installed from the folder vhca of the repository: --vhca says from where else"


def _project_of(root: Path, project: dict[str, Any]) -> tuple[str, ...]:
    """What pip installs for the project, as words of its command line."""
    if "project" in project:
        extras = project["project"].get("optional-dependencies", {})
        own = ["pytest"] if project["project"].get("name") == "vhca" else []
        chosen = next(([name] for name in _TEST_EXTRAS if name in extras), own)
        return (f".[{chosen[0]}]" if chosen else ".",)
    return next((("-r", name) for name in _REQUIREMENTS if (root / name).is_file()), ())


# ---- the steps ----


def host_step() -> Step:
    """Packages of the host; the only step that needs root."""
    return Step(
        "host packages",
        ("apt-get update -q", f"apt-get install -q -y --no-install-recommends {' '.join(HOST_PACKAGES)}"),
    )


def steps(plan: Plan) -> list[Step]:
    """What a job does behind that, in order: the last one is the test itself."""
    python = f"{_VENV}/bin/python"
    words = [word for word in (plan.requirement, *plan.project) if word]
    if plan.pytest:
        words += ["pytest", "pytest-timeout"]
    install = f"{python} -m pip install --quiet {shlex.join(words)}"
    return [
        Step("vhca and the project", (f"python3 -m venv {_VENV}", install)),
        Step("kernel and guest", (f'{_VENV}/bin/vhca fetch --quiet --kernel "$KERNEL"', f"{_VENV}/bin/vhca doctor")),
        Step("test", (_test_line(plan),)),
    ]


def _test_line(plan: Plan) -> str:
    if plan.pytest:
        return (
            f'{_VENV}/bin/python -m pytest --vhca-require-guests --vhca-kernels "$KERNEL" --timeout 300'
            f" --junitxml={JUNIT} --vhca-artefacts {ARTEFACTS}"
        )
    return (
        f'{_VENV}/bin/vhca matrix --kernels "$KERNEL" --share . --timeout 5m --junit {JUNIT} --log-dir {ARTEFACTS}'
        f" -- {shlex.join(plan.command)}"
    )


# ---- for whom ----


def github(plan: Plan) -> str:
    """A workflow for GitHub Actions: .github/workflows/vhca.yml."""
    key = "vhca-1-${{ matrix.kernel }}-"
    host = _github_run(host_step())
    own = "\n".join(_github_run(step) for step in steps(plan))
    return f"""\
# .github/workflows/vhca.yml, by `vhca ci github`
name: vhca
on: [push, pull_request]

jobs:
  guests:
    runs-on: ubuntu-latest
    container:
      image: {IMAGE}
      options: --device /dev/kvm   # without it guests are emulated, some ten times slower
    timeout-minutes: {plan.minutes}
    strategy:
      fail-fast: false
      matrix:
        kernel: {_flow(plan.kernels)}
    env:
      KERNEL: ${{{{ matrix.kernel }}}}
      VHCA_CACHE: {CACHE}
    steps:
{host}
      - uses: actions/checkout@v4
      # What is in the cache is looked at before it is used: an old one only makes the next step shorter.
      - uses: actions/cache@v4
        with:
          path: {CACHE}
          key: {key}${{{{ hashFiles('pyproject.toml', 'requirements*.txt') }}}}
          restore-keys: {key}
{own}
      # Consoles of the guests, logs of the cards, captures and recordings, also and above all of a job that failed.
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: vhca-${{{{ matrix.kernel }}}}
          path: |
            {JUNIT}
            {ARTEFACTS}
          if-no-files-found: ignore
"""


def _github_run(step: Step) -> str:
    # Actions puts the value of what is in ${{ }} into a line before a shell sees it: what is a command's own stays so.
    lines = "".join(f"\n          {line.replace('${{', _LITERAL)}" for line in step.lines)
    return f"      - name: {step.name}\n        run: |{lines}"


def gitlab(plan: Plan) -> str:
    """A job for GitLab: .gitlab-ci.yml."""
    before = _listed(host_step().lines)
    script = _listed([line for step in steps(plan) for line in step.lines])
    return f"""\
# .gitlab-ci.yml, by `vhca ci gitlab`
guests:
  image: {IMAGE}
  timeout: {plan.minutes} minutes
  parallel:
    matrix:
      - KERNEL: {_flow(plan.kernels)}
  variables:
    # For KVM the runner's configuration has devices = ["/dev/kvm"]; without it guests are emulated.
    VHCA_CACHE: $CI_PROJECT_DIR/.vhca-cache   # GitLab keeps what is in the project's folder only
  cache:
    # What is in the cache is looked at before it is used: an old one only makes the job shorter.
    key: vhca-1-$KERNEL
    paths: [.vhca-cache]
    when: always
  before_script:
{before}
  script:
{script}
  artifacts:
    # Consoles of the guests, logs of the cards, captures and recordings, also and above all of a job that failed.
    when: always
    expire_in: 2 weeks
    paths: [{JUNIT}, {ARTEFACTS}]
    reports:
      junit: {JUNIT}
"""


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"    - {json.dumps(line)}" for line in lines)


def jenkins(plan: Plan) -> str:
    """A declarative pipeline for Jenkins: Jenkinsfile."""
    stages = "".join(_jenkins_stage(step) for step in (host_step(), *steps(plan)))
    return f"""\
// Jenkinsfile, by `vhca ci jenkins`; needs the plugins Docker Pipeline, JUnit, and Matrix (part of Pipeline)
pipeline {{
    agent none
    options {{ timeout(time: {plan.minutes}, unit: 'MINUTES') }}
    stages {{
        stage('guests') {{
            matrix {{
                axes {{
                    axis {{
                        name 'KERNEL'
                        values {", ".join(f"'{kernel}'" for kernel in plan.kernels)}
                    }}
                }}
                agent {{
                    docker {{
                        image '{IMAGE}'
                        // the cache stays on the agent, and may be used by many jobs at once; an agent without
                        // KVM has no /dev/kvm to pass on, and emulates guests
                        args '-u root --device /dev/kvm -v {CACHE}:{CACHE}'
                    }}
                }}
                environment {{
                    CI = 'true'
                    VHCA_CACHE = '{CACHE}'
                }}
                stages {{
{stages.rstrip()}
                }}
                post {{
                    always {{
                        junit allowEmptyResults: true, testResults: '{JUNIT}'
                        // consoles of the guests, logs of the cards, captures and recordings
                        archiveArtifacts allowEmptyArchive: true, artifacts: '{ARTEFACTS}/**'
                    }}
                    cleanup {{ deleteDir() }}
                }}
            }}
        }}
    }}
}}
"""


def _jenkins_stage(step: Step) -> str:
    # A text of Groovy: its escapes are not the shell's.
    escaped = [line.replace("\\", "\\\\").replace("'", "\\'") for line in step.lines]
    lines = "".join(f"            {line}\n" for line in escaped)
    stage = f"stage('{step.name}') {{\n    steps {{\n        sh '''\n{lines}        '''\n    }}\n}}\n"
    return "".join(f"{' ' * 20}{line}\n" for line in stage.splitlines())


def container(plan: Plan) -> str:
    """A Containerfile: an image with vhca and all that guests of these kernels need, for jobs without a network."""
    requirement = plan.requirement or "."
    update, install = host_step().lines
    fetches = "".join(f' \\\n && vhca fetch --quiet --kernel "{kernel}"' for kernel in plan.kernels)
    return f"""\
# Containerfile, by `vhca ci container`
#   podman build -t vhca . && podman run --rm --device /dev/kvm vhca run -- ibv_devinfo
FROM {IMAGE}
RUN {update} \\
 && {install} \\
 && rm -rf /var/lib/apt/lists/*
COPY . /src
WORKDIR /src
RUN python3 -m venv /opt/vhca \\
 && /opt/vhca/bin/python -m pip install --quiet --no-cache-dir {shlex.quote(requirement)} pytest
ENV PATH=/opt/vhca/bin:$PATH VHCA_CACHE={CACHE}
# Guests without a network: the cache is part of the image.  The lists of packages are fetched anew and left out.
RUN apt-get update -q{fetches} \\
 && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["vhca"]
CMD ["doctor"]
"""


def _flow(words: Sequence[str]) -> str:
    return f"[{', '.join(json.dumps(word) for word in words)}]"


RECIPES: Final = {"github": github, "gitlab": gitlab, "jenkins": jenkins, "container": container}
