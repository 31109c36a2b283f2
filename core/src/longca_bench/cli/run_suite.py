"""The suite of a run: a suite by name, a file, or a suite made of a mask pattern and its options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longca_bench.cli.run_request import Described, Request
    from longca_bench.suites.cases import Selection
    from longca_bench.suites.suite import Suite

__all__ = ["chosen_suite"]


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
    from longca.errors import RequestError
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
    from longca.errors import RequestError

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
    from longca.errors import RequestError

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
