"""The request that `longca run` gets from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from longca_bench.measuring.options import Options
    from longca_bench.suites.cases import Selection

__all__ = ["Described", "Request"]


@dataclass(frozen=True)
class Described:
    """Options that describe one problem. No suite takes them.

    Attributes:
        factors: The options of a mask, by the names of the parameters of
            `longca_bench.cli.mask_options.mask_factors`.
        mask_heads: Number of heads with masks of their own, or None for one mask for each KV head.
        lengths: The source of document lengths.
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
        """The given options, as a user writes them."""
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
        selection: Options that narrow a suite. A pattern's problem takes their values.
        described: Options that describe the problem of a pattern.
        options: Options of the run.
        device: `cpu`, `cuda`, or None for this machine's device.
        nproc: Number of ranks to start.
        out: Folder of the records.
        resume: Whether to continue the run in the folder.
        dry_run: Whether to print only the plan of the run.
        as_json: Whether to print JSON.
        ab: Two kernels that take turns.
        recommended: Number of recommended choices to measure, or None to measure every kernel.
    """

    subject: str
    selection: Selection
    described: Described
    options: Options
    device: str | None
    nproc: int | None
    out: Path | None
    resume: bool
    dry_run: bool
    as_json: bool
    ab: tuple[str, str] | None
    recommended: int | None = None
