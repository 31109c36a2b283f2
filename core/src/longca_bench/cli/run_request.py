"""The request that `longca run` gets from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from longca_bench.suites.cases import Selection

__all__ = ["Described", "Limits", "Request"]


@dataclass(frozen=True)
class Limits:
    """Limits of every case, as `longca_bench.measuring.runner.Options` has them."""

    deadline: float
    memory: int | None
    fail_fast: bool
    disabled: frozenset[str]


@dataclass(frozen=True)
class Described:
    """Options that describe one problem, and that no suite takes.

    Attributes:
        factors: The options of a mask, by the names of the parameters of
            `longca_bench.cli.mask_options.mask_factors`.
        mask_heads: Heads with masks of their own; None for one for each KV head.
        lengths: Where document lengths are drawn from.
        head_dims: Head dimensions.
        dtypes: Data types.
    """

    factors: Mapping[str, Any]
    mask_heads: int | None
    lengths: str | None
    head_dims: tuple[int, ...]
    dtypes: tuple[str, ...]

    @property
    def options(self) -> list[str]:
        """The options that were given, as they are written."""
        given = {
            **self.factors,
            "mask_heads": self.mask_heads,
            "lengths": self.lengths,
            "head_dim": self.head_dims or None,
            "dtype": self.dtypes or None,
        }
        return [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]


@dataclass(frozen=True)
class Request:
    """One call of `longca run`.

    Attributes:
        subject: Name or file of a suite, or a mask pattern.
        selection: Options that narrow a suite; of a pattern, they are the values that its problem takes.
        described: Options that describe the problem of a pattern.
        limits: Limits of every case.
        device: `cpu`, `cuda`, or None for this machine's.
        nproc: Ranks to start.
        out: Folder of the records.
        resume: Whether to go on with the run that is there.
        dry_run: Whether only to say what would be measured.
        as_json: Whether to print JSON.
        ab: Two kernels that take turns.
        recommended: How many recommended choices to measure; None to measure every kernel.
    """

    subject: str
    selection: Selection
    described: Described
    limits: Limits
    device: str | None
    nproc: int | None
    out: Path | None
    resume: bool
    dry_run: bool
    as_json: bool
    ab: tuple[str, str] | None
    recommended: int | None = None
