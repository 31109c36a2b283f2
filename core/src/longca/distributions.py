"""Installed distributions, whose metadata is read without trust: a file may be a FIFO, huge or random bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import importlib_metadata

from longca.regular_files import read_regular

__all__ = ["CORE", "Metadata", "UnreadableError", "distributions", "find_core"]

CORE = "longca-core"
#: The folder of the packages that run now.
_HERE = Path(__file__).parents[1]
#: Bytes that a file may have. The list of a large package's files is long.
_MOST = {"RECORD": 2**25, "METADATA": 2**22, "PKG-INFO": 2**22}
_MOST_ELSE = 2**20


class UnreadableError(Exception):
    """A file of a distribution's metadata is there and cannot be read as text. The message is a clause."""


class Metadata(importlib_metadata.Distribution):
    """A distribution whose files are read only if they are regular, small enough and text.

    Its properties are those of `importlib_metadata.Distribution`. They raise UnreadableError too.
    """

    def __init__(self, found: Any) -> None:
        self._found = found
        path = getattr(found, "_path", None)
        #: The folder of the metadata. None for a distribution without one, such as one in an archive.
        self.folder = path if isinstance(path, Path) else None

    @property
    def folder_name(self) -> str:
        """The name of the metadata's folder, or else of the kind of distribution."""
        return self.folder.name if self.folder else type(self._found).__name__

    def read_text(self, filename: Any) -> str | None:
        """The text of a metadata file, or None if there is none.

        Raises:
            UnreadableError: It is no regular file, too large or no text.
        """
        if self.folder is None:
            text: str | None = self._found.read_text(filename)
            return text
        return _read(self.folder / filename, str(filename)) if filename or self.folder.is_file() else None

    def locate_file(self, path: Any) -> Any:
        """The place of a file of the distribution."""
        return self._found.locate_file(path)

    @property
    def is_core(self) -> bool:
        """Whether the packages that run now are this distribution's, by the place of their files."""
        with suppress(OSError, TypeError):
            if os.path.samefile(self.locate_file("longca/__init__.py"), _HERE / "longca" / "__init__.py"):
                return True
        with suppress(UnreadableError, ValueError, TypeError, KeyError, RecursionError):
            # An editable installation names the folder of its source.
            url = urlsplit(json.loads(self.read_text("direct_url.json") or "{}")["url"])
            return url.scheme == "file" and _HERE.is_relative_to(Path(unquote(url.path)).resolve())
        return False


def _read(path: Path, name: str) -> str | None:
    try:
        return read_regular(path, _MOST.get(name, _MOST_ELSE), follow=True).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnreadableError(f"its {name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UnreadableError(f"its {name} is no text in UTF-8") from None


def distributions(**named: str) -> Iterator[Metadata]:
    """The installed distributions, in the order of `sys.path`.

    Args:
        named: `name="..."` for the distributions of one name.
    """
    return map(Metadata, importlib_metadata.distributions(**named))


@cache
def find_core() -> Metadata:
    """The distribution of the packages that run now.

    Raises:
        PackageNotFoundError: They run without being installed.
    """
    found = list(distributions(name=CORE))
    # One that cannot be told by its files is the core if no other is there.
    for distribution in found:
        if len(found) == 1 or distribution.is_core:
            return distribution
    raise importlib_metadata.PackageNotFoundError(CORE)
