"""Install lines: commands that install packages from where this installation came from, and that keep its PyTorch."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from importlib_metadata import PackageNotFoundError, requires
from packaging.requirements import Requirement

from longca.errors import MissingPackageError
from longca.manifests.packages import alternatives, direct_url, installed_version

__all__ = ["absent", "held_by_torch", "install_line", "remedy"]

_CORE, _PIP = "longca-core", "pip install "

#: The extra of longca-core for each module of other packages that commands import where they need it.
_EXTRAS = {
    **dict.fromkeys(("pandas", "matplotlib", "altair", "jinja2", "vl_convert"), "report"),
    "torch": "run",
    "copier": "new-plugin",
    "pyarrow": "parquet",
    "tokenizers": "corpus",
}


def absent(error: ImportError, purpose: str) -> MissingPackageError | None:
    """The error that names the extra of longca-core for a module that is missing. None for any other module."""
    module = (error.name or "").partition(".")[0]
    if module not in _EXTRAS:
        return None
    return MissingPackageError(module, purpose, install_line(f"pip install 'longca-core[{_EXTRAS[module]}]'"))


def install_line(*commands: str, folders: Mapping[str, str] | None = None) -> str:
    """Commands that install packages, as they work here, in one line.

    Distributions of LongCA come from a checkout, from a folder of wheels or from the index, as those that are
    installed did. The line asks for the installed PyTorch, so that pip fails rather than replaces it. Other commands
    than those of pip stay as they are.

    Args:
        commands: Commands such as `pip install 'longca-flashattn[fa4]'`.
        folders: Folder in LongCA's repository of each distribution that may not be installed.
    """
    words, others = dict[str, None](), dict[str, None]()
    for command in commands:
        if command.startswith(_PIP) and "--no-deps" not in command:
            words |= dict.fromkeys(shlex.split(command.removeprefix(_PIP)))
        else:
            others[command] = None
    found = [
        part
        for word in words
        if not any(other.startswith(f"{word}[") for other in words)
        for part in _source(word, folders or {})
    ]
    if found and (torch := installed_version("torch")):
        others_than_torch = (word for word in found if not re.match(r"torch([<>=!~]|$)", word))
        found = [*others_than_torch, f"torch=={torch.partition('+')[0]}"]
    found = [word for place, word in enumerate(found) if word == "-e" or word not in found[:place]]
    return " && ".join([_PIP + shlex.join(found), *others] if found else others)


@cache
def remedy(requirement: str, stated: str | None = None) -> str:
    """A sentence with the line that installs a missing package, or on the PyTorch that it takes.

    The stated command takes the place of `pip install` of the requirement.
    """
    line = install_line(stated or f"pip install '{requirement}'")
    return held_by_torch(requirement) or f"Install it: {line}"


@cache
def held_by_torch(requirement: str) -> str:
    """A sentence on the PyTorch that keeps a requirement from being met. Empty without one."""
    torch = installed_version("torch")
    try:
        pins = {need.name: need for need in map(Requirement, requires("torch") or ())} if torch else {}
    except PackageNotFoundError:
        return ""
    for wanted in alternatives(requirement):
        pin = pins.get(wanted.name)
        exact = [part.version for part in pin.specifier if part.operator == "=="] if pin else []
        if wanted.name != "torch" and all(wanted.specifier.contains(version, prereleases=True) for version in exact):
            return ""
        held = f" has {wanted.name} {exact[0]}" if exact else " is installed"
    return f"It takes another PyTorch: torch {torch}{held}" if torch else ""


def _source(word: str, folders: Mapping[str, str]) -> Iterator[str]:
    """The words of pip's command for one word. A distribution of LongCA becomes the place that it comes from."""
    if not word.startswith("longca-"):
        yield word
        return
    wanted = Requirement(word)
    extras = f"[{','.join(sorted(wanted.extras))}]" * bool(wanted.extras)
    own, core = direct_url(wanted.name), direct_url(_CORE)
    url = own or core
    path = Path(unquote(urlsplit(url.get("url", "")).path))
    folder = folders.get(wanted.name, "")
    if "dir_info" in url and (own or folder):
        at = path if own else path.parent / folder
        if url["dir_info"].get("editable"):
            yield "-e"
        yield _from_here(at) + extras
    elif "archive_info" in url and url["url"].startswith("file:"):
        yield f"--find-links={_from_here(path.parent)}"
        yield word
    elif "vcs_info" in url and (own or folder):
        about = url["vcs_info"]
        yield f"{word} @ {about['vcs']}+{url['url']}@{about['commit_id']}#subdirectory={folder or url['subdirectory']}"
    else:
        yield word


def _from_here(path: Path) -> str:
    """A path, relative if it lies below the working directory."""
    here = Path.cwd()
    return f".{os.sep}{path.relative_to(here)}" if path.is_relative_to(here) else str(path)
