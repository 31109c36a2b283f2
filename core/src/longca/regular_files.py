"""Regular files: opened and read without waiting, and within a limit.

A name may stand for a FIFO that nobody writes to, for a link to another run's file, or for a file larger than the
memory. All functions refuse such a name with an `OSError` whose `strerror` is a clause for a message.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import BinaryIO

__all__ = ["append_line", "open_regular", "read_regular", "write_all", "write_whole"]

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

_WRONG_KINDS = {errno.ELOOP: "a symbolic link", errno.EISDIR: "a folder"}
#: Bytes before a line that a function may read, and seconds to wait for a file's lock.
_MOST_READ, _PATIENCE = 2**26, 20.0


def open_regular(path: Path, flags: int = os.O_RDONLY, *, follow: bool = False) -> int:
    """Opens a regular file, and returns its descriptor.

    Args:
        path: The file.
        flags: The flags of `os.open`.
        follow: Whether the name may be a symbolic link to a regular file.

    Raises:
        OSError: The file cannot be opened, or is no regular file.
    """
    try:
        opened = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW), 0o666)
    except OSError as error:
        if error.errno not in _WRONG_KINDS:
            raise
        raise _wrong_kind(_WRONG_KINDS[error.errno], path) from None
    mode = os.fstat(opened).st_mode
    if not stat.S_ISREG(mode):
        os.close(opened)
        kind = next((name for matches, name in _KINDS if matches(mode)), "a special file")
        raise _wrong_kind(kind, path)
    return opened


def _wrong_kind(kind: str, path: Path) -> OSError:
    return OSError(errno.EINVAL, f"it is {kind}, and a regular file is needed", str(path))


def read_regular(path: Path, most: int, *, follow: bool = False) -> bytes:
    """The content of a regular file.

    Args:
        path: The file.
        most: Bytes that the file may have.
        follow: Whether the name may be a symbolic link to a regular file.

    Raises:
        OSError: The file cannot be read, is no regular file, or has more bytes.
    """
    with os.fdopen(open_regular(path, follow=follow), "rb") as file:
        return _within(file, most, path)


def _within(file: BinaryIO | FileIO, most: int, path: Path) -> bytes:
    """The content of an open file, if it has at most some bytes."""
    size = os.fstat(file.fileno()).st_size
    content = (file.read(most + 1) or b"") if size <= most else b""
    if size > most or len(content) > most:
        raise OSError(errno.EFBIG, f"it has {max(size, len(content))} bytes, and at most {most} are read", str(path))
    return content


def write_all(descriptor: int, content: bytes) -> None:
    """Writes all of some content, and flushes it to the disk."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)


def append_line(path: Path, line: bytes | Callable[[bytes], bytes], most: int = _MOST_READ) -> None:
    """Adds a line to a regular file or to a link to one. The file and its folder are made if they are missing.

    Args:
        path: The file.
        line: The line, or a function that makes it from the lines before it. No other process adds a line meanwhile.
        most: Bytes that these may have.

    Raises:
        OSError: The file cannot be written, or another process holds its lock for seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, follow=True), "rb", buffering=0) as file:
        _lock(file.fileno(), path)
        # A writer that was killed left a line without an end. The new line must not be lost with it.
        size = os.fstat(file.fileno()).st_size
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        if callable(line):
            line = line(_within(file, most, path) + b"\n" * torn)
        write_all(file.fileno(), b"\n" * torn + line + b"\n")


def _lock(file: int, path: Path) -> None:
    """Waits for a file's lock, but not forever."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise OSError(errno.EAGAIN, "another process holds its lock", str(path)) from None
            time.sleep(0.01)
        except OSError:
            return  # this file system has no locks


def write_whole(path: Path, content: bytes) -> None:
    """Writes a regular file. A reader sees the former content or all of the new content.

    Raises:
        OSError: The file cannot be written, or the name stands for something else than a regular file.
    """
    if os.path.lexists(path):
        os.close(open_regular(path))
    new = path.with_name(f"{path.name}.new")
    descriptor = open_regular(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(descriptor, content)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
