"""The page: template, styles, scripts and data in one HTML file.

Nothing in the file is loaded from elsewhere, and its content security policy allows the page's own two scripts alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.errors import MissingPackageError, RequestError
from longca_bench.reports.html.payload import payload

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows

__all__ = ["write_html"]

#: The parts of the page's styles, in the order in which they are joined.
_STYLES = ("theme", "layout", "tables", "charts", "phone", "print")
#: The parts of the page's script, in the order in which they are joined.
_SCRIPTS = (
    "dom", "words", "model", "ratios", "filters", "symbols", "charts", "answer", "throughput", "profile", "memory",
    "cells", "case", "failures", "compare", "runs", "main",
)  # fmt: skip


def write_html(rows: Rows, out: Path) -> Path:
    """Writes the report of rows as one file.

    Args:
        rows: Rows of records, at least one.
        out: The file.

    Returns:
        The file.

    Raises:
        MissingPackageError: The chart library is not installed.
        RequestError: There are no records, or the file cannot be written.
    """
    if not len(rows):
        raise RequestError("no record is left to report; give other conditions")
    text = _page(payload(rows))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8", newline="\n")  # the policy has hashes of the scripts
    except OSError as error:
        raise RequestError(f"cannot write to {out}: {error.strerror}. Choose another file with --out") from None
    return out


def _page(data: Mapping[str, Any]) -> str:
    """The page of `payload`'s data."""
    assets = files("longca_bench.reports.html") / "assets"
    library, script = _chart_library(), _script(assets)
    parts = {
        "TITLE": escape(data["title"]),
        "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src {_hashes(library, script)}",
        "STYLE": "".join(_read(assets / "css" / f"{name}.css") for name in _STYLES),
        "DATA": _json(data),
        "LIBRARY": library,
        "SCRIPT": script,
    }
    # Each placeholder splits the template once, so that text of records which looks like one stays text.
    text, rest = "", _read(assets / "page.html")
    for name, part in parts.items():
        before, _, rest = rest.partition(f"<!--{name}-->")
        text += before + part
    return text + rest


def _script(assets: Traversable) -> str:
    """The page's own script: its parts in one function."""
    parts = "\n".join(_read(assets / "js" / f"{name}.js") for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


@cache
def _chart_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    try:
        import vl_convert
    except ImportError:
        install = "pip install 'longca-core[html]'"
        raise MissingPackageError("vl-convert-python", "writing HTML", install) from None
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _json(data: Mapping[str, Any]) -> str:
    """JSON that no HTML parser takes for markup."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hashes(*scripts: str) -> str:
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _read(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")
