"""The request that `longca run` gets from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from longca_bench.cli.mask_options import MaskOptions
    from longca_bench.measuring.options import Options
    from longca_bench.suites.cases import Selection

__all__ = ["Described", "Request"]


@dataclass(frozen=True)
class Described:
    """Options that describe one problem. No suite takes them.

    Attributes:
        mask: The options of a mask.
        head_dims: Head dimensions.
        dtypes: Data types.
    """

    mask: MaskOptions
    head_dims: tuple[int, ...]
    dtypes: tuple[str, ...]

    @property
    def options(self) -> list[str]:
        """The given options, as a user writes them."""
        given = {**self.mask.given, "head_dim": self.head_dims, "dtype": self.dtypes}
        return [f"--{name.replace('_', '-')}" for name, value in given.items() if value != ()]


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
        unverified: Whether offers run that nobody verified on the device.
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
    unverified: bool = False
