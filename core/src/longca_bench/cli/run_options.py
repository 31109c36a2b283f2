"""The options of `longca run`, and the filters, settings and suite that they make."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from longca.errors import RequestError, UnknownNameError
from longca.parsing import parse_heads, parse_seconds, parse_tokens
from longca_bench.cli import options
from longca_bench.cli.mask_options import MaskOptions
from longca_bench.cli.options import chosen_directions, flag, option
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
    ("function", "gpus"),
    ("function", "strategy"),
)


_case = partial(option, rich_help_panel="Cases. All but --direction, --softcap and --sinks are repeatable")
_rank = partial(option, rich_help_panel="Several GPUs, or ranks on a CPU")
_how = partial(option, rich_help_panel="Ways to measure")
_Names: TypeAlias = list[str] | None
_Numbers: TypeAlias = list[int] | None


@dataclass(frozen=True)
class RunOptions:
    """The options of `longca run` beside those of a mask. A new option is one more field."""

    kernel: Annotated[_Names, _case("Only this kernel or pair. (default: all)", complete=options.kernels)] = None
    mask: Annotated[_Names, _case("Only this mask pattern of the suite.", complete=options.masks)] = None
    seqlen: Annotated[_Numbers, _case("Only this length, or one that the suite lacks.", "N", read=parse_tokens)] = None
    heads: Annotated[_Names, _case("Only these heads. (default: the suite's; for a pattern 32:8)", "HQ:HKV")] = None
    head_dim: Annotated[_Names, _case("Head dim of a pattern's problem, such as 192:128. (default: 128)", "N")] = None
    dtype: Annotated[_Names, _case("Dtype of a pattern's problem, such as fp16. (default: bfloat16)", "NAME")] = None
    direction: Annotated[
        str | None, _case("Only forward, only backward, or training for both. (default: the suite's)", "NAME")
    ] = None
    softcap: Annotated[float | None, _case("Bound on a pattern's scores, as 50 in Gemma 2.", "C")] = None
    sinks: Annotated[bool, _case("Give the heads of a pattern's problem sinks.", None, "--sinks")] = False
    seed: Annotated[_Numbers, _case("Only this seed. (default: the suite's; for a pattern 0)", "N")] = None
    gpus: Annotated[
        int | None, _rank("Number of GPUs, or of ranks on a CPU, that share each case.", "N", min=1, max=4096)
    ] = None
    strategy: Annotated[_Names, _rank("Only this strategy. Repeatable.", complete=options.strategies)] = None
    placement: Annotated[_Names, _rank("Only this placement, or one that the suite lacks. Repeatable.", "NAME")] = None
    pairs: Annotated[bool, _how("Measure all valid pairs of the kernels too, backward.", None, "--pairs")] = False
    ab: Annotated[tuple[str, str] | None, _how("Let two kernels take turns on each case.", "A B", "--ab")] = None
    recommended: Annotated[
        int | None, _how("Measure only the N choices that are predicted fastest. (N: 3)", "[N]", min=1)
    ] = None
    unverified: Annotated[
        bool, _how("Measure offers too that nobody verified on this device.", None, "--unverified")
    ] = False
    function: Annotated[str | None, _how("Measure this function of q, k and v too.", "MODULE:FUNCTION")] = None
    shape: Annotated[str, _how("The shape of the function's tensors: thd, bhsd or bshd.", "SHAPE")] = "thd"
    device: options.DeviceName = None
    out: Annotated[Path | None, option("Folder for the records. (default: runs/SUITE-TIME)", "FOLDER")] = None
    resume: Annotated[bool, option("Continue the run in --out.", None, "--resume")] = False
    timeout: options.Timeout = DEADLINE
    wait_idle: Annotated[
        float, option("Seconds that a case may wait for a quiet machine, or be repeated.", "TIME", read=parse_seconds)
    ] = 0.0
    dry_run: Annotated[bool, option("Print the cases without measuring.", None, "--dry-run")] = False
    as_json: options.AsJson = False
    no_plugin: options.NoPlugin = None

    def check(self) -> None:
        """Checks the options against each other."""
        for pair in _EXCLUSIVE:
            if all(getattr(self, name) not in (None, False) for name in pair):
                raise RequestError(f"--{pair[0]} and --{pair[1]} do not go together; leave out one of them")
        if self.ab is not None and self.ab[0] == self.ab[1]:
            raise RequestError(f"--ab {' '.join(self.ab)} compares a kernel with itself; name two kernels")

    def selection(self) -> Selection:
        """The filters of a suite. The function of --function becomes a kernel of this process."""
        from longca_bench.suites.cases import Selection

        return Selection(
            kernels=self._kernels(),
            patterns=tuple(self.mask or ()),
            seqlens=tuple(self.seqlen or ()),
            directions=chosen_directions(self.direction),
            heads=tuple("{}:{}".format(*parse_heads(text)) for text in self.heads or ()),
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

    def settings(self, suite: Suite, workers: int) -> Options:
        """The settings of the runner."""
        return Options(
            deadline=self.timeout,
            memory=suite.memory,
            fail_fast=suite.fail_fast,
            workers=workers,
            interleave=self.ab is not None,
            wait_idle=self.wait_idle,
        )


def chosen_suite(
    name: str, asked: RunOptions, described: MaskOptions, selection: Selection, ranks: int | None
) -> tuple[Suite, Selection]:
    """The suite to measure, and its filters. A suite goes before a pattern of the same name."""
    from longca.masks import PATTERNS, get_pattern
    from longca_bench.suites.cases import Selection
    from longca_bench.suites.suite import builtin_suites, load_suite

    suites = builtin_suites()
    if name in suites or Path(name).suffix == ".toml":
        about = {name: getattr(asked, name) for name in ("recommended", "head_dim", "dtype", "softcap", "sinks")}
        if given := [
            flag(key) for key, value in {**described.given, **about}.items() if value or isinstance(value, float)
        ]:
            raise RequestError(
                f"{name} is a suite, which takes no {', '.join(given)}; give a mask pattern, such as causal_document, "
                "instead of the suite"
            )
        return load_suite(name), selection
    try:
        name = get_pattern(name).name
    except UnknownNameError as error:
        raise RequestError(
            f"unknown suite or mask pattern {error.name!r}. Suites: {', '.join(suites)}, or the path of a .toml file. "
            f"Mask patterns: {', '.join(PATTERNS)}"
        ) from None
    if selection.patterns:
        raise RequestError(f"--mask picks masks of a suite, and {name} is a mask pattern itself; leave out --mask")
    if ranks is None and (names := [option for option, values in selection.parallel.items() if values]):
        raise RequestError(
            f"{' and '.join(names)}: strategies need several ranks; give --gpus, or start longca run under torchrun"
        )
    return _suite_of_pattern(name, asked, described, selection, ranks), Selection()


def _suite_of_pattern(
    name: str, asked: RunOptions, described: MaskOptions, selection: Selection, ranks: int | None
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
        head_dims=asked.head_dim,
        dtypes=asked.dtype,
        softcap=asked.softcap,
        directions=selection.directions,
        sinks=asked.sinks,
        kernels=selection.kernels,
        pairs=selection.pairs,
        lengths=described.lengths,
        seeds=selection.seeds,
        strategies=selection.strategies or (("*",) if ranks is not None else ()),
        placements=selection.placements,
    )
