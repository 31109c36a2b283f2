"""Lengths, times, sizes of memory, shares and heads, read as people write them and as LongCA prints them.

Each function raises a RequestError about any other text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from longca.errors import RequestError
from longca.limits import MAX_SECONDS, shown

__all__ = ["parse_bytes", "parse_head_dim", "parse_heads", "parse_seconds", "parse_share", "parse_tokens"]

_NUMBER = re.compile(r"\s*([0-9]{1,99}|[0-9]{0,9}\.[0-9]{1,9})\s*([^\W\d_]*|%)\s*")
_HEADS = re.compile("([0-9]{1,9})(?::([0-9]{1,9}))?")
_TOKENS = {"": 1.0, "k": 2.0**10, "m": 2.0**20}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_BYTES |= {"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40}


def parse_tokens(text: str) -> int:
    """A number of tokens, such as `4096`, `32k` (32 · 1024), `64 K` or `1M` (1024 · 1024)."""
    tokens = _parse(text, _TOKENS, "number of tokens. Give an integer, or one in K (1024) or M, such as 32k or 1M")
    if int(tokens) != tokens:
        raise RequestError(f"{text} is {tokens:g} tokens; give a whole number of tokens")
    return int(tokens)


def parse_seconds(text: str) -> float:
    """A time in seconds, such as `90`, `1.2 ms` or `10 min`, of at most MAX_SECONDS."""
    seconds = _parse(text, _SECONDS, "time. Give a number of seconds, or one with a unit, such as 90 s or 10 min")
    if seconds > MAX_SECONDS:
        raise RequestError(f"{text} is more than {MAX_SECONDS:,.0f} s; give a shorter time")
    return seconds


def parse_bytes(text: str) -> int:
    """A size of memory in bytes, such as `80GB` (80 · 10⁹ bytes) or `512 KiB` (512 · 2¹⁰ bytes)."""
    about = "Give a number and a unit, such as 80GB (80 · 10^9 bytes) or 80GiB (80 · 2^30 bytes)"
    return int(_parse(text, _BYTES, f"size of memory. {about}"))


def parse_share(text: str) -> float:
    """A share, such as `0.2` or `20 %`."""
    return _parse(text, {"": 1.0, "%": 0.01}, "share. Give a number from 0 to 1, or percent, such as 0.2 or 20%")


def parse_heads(text: str) -> tuple[int, int]:
    """Query heads and KV heads, such as `64:8`. A single number such as `32` stands for both."""
    found = _HEADS.fullmatch(text)
    heads_q, heads_kv = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 0 < heads_kv <= heads_q <= 2**16 or heads_q % heads_kv:
        raise RequestError(f"heads are {shown(text)}; give query heads that are a multiple of KV heads, such as 64:8")
    return heads_q, heads_kv


def parse_head_dim(text: str) -> tuple[int, int | None]:
    """The head dimension of q and k, and another one of v or None: `128`, or `192:128`."""
    found = _HEADS.fullmatch(text)
    if found is None:
        raise RequestError(f"head dim is {shown(text)}; give an integer such as 128, or 192:128 for 128 of v")
    return int(found[1]), None if found[2] in (None, found[1]) else int(found[2])


def _parse(text: str, units: Mapping[str, float], kind: str) -> float:
    """The value of a number with one of some units, in either case. An integer without a unit keeps all its digits."""
    found = _NUMBER.fullmatch(text.lower().replace("μ", "µ"))
    if found is None or found[2] not in units:
        raise RequestError(f"{shown(text)} is no {kind}")
    number = float(found[1]) if "." in found[1] else int(found[1])
    return number * units[found[2]] if found[2] else number
