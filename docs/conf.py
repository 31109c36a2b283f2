"""Sphinx: `make docs` builds these pages into docs/_build, with warnings as errors."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from sphinx.domains.python import PyObject
from typing_extensions import is_protocol

_DOCS = Path(__file__).resolve().parent

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_CHECKED = re.compile(r"Annotated\[((?:[^\[\]]|\[[^\[\]]*\])*), \w+\([^()]*\)\]")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)]+)\)")

for field in PyObject.doc_field_types:
    if field.name == "variable":
        field.label = "Attributes"  # what the docstrings call them

project = "LongCA"
author = "the authors of LongCA"
copyright = author
release = installed("longca-core")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "examples"]
smartquotes_action = "D"  # dashes alone: quotes stay as they are typed
highlight_language = "text"
default_role = "code"  # single backticks in docstrings are code

myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"LongCA {release}"
html_static_path = ["_static"]
html_css_files = ["longca.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
# No font, script or picture comes from elsewhere: the pages work offline.
pygments_style = "friendly"
pygments_dark_style = "monokai"


def _without_outside_links(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = _OUTSIDE.sub(partial(_inside, (app.srcdir / page).parent), source[0])


def _inside(folder: Path, link: re.Match[str]) -> str:
    """A link to a folder or page of the repository, which are not on the site: its text. Files can be downloaded."""
    target = (folder / link[2].partition("#")[0]).resolve()
    gone = not target.is_relative_to(_DOCS) and (target.is_dir() or target.suffix == ".md")
    return link[1] if gone else link[0]


def _no_signature(_app: Sphinx, what: str, _name: str, kind: Any, *_rest: Any) -> tuple[str, str] | None:
    """The fields of models and dataclasses are listed below them, and protocols are not called."""
    bare = what == "class" and (is_dataclass(kind) or is_protocol(kind) or issubclass(kind, BaseModel))
    if bare:
        return "", ""
    return None


def _skip_configuration(_app: Sphinx, _what: str, name: str, *_rest: Any) -> bool | None:
    return True if name == "model_config" else None


def _plain_types(_app: Sphinx, _what: str, _name: str, _kind: Any, _options: Any, lines: list[str]) -> None:
    """Types of attributes without what pydantic checks beyond them."""
    for number, line in enumerate(lines):
        if line.startswith(":vartype"):
            lines[number] = _CHECKED.sub(r"\1", line)


def _literal_drawings(_app: Sphinx, what: str, _name: str, _kind: Any, _options: Any, lines: list[str]) -> None:
    """Indented blocks of a module's docstring are drawings, tables and formulas: shown as they are."""
    if what != "module":
        return
    for number in range(len(lines) - 2, 0, -1):
        opens = not lines[number - 1].startswith(" ") and not lines[number] and lines[number + 1].startswith("    ")
        if opens and lines[number - 1].strip():
            lines[number : number + 1] = ["", "::", ""]


def setup(app: Sphinx) -> None:
    app.connect("source-read", _without_outside_links)
    app.connect("autodoc-process-signature", _no_signature)
    app.connect("autodoc-skip-member", _skip_configuration)
    app.connect("autodoc-process-docstring", _plain_types, priority=900)  # napoleon writes them at 500
    app.connect("autodoc-process-docstring", _literal_drawings)
