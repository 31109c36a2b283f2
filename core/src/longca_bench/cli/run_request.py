"""The request of `longca run`: its options, the kernels that they choose, and the suite to measure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from longca.errors import RequestError

if TYPE_CHECKING:
    from longca_bench.cli.mask_options import MaskOptions
    from longca_bench.measuring.options import Options
    from longca_bench.suites.cases import Selection
    from longca_bench.suites.suite import Suite

__all__ = ["ChosenKernels", "Described", "Request", "chosen_suite"]


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


@dataclass(frozen=True)
class ChosenKernels:
    """The options of `longca run` that choose kernels.

    Attributes:
        named: The kernels of --kernel. Empty for all kernels.
        ab: Two kernels that take turns.
        recommended: Number of recommended choices to measure.
        pairs: Whether pairs of the kernels are measured too.
        unverified: Whether offers run that nobody verified on the device.
    """

    named: tuple[str, ...]
    ab: tuple[str, str] | None
    recommended: int | None
    pairs: bool
    unverified: bool

    def names(self, function: tuple[str, str] | None, *, alone: bool) -> tuple[str, ...]:
        """The kernels to measure. Empty for all kernels.

        Args:
            function: The text and the shape of --function, which becomes a kernel of this run.
            alone: Whether the run is without ranks.

        Raises:
            RequestError: The options contradict each other, or there is no such function.
        """
        self._check()
        names = self.ab or self.named
        if function is None:
            return names
        if self.recommended is not None:
            raise RequestError(
                "--recommended chooses among the kernels of plugins; leave out --function, or name the kernels to "
                "measure beside it with --kernel"
            )
        mine = _install(*function, alone=alone)
        return tuple(dict.fromkeys((*names, mine))) if self.named else names

    def _check(self) -> None:
        chooses = "--recommended chooses" if self.recommended is not None else "--ab names"
        if self.recommended is not None and self.ab is not None:
            raise RequestError("--recommended chooses the kernels, and --ab names them; leave out one of them")
        if self.recommended is not None and self.unverified:
            raise RequestError("--recommended chooses among verified kernels; leave out --unverified")
        if self.pairs and (self.recommended is not None or self.ab is not None):
            raise RequestError(f"{chooses} the kernels, and --pairs adds pairs to them; leave out one of them")
        if self.ab is not None and self.named:
            raise RequestError("--ab names the kernels; leave out --kernel, or --ab")
        if self.ab is not None and self.ab[0] == self.ab[1]:
            raise RequestError(f"--ab {' '.join(self.ab)} compares a kernel with itself; name two kernels")


def _install(text: str, shape: str, *, alone: bool) -> str:
    """Makes a function a kernel of this run, and returns the kernel's name."""
    if not alone:
        raise RequestError("--function is measured on one device; leave out --nproc and --strategy, or verify it there")
    from longca_bench.functions.function_plugin import install

    name = install(text, shape)
    typer.echo(f"{text} is the kernel {name}", err=True)
    return name


def chosen_suite(wanted: Request, ranks: int | None) -> tuple[Suite, Selection]:
    """The requested suite, and its filters. A suite goes before a pattern of the same name.

    Args:
        wanted: The request of the command line.
        ranks: Ranks of the job, or None without a job.

    Returns:
        The suite and its selection. A suite that was made of a pattern has no filters.

    Raises:
        RequestError: Neither a suite nor a pattern has the name. Or an option does not go with a suite, or with a
            pattern. Or the suite or a value is invalid.
    """
    from longca.masks import PATTERNS
    from longca_bench.suites.cases import Selection
    from longca_bench.suites.suite import builtin_suites, load_suite

    name, suites = wanted.subject, builtin_suites()
    if name in suites or Path(name).suffix == ".toml":
        _check_of_a_suite(name, wanted)
        return load_suite(name), wanted.selection
    if name not in PATTERNS:
        raise RequestError(
            f"unknown suite or mask pattern {name!r}. Suites: {', '.join(suites)}, or the path of a .toml file. "
            f"Mask patterns: {', '.join(PATTERNS)}"
        )
    _check_of_a_pattern(name, wanted.selection, ranks)
    return _suite_of_pattern(name, wanted.selection, wanted.described, ranks), Selection()


def _check_of_a_suite(name: str, wanted: Request) -> None:
    if wanted.recommended is not None:
        raise RequestError(
            f"{name} is a suite, and --recommended is for one problem; leave that out, or give a mask pattern, such as "
            "causal_document, instead of the suite"
        )
    if given := wanted.described.options:
        raise RequestError(
            f"{name} is a suite, which says itself what {', '.join(given)} would; leave that out, or measure one "
            "problem: give a mask pattern, such as causal_document, instead of the suite"
        )


def _check_of_a_pattern(name: str, selection: Selection, ranks: int | None) -> None:
    if selection.patterns:
        raise RequestError(f"--mask picks masks of a suite, and {name} is a mask pattern itself; leave out --mask")
    if ranks is None and (names := [option for option, values in selection.parallel.items() if values]):
        raise RequestError(
            f"{' and '.join(names)}: strategies need several ranks; give --nproc, or start longca run under torchrun"
        )


def _suite_of_pattern(name: str, selection: Selection, described: Described, ranks: int | None) -> Suite:
    from longca_bench.suites.one_problem import problem_suite

    mask = described.mask
    mask.check_lengths(name)
    factors = mask.factors()
    if mask.mask_heads is not None:
        factors["heads"] = mask.mask_heads
    said: dict[str, Any] = {
        "heads": selection.heads,
        "head_dims": described.head_dims,
        "dtypes": described.dtypes,
        "directions": selection.directions,
        "kernels": selection.kernels,
        "pairs": selection.pairs,
        "lengths": mask.lengths,
        "seeds": selection.seeds,
        "strategies": selection.strategies or (("*",) if ranks is not None else ()),
        "placements": selection.placements,
        "transports": selection.transports,
    }
    return problem_suite(
        name,
        seqlens=[mask.tokens(seqlen) for seqlen in selection.seqlens or (None,)],
        factors=factors,
        **{key: value for key, value in said.items() if value},
    )
