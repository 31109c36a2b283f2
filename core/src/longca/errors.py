"""The errors LongCA raises: one tree, so that a caller can catch exactly as much as it means to.

    LongCAError
    ├── RequestError (ValueError)      the request was wrong: unknown name, factor that does not fit, bad file
    │   ├── MaskError                  a mask that cannot be built, cut or converted as asked
    │   └── UnknownNameError           a pattern, kernel, suite or option value nobody provides
    ├── UnsupportedError               the request was right, but no offer covers it. It has the verdict's reasons
    ├── MissingPackageError (ImportError)  an optional package is missing. It names the pip install line
    ├── PluginError                    a plugin broke its contract
    ├── RecordError                    a result could not be stored, and earlier results are
    └── VerificationError              a kernel's result is wrong

A message names the request, the value found, the allowed values and the way out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = [
    "LongCAError",
    "MaskError",
    "MissingPackageError",
    "PluginError",
    "RecordError",
    "RequestError",
    "UnknownNameError",
    "UnsupportedError",
    "VerificationError",
]


#: A text without a space that is longer than any name. A message shows its beginning and its end.
_LONG = re.compile(r"\S{501,}")


class LongCAError(Exception):
    """Any error LongCA raises on purpose. Its message repeats no text of thousands of characters."""

    def __str__(self) -> str:
        return _LONG.sub(
            lambda found: f"{found[0][:80]}…({len(found[0])} characters)…{found[0][-80:]}", super().__str__()
        )


class RequestError(LongCAError, ValueError):
    """The request was wrong. The message says how to correct it."""


class MaskError(RequestError):
    """A mask that cannot be built, cut or converted as asked."""


class UnknownNameError(RequestError):
    """A name nobody provides, with the nearest names that exist.

    Args:
        kind: The noun of the name, such as `kernel`. Without `known` it is the whole message, because `pickle`, `copy`
            and training frameworks make an error anew from its message alone.
        name: The name.
        known: The names that exist.
    """

    def __init__(self, kind: str, name: str = "", known: Iterable[str] | None = None) -> None:
        self.kind, self.name, self.known = ("" if known is None else kind), name, sorted(known or ())
        super().__init__(kind if known is None else self._message())

    def _message(self) -> str:
        near = difflib.get_close_matches(str(self.name)[:100].lower(), self.known, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(self.known) or 'none'}."
        return f"unknown {self.kind} {self.name!r}. {hint}"


class UnsupportedError(LongCAError):
    """The request was right, but no offer covers it."""


class MissingPackageError(LongCAError, ImportError):
    """An optional package is missing.

    Args:
        package: The package. Without `purpose` it is the whole message, as in `UnknownNameError`.
        purpose: What needs the package.
        install: The line that installs it. None for that of pip.
    """

    def __init__(self, package: str, purpose: str | None = None, install: str | None = None) -> None:
        self.package, self.install = ("", "") if purpose is None else (package, install or f"pip install '{package}'")
        told = f"{purpose} needs {package}, which is not installed. Install it: {self.install}"
        super().__init__(package if purpose is None else told)


class PluginError(LongCAError):
    """A plugin broke its contract."""


class RecordError(LongCAError):
    """A result could not be stored. The message says whether earlier results were."""


class VerificationError(LongCAError):
    """A kernel's result is wrong. The message gives the place and the error."""
