"""What a project has beside its code agrees with it: versions, the hosted workflow, forms, hooks and release notes."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from nestling.version import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def numbers(version):
    return tuple(int(part) for part in version.split("."))


def test_a_version_is_the_same_everywhere():
    """A pip file in its own right, a citation, release notes, and a place in the changelog."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    heading = re.search(r"^## \[(\d[\d.]*)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    notes = (ROOT / "docs" / "releases" / f"{__version__}.md").read_text()
    assert {PROJECT["version"], citation["version"], heading[1]} == {__version__}
    assert str(citation["date-released"]) == heading[2]
    assert notes.startswith(f"# {__version__}\n")


def test_new_changes_have_a_place():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert changelog.index("## [Unreleased]") < changelog.index(f"## [{__version__}]")


def test_the_workflow_runs_the_versions_that_are_supported():
    runs = WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["include"]
    named = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", text)}
    assert {run["python"] for run in runs} == named
    (needed,) = (text for text in PROJECT["dependencies"] if text.startswith("torch>"))
    low, high = (numbers(text) for text in re.fullmatch(r"torch>=([\d.]+),<([\d.]+)", needed).groups())
    versions = sorted(numbers(run["torch"]) for run in runs)
    assert versions[0][:2] == low
    assert versions[-1][:2] == (high[0], high[1] - 1)


def test_the_workflow_runs_commands_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    steps = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    assert "make test TORCH=torch==${{ matrix.torch }}" in steps
    for step in steps:
        assert re.search(rf"^{step.split()[1]}:", makefile, re.MULTILINE), step
    assert re.search(r"^TORCH := torch==", makefile, re.MULTILINE)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_has_what_it_needs(path):
    """A name, a description, and fields whose names differ, at least one of them required."""
    form = yaml.safe_load(path.read_text())
    assert set(form) == {"name", "description", "labels", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_hooks_run_the_tools_of_the_tests():
    """From .venv, so that a hook and `make test` agree, and files that are there."""
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    wanted = " ".join(PROJECT["optional-dependencies"]["dev"])
    for hook in repository["hooks"]:
        program, *arguments = hook["entry"].split()
        tool = program.rpartition("/")[2]
        assert program == "git" or (program.startswith(".venv/bin/") and tool in wanted), hook["id"]
        assert all((ROOT / one).exists() for one in arguments if one.startswith("tests/")), hook["id"]


def test_the_page_of_the_policy_names_the_rooms():
    """Every package that users import is either public or named as what may change."""
    page = (ROOT / "docs" / "deprecation.md").read_text()
    private = set(re.search(r"the rooms ((?:`\w+`(?:, | and )?)+)", page)[1].replace(" and ", ", ").split(", "))
    rooms = {path.parent.name for path in (ROOT / "src" / "nestling").glob("*/__init__.py")}
    reference = (ROOT / "docs" / "site_hooks.py").read_text()
    public = {room for room in rooms if f'"nestling.{room}"' in reference}
    assert public | {room.strip("`") for room in private if room} == rooms
