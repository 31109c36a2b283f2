"""The options of `longca run`, and the filters, settings and suite that they make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longca.errors import RequestError, UnknownNameError
from longca.limits import MAX_GIB, MAX_SECONDS
from longca_bench.cli.mask_options import PANEL, MaskOptions
from longca_bench.cli.options import AsJson, NoPlugin, chosen_directions, flag
from longca_bench.measuring.options import DEADLINE, Options

if TYPE_CHECKING:
    from longca_bench.suites.cases import Selection
    from longca_bench.suites.suite import Suite

__all__ = ["RunOptions", "chosen_suite"]

#: Options of which a run takes one.
_EXCLUSIVE = (
    ("recommended", "ab"),
    ("recommended", "pairs"),
    ("recommended", "unverified"),
    ("recommended", "function"),
    ("ab", "pairs"),
    ("ab", "kernel"),
    ("function", "nproc"),
    ("function", "strategy"),
)


@dataclass(frozen=True)
class RunOptions:
    """The options of `longca run` beside those of a mask. A new option is one more field."""

    kernel: Annotated[list[str] | None, typer.Option(help="Only this kernel. Repeatable. (default: all)")] = None
    mask: Annotated[list[str] | None, typer.Option(help="Only this mask pattern of the suite. Repeatable.")] = None
    seqlen: Annotated[
        list[int] | None, typer.Option(help="Only this length, also one that the suite lacks. Repeatable.")
    ] = None
    heads: Annotated[
        list[str] | None, typer.Option(help="Only these heads. Repeatable. (default: the suite's; for a pattern 32:8)")
    ] = None
    seed: Annotated[
        list[int] | None, typer.Option(help="Only this seed. Repeatable. (default: the suite's; for a pattern 0)")
    ] = None
    direction: Annotated[str | None, typer.Option(help="Only this direction, forward or backward.")] = None
    strategy: Annotated[list[str] | None, typer.Option(help="Only this strategy. Repeatable.")] = None
    placement: Annotated[
        list[str] | None, typer.Option(help="Only this placement, also one that the suite lacks. Repeatable.")
    ] = None
    nproc: Annotated[
        int | None, typer.Option(help="Number of ranks to start on this host. They share each case.", min=1, max=4096)
    ] = None
    head_dim: Annotated[
        list[int] | None,
        typer.Option(help="Head dimension of a pattern's problem. Repeatable. (default: 128)", rich_help_panel=PANEL),
    ] = None
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="Dtype of a pattern's problem. Repeatable. (default: bfloat16)", rich_help_panel=PANEL),
    ] = None
    device: Annotated[str | None, typer.Option(help="cpu or cuda. (default: cuda if there is one)")] = None
    out: Annotated[Path | None, typer.Option(help="Folder for the records. (default: runs/SUITE-TIME)")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False
    timeout: Annotated[float, typer.Option(help="Seconds that a case may take.", min=0.001, max=MAX_SECONDS)] = DEADLINE
    wait_idle: Annotated[
        float,
        typer.Option(help="Seconds that a case may wait for a quiet machine, or be repeated.", min=0, max=MAX_SECONDS),
    ] = 0.0
    memory: Annotated[
        float | None, typer.Option(help="GiB of address space for each worker.", min=0.1, max=MAX_GIB)
    ] = None
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast/--keep-going", help="Skip all later cases after the first failure.")
    ] = False
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Measure all valid pairs of the kernels too, in direction backward.")
    ] = False
    ab: Annotated[
        tuple[str, str] | None, typer.Option("--ab", metavar="A B", help="Let two kernels take turns on each case.")
    ] = None
    recommended: Annotated[
        int | None,
        typer.Option(metavar="[N]", help="Measure only the N choices that are predicted fastest. (N: 3)", min=1),
    ] = None
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Measure offers too that nobody verified on this device.")
    ] = False
    function: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="Measure this function of q, k and v too.")
    ] = None
    shape: Annotated[
        str, typer.Option(metavar="SHAPE", help="The shape of the function's tensors: thd, bhsd or bshd.")
    ] = "thd"
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cases without measuring.")] = False
    as_json: AsJson = False
    no_plugin: NoPlugin = None

    def check(self) -> None:
        """Checks the options against each other."""
        from longca.manifests.offers import check_dtype

        for pair in _EXCLUSIVE:
            if all(getattr(self, name) not in (None, False) for name in pair):
                raise RequestError(f"--{pair[0]} and --{pair[1]} do not go together; leave out one of them")
        if self.ab is not None and self.ab[0] == self.ab[1]:
            raise RequestError(f"--ab {' '.join(self.ab)} compares a kernel with itself; name two kernels")
        for dtype in self.dtype or ():
            check_dtype(dtype)

    def selection(self) -> Selection:
        """The filters of a suite. The function of --function becomes a kernel of this process."""
        from longca_bench.suites.cases import Selection

        return Selection(
            kernels=self._kernels(),
            patterns=tuple(self.mask or ()),
            seqlens=tuple(self.seqlen or ()),
            directions=chosen_directions(self.direction),
            heads=tuple(self.heads or ()),
            seeds=tuple(self.seed or ()),
            strategies=tuple(self.strategy or ()),
            placements=tuple(self.placement or ()),
            pairs=self.pairs,
        )

    def _kernels(self) -> tuple[str, ...]:
        """The kernels to measure. Empty for all kernels."""
        names = self.ab or tuple(self.kernel or ())
        if self.function is None:
            return names
        from longca_bench.functions.function_plugin import install

        name = install(self.function, self.shape)
        typer.echo(f"{self.function} is the kernel {name}", err=True)
        return tuple(dict.fromkeys((*names, name))) if self.kernel else names

    def settings(self, disabled: frozenset[str], workers: int) -> Options:
        """The settings of the runner."""
        return Options(
            deadline=self.timeout,
            memory=None if self.memory is None else int(self.memory * 2**30),
            fail_fast=self.fail_fast,
            disabled=disabled,
            workers=workers,
            interleave=self.ab is not None,
            wait_idle=self.wait_idle,
        )


def chosen_suite(
    name: str, options: RunOptions, described: MaskOptions, selection: Selection, ranks: int | None
) -> tuple[Suite, Selection]:
    """The suite to measure, and its filters. A suite goes before a pattern of the same name."""
    from longca.masks import get_pattern
    from longca_bench.suites.cases import Selection
    from longca_bench.suites.suite import builtin_suites, load_suite

    suites = builtin_suites()
    if name in suites or Path(name).suffix == ".toml":
        about = {"recommended": options.recommended, "head_dim": options.head_dim, "dtype": options.dtype}
        if given := [flag(key) for key, value in {**described.given, **about}.items() if value]:
            raise RequestError(
                f"{name} is a suite, and {', '.join(given)} describe one problem; leave that out, or give a mask "
                "pattern, such as causal_document, instead of the suite"
            )
        return load_suite(name), selection
    try:
        name = get_pattern(name).name
    except UnknownNameError as error:
        raise RequestError(
            f"unknown suite or mask pattern {error.name!r}. Suites: {', '.join(suites)}, or the path of a .toml file. "
            f"Mask patterns: {', '.join(error.known)}"
        ) from None
    if selection.patterns:
        raise RequestError(f"--mask picks masks of a suite, and {name} is a mask pattern itself; leave out --mask")
    if ranks is None and (names := [option for option, values in selection.parallel.items() if values]):
        raise RequestError(
            f"{' and '.join(names)}: strategies need several ranks; give --nproc, or start longca run under torchrun"
        )
    return _suite_of_pattern(name, options, described, selection, ranks), Selection()


def _suite_of_pattern(
    name: str, options: RunOptions, described: MaskOptions, selection: Selection, ranks: int | None
) -> Suite:
    from longca_bench.suites.one_problem import problem_suite

    described.check_lengths(name)
    factors = described.factors()
    if described.mask_heads is not None:
        factors["heads"] = described.mask_heads
    return problem_suite(
        name,
        seqlens=[described.tokens(seqlen, name) for seqlen in selection.seqlens or (None,)],
        factors=factors,
        heads=selection.heads,
        head_dims=options.head_dim,
        dtypes=options.dtype,
        directions=selection.directions,
        kernels=selection.kernels,
        pairs=selection.pairs,
        lengths=described.lengths,
        seeds=selection.seeds,
        strategies=selection.strategies or (("*",) if ranks is not None else ()),
        placements=selection.placements,
    )
