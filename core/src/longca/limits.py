"""Limits of requests, in one place. They are checked before anything is computed.

The limits are far above what is measured today, and low enough that a request within them fits into memory. A request
beyond them has a mistake.
"""

from __future__ import annotations

import reprlib
from math import log10

from longca.errors import MaskError

__all__ = [
    "MAX_DENSE_CELLS",
    "MAX_DOCUMENTS",
    "MAX_DOCUMENT_BYTES",
    "MAX_HISTOGRAM_BYTES",
    "MAX_LIST_BYTES",
    "MAX_RANKS",
    "MAX_REPEATS",
    "MAX_SECONDS",
    "MAX_SEQLEN",
    "MAX_SLICES",
    "MAX_TOKENS",
    "check_pieces",
    "check_tokens",
    "shown",
]

#: The longest sequence of a mask. Bounds, and any bound shifted by any other, fit in int32.
MAX_SEQLEN = 2**30

#: The longest sequence that a command or a suite takes. Its intervals are written out, with some bytes for each token.
MAX_TOKENS = 2**26

#: The largest boolean matrix that `dense` makes: 4 GiB, a head at 64 K tokens. A bitmap of blocks has no more entries.
MAX_DENSE_CELLS = 2**32

#: The most documents of a mask, and the most slices that a pattern makes of its factors.
MAX_DOCUMENTS = MAX_SLICES = 2**20

#: The most ranks that share a mask.
MAX_RANKS = 2**14

#: The longest deadline of a case in seconds, which is 11 days.
MAX_SECONDS = 1e6

#: The most further calls of each problem that is verified.
MAX_REPEATS = 10**6

#: Bytes of a histogram of lengths, of a list of lengths, and of one document of a corpus.
MAX_HISTOGRAM_BYTES, MAX_LIST_BYTES, MAX_DOCUMENT_BYTES = 2**24, 2**26, 2**24

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 80, 80


def check_tokens(tokens: int, name: str = "seqlen") -> int:
    """Returns a length that a command or a suite asks for, or raises MaskError if it is not from 1 to MAX_TOKENS."""
    if not 1 <= tokens <= MAX_TOKENS:
        raise MaskError(
            f"{name} is {shown(tokens)}; lengths from 1 to {MAX_TOKENS} tokens are allowed here. Give a length in them"
        )
    return tokens


def check_pieces(count: int, noun: str, remedy: str) -> None:
    """Refuses a mask of more than MAX_SLICES documents or slices with a MaskError."""
    if count > MAX_SLICES:
        raise MaskError(f"the mask has {shown(count)} {noun}; at most {MAX_SLICES} (2²⁰) are allowed. {remedy}")


def shown(value: object) -> str:
    """A value as a message shows it: its representation, or its beginning and end if that is long."""
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to write thousands of digits
        return f"a number of about {round(value.bit_length() * log10(2))} digits"
    return _SHORT.repr(value)
