"""`longca new-plugin`: a plugin to start from, in a new folder."""

from __future__ import annotations

import re
import shutil
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from importlib_metadata import version

from longca.errors import RequestError
from longca.manifests.installs import absent
from longca_bench.cli.options import NoPlugin, open_registry

if TYPE_CHECKING:
    from longca.plugins import Registry

__all__ = ["compatible_range", "new_plugin"]

#: The names that a manifest and a distribution both take, once - and _ are the same.
_NAME = re.compile(r"[a-z](?:[_-]?[a-z0-9]+)*")
_LONGEST = 40


def new_plugin(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The name of the new kernel or strategy, such as my_kernel.")],
    strategy: Annotated[bool, typer.Option("--strategy", help="Make a context-parallel strategy.")] = False,
    no_plugin: NoPlugin = None,
) -> None:
    """Makes a plugin in a new folder: a kernel that works, its manifest, tests, a CI file and a README.

    The folder is longca-NAME. Its tests pass at once, and its code is yours to replace.

    Example: longca new-plugin my_kernel
    """
    registry = open_registry(context, no_plugin)
    name = _checked(name, registry)
    folder = Path(_distribution(name))
    kind = "strategy" if strategy else "kernel"
    _render(folder, {"kind": kind, "name": name, "core": compatible_range(version("longca-core"))})
    from longca_bench.reports.text import console, safe

    ranked = f"longca run quick --kernel {name} --kernel sdpa --mask causal"
    asked = f"longca show-layout {name}" if strategy else ranked
    out = console()
    out.print(f"The {kind} {safe(name)} is in {safe(folder)}. Install, test and try it:\n", soft_wrap=True)
    for line in (f"cd {folder}", 'pip install -e ".[test]"', "python -m pytest", asked):
        out.print(f"  {safe(line)}", soft_wrap=True)


def compatible_range(version: str) -> str:
    """The range of versions with the same interface, such as `>=0.1,<0.2` for 0.1.3 and `>=1.2,<2` for 1.2.0."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return f">={major}.{minor},<{major + 1}" if major else f">=0.{minor},<0.{minor + 1}"


def _checked(name: str, registry: Registry) -> str:
    """The name with underscores, and without the prefix that every distribution has."""
    name = name.removeprefix("longca-").removeprefix("longca_")
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise RequestError(
            f"{name!r} cannot name a plugin; give at most {_LONGEST} of a-z, 0-9, - and _, with a letter first and"
            " neither - nor _ at the end or twice in a row, such as my_kernel"
        )
    name = name.replace("-", "_")
    if name == "auto":
        raise RequestError("auto stands for LongCA's own choice; choose another name")
    for kind, known in (("kernel", registry.kernels), ("strategy", registry.strategies)):
        if name in known:
            raise RequestError(
                f"a {kind} {name!r} is installed; choose another name. `longca plugins` lists those taken"
            )
    if find_spec(f"longca_{name}") is not None or _distribution(name) in {
        each.distribution for each in registry.plugins
    }:
        raise RequestError(f"a package longca_{name} is installed; choose another name than {name!r}")
    return name


def _distribution(name: str) -> str:
    return f"longca-{name.replace('_', '-')}"


def _render(folder: Path, answers: dict[str, str]) -> None:
    """Writes the template into a new folder. A failure leaves no folder behind."""
    try:
        import copier
    except ImportError as error:
        raise absent(error, "new-plugin") or error from None
    try:
        folder.mkdir()
    except FileExistsError:
        raise RequestError(f"{folder} exists here; choose another name, or run the command in another folder") from None
    except OSError as error:
        raise RequestError(f"{folder} cannot be made: {error.strerror}; run the command in a folder of yours") from None
    try:
        with as_file(files("longca_bench").joinpath("templates", "new_plugin")) as template:
            copier.run_copy(str(template), folder, data=answers, defaults=True, overwrite=True, quiet=True)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise RequestError(f"{folder} cannot be written: {error.strerror or error}") from None
        raise
