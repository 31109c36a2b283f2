"""Prepares a release of all distributions in lock step: `python docs/release.py 0.2.0`.

All is done in a copy of the tracked files: versions, ranges between distributions, addresses, the changelog's date,
sdists, wheels, and `twine check --strict`. Without `--write` the copy is thrown away, and nothing is changed. With
`--write` the changed files come back, and sdists and wheels are in dist/. Uploading, committing and tagging stay with
you. The last lines say how.

The first release needs `--repository`, the address of the project's repository. Each pyproject.toml then keeps it.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.version import Version

from longca_bench.cli.new_plugin import compatible_range

ROOT = Path(__file__).resolve().parents[1]
PATTERNS = ("core", "longca_*", "plugins/*")
_RANGE = re.compile(r'"(longca-[a-z]+(?:\[[a-z]+\])?)>=[\d.]+,<[\d.]+"')
_VERSION = re.compile(r'^version = "(.*)"$', re.MULTILINE)
_URLS = re.compile(r"^\[project\.urls\]\n(?:.+\n)*", re.MULTILINE)
_KEPT = re.compile(r'^Repository = "(.*)"$', re.MULTILINE)
_UNRELEASED = re.compile(r"^## \[Unreleased\]\n\n(?:The next release is .*\n\n)?", re.MULTILINE)
_STALE = re.compile(r"not (?:yet )?on PyPI")


def distributions(root: Path) -> list[Path]:
    """The folders of all distributions, the core first."""
    return [found.parent for pattern in PATTERNS for found in sorted(root.glob(f"{pattern}/pyproject.toml"))]


def edits(root: Path, version: str, repository: str | None, day: datetime.date) -> dict[Path, str]:
    """The new texts of all files that a release changes.

    Raises:
        SystemExit: The version is not three numbers or not a later one, the changelog is empty, or no address is known.
    """
    _check_version(root, version)
    found = {folder / "pyproject.toml": _project(folder, version, repository) for folder in distributions(root)}
    cited, log = root / "CITATION.cff", root / "CHANGELOG.md"
    found[cited] = _cited(cited.read_text(encoding="utf-8"), version, day)
    found[log] = _dated(log.read_text(encoding="utf-8"), version, day)
    return found


def _ranged(text: str, version: str) -> str:
    """The text with ranges of LongCA's distributions that take this version."""
    return _RANGE.sub(lambda asked: f'"{asked[1]}{compatible_range(version)}"', text)


def _check_version(root: Path, version: str) -> None:
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit(f"{version!r} is no version of three numbers, such as 0.2.0")
    have = Version(_VERSION.findall((root / "core/pyproject.toml").read_text(encoding="utf-8"))[0])
    released = re.findall(r"^## \[(\d.*?)\]", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if Version(version) < have or version in released:
        sys.exit(f"{version} is not later than {released[0] if released else have}; give a later version")


def _project(folder: Path, version: str, repository: str | None) -> str:
    path = folder / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    kept = _KEPT.findall(text)
    address = (repository or (kept[0] if kept else "")).rstrip("/")
    if not re.fullmatch(r"https://[^\s\"]+", address):
        sys.exit(f"{path} has no address of the repository; give it once: --repository https://…")
    urls = f'[project.urls]\nRepository = "{address}"\nDocumentation = "{address}/blob/main/docs/index.md"\n'
    urls += f'Issues = "{address}/issues"\nChangelog = "{address}/blob/main/CHANGELOG.md"\n'
    urls += 'Paper = "https://arxiv.org/abs/2510.17896"\n'
    text = _ranged(_VERSION.sub(f'version = "{version}"', text, count=1), version)
    return _URLS.sub(lambda _: urls, text)


def _cited(text: str, version: str, day: datetime.date) -> str:
    text = re.sub(r"^date-released: .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^version: .*$", f"version: {version}\ndate-released: {day}", text, flags=re.MULTILINE)


def _dated(text: str, version: str, day: datetime.date) -> str:
    _, _, tail = text.partition("## [Unreleased]")
    if not re.search(r"^- ", tail.partition("\n## ")[0], re.MULTILINE):
        sys.exit("CHANGELOG.md has no entry under Unreleased, so there is nothing to release")
    return _UNRELEASED.sub(f"## [Unreleased]\n\n## [{version}] - {day}\n\n", text)


def build(root: Path, out: Path) -> list[Path]:
    """Builds the sdist of each distribution, and its wheel from the sdist; `twine check --strict` passes on all.

    Raises:
        SystemExit: A build or the check failed. The message has its output.
    """
    for folder in distributions(root):
        _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(folder))
    found = sorted(path for path in out.iterdir() if path.suffix in (".gz", ".whl"))
    _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, found))
    return found


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _copy(root: Path, to: Path) -> None:
    """Copies the tracked files of the distributions, and those that a release changes."""
    tracked = _run("git", "-C", str(root), "ls-files", "-z", "--", *PATTERNS, "*.md", "*.cff", ".gitignore").split("\0")
    for name in filter(None, tracked):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)


def release(root: Path, version: str, repository: str | None, write: bool) -> None:
    """Prepares the release in a copy, says what changes, and brings it back if asked."""
    if write and _run("git", "-C", str(root), "status", "--porcelain").strip():
        sys.exit("the working tree has changes; commit them first, so that the release is a commit of its own")
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "copy"
        _copy(root, copy)
        changed = edits(copy, version, repository, datetime.datetime.now(datetime.UTC).date())
        for path, text in changed.items():
            path.write_text(text, encoding="utf-8")
            print(f"{'changed' if write else 'would change'}: {path.relative_to(copy)}")
        built = build(copy, Path(name) / "dist")
        print(f"{len(built)} sdists and wheels were built, and twine check --strict passes on them")
        if write:
            for path in changed:
                shutil.copy2(path, root / path.relative_to(copy))
            shutil.copytree(Path(name) / "dist", root / "dist", dirs_exist_ok=True)
        _say_next(copy, version, built, write)


def _say_next(copy: Path, version: str, built: list[Path], write: bool) -> None:
    for path in (*sorted(copy.glob("*.md")), *sorted(copy.glob("docs/*.md"))):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if _STALE.search(line):
                print(f"change by hand: {path.relative_to(copy)}:{number}: {line}")
    print("\nnothing was changed; --write makes these changes. Then:" if not write else "\nto do:")
    print(f"  git commit -am 'Release {version}'\n  git tag -a v{version} -m 'LongCA {version}'")
    print(f"  git push && git push origin v{version}")
    print("  twine upload " + " \\\n    ".join(f"dist/{path.name}" for path in built))


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Prepares a release. Without --write it changes nothing.")
    parser.add_argument("version", help="the new version of all distributions, such as 0.2.0")
    parser.add_argument("--repository", help="the address of the project's repository, such as https://…")
    parser.add_argument("--write", action="store_true", help="make the changes, and put sdists and wheels into dist/")
    asked = parser.parse_args()
    release(ROOT, asked.version, asked.repository, asked.write)


if __name__ == "__main__":
    main()
