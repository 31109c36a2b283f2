"""A release of a small workspace: prepared in a copy, and written only if that is asked."""

from __future__ import annotations

import datetime
import re
import shutil
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement

from .imports import DISTRIBUTIONS, ROOT
from .scripts import script

release = script("docs/release")
HOME = "https://example.org/longca"
LOG = "# Changelog\n\n## [Unreleased]\n\nThe next release is 0.2.0.\n\n### Added\n\n- A thing.\n"


def _git(folder, *arguments):
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def workspace(tmp_path):
    """A repository with an empty core, the example plugin and all that a release changes."""
    small = ("LICENSE", "README.md", "pyproject.toml")
    for name in ("CITATION.cff", ".gitignore", "docs/writing-a-plugin.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for folder in ("core", "plugins/example"):
        (tmp_path / folder).mkdir(parents=True)
        for name in small:
            shutil.copy(ROOT / folder / name, tmp_path / folder / name)
        project = tmp_path / folder / "pyproject.toml"
        written = r"^(Repository|Documentation|Issues|Changelog) = .*\n"
        text = re.sub(written, "", project.read_text("utf-8"), flags=re.MULTILINE)
        project.write_text(re.sub(r"^version = .*", 'version = "0.1.0"', text, flags=re.MULTILINE), "utf-8")
        for package in (ROOT / folder / "src").iterdir():
            (tmp_path / folder / "src" / package.name).mkdir(parents=True)
            (tmp_path / folder / "src" / package.name / "__init__.py").touch()
    (tmp_path / "CHANGELOG.md").write_text(LOG, "utf-8")
    _git(tmp_path, "init", "--quiet")
    _git(tmp_path, "add", ".")
    _commit(tmp_path)
    return tmp_path


def _commit(folder):
    _git(folder, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-am", "all")


def _project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_all_distributions_get_the_version_and_each_other_in_its_range(tmp_path):
    for folder in DISTRIBUTIONS:
        (tmp_path / folder.relative_to(ROOT)).mkdir(parents=True)
        shutil.copy(folder / "pyproject.toml", tmp_path / folder.relative_to(ROOT))
    shutil.copy(ROOT / "CITATION.cff", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(LOG, "utf-8")
    found = release.edits(tmp_path, "99.4.5", HOME, datetime.date(2030, 1, 2))
    for folder in DISTRIBUTIONS:
        project = tomllib.loads(found[tmp_path / folder.relative_to(ROOT) / "pyproject.toml"])["project"]
        asked = [Requirement(text) for text in project["dependencies"]]
        ours = [requirement for requirement in asked if requirement.name.startswith("longca-")]
        assert project["version"] == "99.4.5"
        assert {str(requirement.specifier) for requirement in ours} <= {"<100,>=99.4"}
        assert project["urls"] == {
            "Repository": HOME,
            "Documentation": f"{HOME}/blob/main/docs/index.md",
            "Issues": f"{HOME}/issues",
            "Changelog": f"{HOME}/blob/main/CHANGELOG.md",
            "Paper": _project(folder)["urls"]["Paper"],
        }
        others = {name: value for name, value in project.items() if name not in ("version", "dependencies", "urls")}
        assert others == {name: value for name, value in _project(folder).items() if name in others}
    assert "\nversion: 99.4.5\ndate-released: 2030-01-02\n" in found[tmp_path / "CITATION.cff"]
    dated = "## [Unreleased]\n\n## [99.4.5] - 2030-01-02\n\n### Added\n\n- A thing."
    assert dated in found[tmp_path / "CHANGELOG.md"]


@pytest.mark.slow
def test_a_dry_run_builds_all_and_changes_nothing(workspace, capsys):
    release.release(workspace, "0.2.0", HOME, write=False)
    assert not _git(workspace, "status", "--porcelain", "--ignored")
    said = capsys.readouterr().out
    assert "would change: plugins/example/pyproject.toml" in said
    assert "4 sdists and wheels were built, and twine check --strict passes on them" in said
    assert "git tag -a v0.2.0" in said
    assert "dist/longca_example-0.2.0.tar.gz" in said


@pytest.mark.slow
def test_a_release_that_is_written_can_be_followed_by_the_next(workspace):
    release.release(workspace, "0.2.0", HOME, write=True)
    assert _project(workspace / "core")["version"] == _project(workspace / "plugins/example")["version"] == "0.2.0"
    names = sorted(path.name for path in (workspace / "dist").iterdir())
    assert names == sorted(
        f"longca_{n}-0.2.0{end}" for n in ("core", "example") for end in (".tar.gz", "-py3-none-any.whl")
    )
    with pytest.raises(SystemExit, match="has changes; commit them first"):
        release.release(workspace, "0.2.1", None, write=True)
    _commit(workspace)
    with pytest.raises(SystemExit, match=r"0\.2\.0 is not later than 0\.2\.0"):
        release.edits(workspace, "0.2.0", None, datetime.date.today())
    with pytest.raises(SystemExit, match="no entry under Unreleased"):
        release.edits(workspace, "0.2.1", None, datetime.date.today())
    log = workspace / "CHANGELOG.md"
    log.write_text(log.read_text("utf-8").replace("## [Unreleased]\n", "## [Unreleased]\n\n- A thing.\n", 1), "utf-8")
    found = release.edits(workspace, "0.2.1", None, datetime.date.today())
    assert f'Repository = "{HOME}"' in found[workspace / "core/pyproject.toml"]


@pytest.mark.parametrize(
    ("version", "home", "said"),
    [
        ("0.2", HOME, "'0.2' is no version of three numbers"),
        ("next", HOME, "'next' is no version"),
        ("0.2.0rc1", HOME, "'0.2.0rc1' is no version of three numbers"),
        ("0.0.9", HOME, "0.0.9 is not later than 0.1.0"),
        ("0.2.0", None, "has no address of the repository; give it once: --repository"),
        ("0.2.0", "longca", "has no address of the repository"),
    ],
)
def test_a_release_that_cannot_be_is_refused(workspace, version, home, said):
    with pytest.raises(SystemExit) as stopped:
        release.edits(workspace, version, home, datetime.date.today())
    assert said in stopped.value.code
