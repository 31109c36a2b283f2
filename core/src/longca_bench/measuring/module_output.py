"""The output of a module that runs in a process of its own: a line of JSON, after whatever libraries print."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from longca.errors import LongCAError

__all__ = ["last_json_line"]

_LAST_WORDS = 500  # characters of a complaint that are shown


def last_json_line(module: str, *arguments: str, what: str, seconds: float) -> dict[str, Any]:
    """The last line that a module prints, which is an object of JSON. A failure is a LongCAError that names `what`."""
    command = [sys.executable, "-P", "-m", module, *arguments]
    try:
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LongCAError(f"{what} did not end within {seconds:g} s; it was ended") from None
    try:
        return dict(json.loads(ran.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        last = "".join(ran.stderr.strip().splitlines()[-1:])[-_LAST_WORDS:] or "nothing"
        raise LongCAError(f"{what} ended with code {ran.returncode}, and its last words are: {last}") from None
