"""What the workspace's modules import, read from their source: which floor stands on which, and who imports torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = sorted(
    path.parent for pattern in ("core", "longca_*", "plugins/*") for path in ROOT.glob(f"{pattern}/pyproject.toml")
)


@dataclass(frozen=True)
class Import:
    """One imported module or name, as a dotted path; `early` where it is imported with the module that says so."""

    target: str
    early: bool


def packages_of(distribution: Path) -> list[Path]:
    """The packages of a distribution: three of the core, one of every other."""
    return sorted(path for path in (distribution / "src").iterdir() if (path / "__init__.py").is_file())


def package_of(distribution: Path) -> Path:
    """The one package of a plugin or a kit."""
    (package,) = packages_of(distribution)
    return package


@cache
def modules(distribution: Path) -> dict[str, Path]:
    """The distribution's modules by name."""
    source = distribution / "src"
    found = {}
    for path in (path for package in packages_of(distribution) for path in sorted(package.rglob("*.py"))):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Everything that a module imports; relative imports are not in use here."""
    return tuple(_walk(ast.parse(path.read_text(encoding="utf-8")), early=True))


def _walk(node: ast.AST, early: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, early) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "import from the package by its name"
            yield from (Import(f"{child.module}.{alias.name}", early) for alias in child.names)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _walk(child, early=False)
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(child, early and not function)


def module_named(target: str, known: dict[str, Path]) -> str | None:
    """The known module that a dotted path is or lies in."""
    parts = target.split(".")
    return next((name for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in known), None)


def early_closure(name: str, known: dict[str, Path]) -> set[str]:
    """The known modules that come with one when it is imported, packages around them included, and itself."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        waiting.extend(
            around for n in range(1, current.count(".") + 1) if (around := current.rsplit(".", n)[0]) in known
        )
        targets = (module_named(i.target, known) for i in imports(known[current]) if i.early)
        waiting.extend(target for target in targets if target)
    return seen
