"""The command that measures one record again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record

__all__ = ["rerun"]

#: Mask factors that have an option of `longca run`.
_OPTIONS = ("documents", "window", "prefix", "block", "kept", "global_tokens", "boundaries")


def rerun(record: Record, kind: str | None) -> str:
    """The `longca run` command of a record's case, for a POSIX shell.

    Args:
        record: The record.
        kind: The kind of its device, `cpu` or `cuda`. None if it is unknown.
    """
    return shlex.join(["longca", "run", record.pattern, *_problem(record), *_ranks(record), *_device(kind)])


def _problem(record: Record) -> Iterator[str]:
    yield from ("--kernel", record.kernel)
    yield from ("--seqlen", str(record.seqlen))
    yield from ("--heads", f"{record.heads_q}:{record.heads_kv}")
    yield from ("--head-dim", str(record.head_dim))
    yield from ("--dtype", record.dtype)
    yield from ("--direction", record.direction)
    yield from ("--seed", str(record.seed))
    for name in _OPTIONS:
        if name in record.factors:
            yield from (f"--{name.replace('_', '-')}", _text(record.factors[name]))
    if "heads" in record.factors:
        yield from ("--mask-heads", _text(record.factors["heads"]))
    if _draws_lengths(record):
        yield from ("--lengths", record.lengths)


def _draws_lengths(record: Record) -> bool:
    """Whether the command names the source of document lengths."""
    if record.lengths == "auto" or "documents" in record.factors:
        return False
    from longca.errors import LongCAError
    from longca.masks.sampling import draws_lengths

    try:
        return draws_lengths(record.pattern)
    except LongCAError:  # the plugin of the pattern is not installed here
        return True


def _ranks(record: Record) -> Iterator[str]:
    if record.strategy is None:
        return
    yield from ("--strategy", record.strategy)
    if record.placement is not None:
        yield from ("--placement", record.placement)
    yield from ("--nproc", str(record.world_size))


def _device(kind: str | None) -> tuple[str, ...]:
    return ("--device", kind) if kind in ("cpu", "cuda") else ()


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
