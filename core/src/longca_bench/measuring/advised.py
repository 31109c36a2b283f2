"""Advised runs: one suite of the choices that are recommended for problems, with their predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from longca.errors import RequestError
from longca.manifests.pairs import singles
from longca.manifests.verdict import paragraph
from longca_advice.recommend import recommend
from longca_bench.measuring.outcome import MeasuredChoice, Outcome
from longca_bench.suites.cases import expand
from longca_bench.suites.suite import Suite, Sweep

if TYPE_CHECKING:
    from longca.manifests import Device, Problem
    from longca.plugins import Registry
    from longca_advice.choices import Recommendation, Unmeasured

__all__ = ["advise", "problems", "suite_of_choices", "with_cases"]


def problems(suite: Suite) -> Iterator[Sweep]:
    """The problems of a suite, each a sweep of one mask, shape and dtype. Lengths are for all ranks together."""
    for sweep in suite.sweep:
        for pattern in sweep.patterns:
            sets, shapes = sweep.factor_sets(pattern), (sweep.heads, sweep.head_dims, sweep.dtypes)
            for seqlen, factors, seed, heads, head_dim, dtype in product(sweep.seqlens, sets, sweep.seeds, *shapes):
                about = {"patterns": (pattern,), "seqlens": (seqlen,), "seeds": (seed,), "heads": (heads,)}
                given = {"factors": {pattern: factors} if factors else {}, "grid": {}}
                yield sweep.model_copy(update={**about, **given, "head_dims": (head_dim,), "dtypes": (dtype,)})


def advise(problem: Sweep, device: Device, registry: Registry, *, most: int, ranks: int | None = None) -> Outcome:
    """The first choices of a problem's recommendation that can be measured here, at most so many.

    Measurements of the problem itself are no evidence. Nothing to measure or to recommend is a RequestError.
    """
    if "forward" not in problem.directions:
        raise RequestError(
            "a recommendation is for the forward, or for the forward and the backward; leave out --direction backward"
        )
    if several := [name for name in problem.kernels if singles(name) != (name,)]:
        each = " ".join(f"--kernel {name}" for name in singles(several[0]))
        already = "and pairs of the named kernels are choices already"
        raise RequestError(f"{several[0]} is no single kernel, {already}; give {each}")
    # The problem's last case, for its mask and shape: the backward's, where there is one.
    alone = {"strategies": (), "placements": ("auto",), "meshes": {}, "kernels": ("any",)}
    case = expand(_suite(problem.model_copy(update=alone)), ("any",))[-1]
    found = recommend(
        case.mask,
        heads=(case.heads_q, case.heads_kv),
        head_dim=case.head_dim,
        head_dim_v=case.head_dim_v,
        softcap=case.softcap,
        dtype=case.dtype,
        sinks=case.sinks,
        device=device,
        ranks=ranks or 1,
        per_node=ranks or 1,
        training="backward" in problem.directions,
        kernels=[name for name in problem.kernels if name != "*"],
        strategies=[name for name in problem.strategies if name != "*"],
        plugins=registry,
        unseen=True,
    )
    unmeasured = tuple(_unmeasured(found, problem, case.problem(device), registry))
    outcome = _chosen(replace(found, unmeasured=unmeasured), problem, most)
    return with_cases(problem, outcome, device, registry, ranks)


def with_cases(problem: Sweep, outcome: Outcome, device: Device, registry: Registry, ranks: int | None) -> Outcome:
    """An outcome whose times have the hashes of the cases that measure them."""

    def known(choice: MeasuredChoice) -> MeasuredChoice:
        suite = _suite(_sweep(problem, choice))
        cases = expand(suite, registry.kernels, strategies=registry.strategies, ranks=ranks)
        digests = {str(case.direction): case.digest(str(device)) for case in cases}
        times = {name: time.model_copy(update={"case": digests.get(name)}) for name, time in choice.times.items()}
        return choice.model_copy(update={"times": times})

    return outcome.model_copy(update={"ways": tuple(known(choice) for choice in outcome.ways)})


def suite_of_choices(suite: Suite, outcomes: Sequence[Outcome]) -> Suite:
    """The suite that measures only the choices of the outcomes of a suite's problems, with a sweep for each choice."""
    pairs = zip(problems(suite), outcomes, strict=True)
    return suite.model_copy(
        update={"sweep": tuple(_sweep(problem, choice) for problem, outcome in pairs for choice in outcome.ways)}
    )


def _suite(sweep: Sweep) -> Suite:
    return Suite(name="problem", version=1, sweep=(sweep,))


def _unmeasured(found: Recommendation, problem: Sweep, asked: Problem, registry: Registry) -> Iterator[Unmeasured]:
    """The valid choices without evidence. A strategy without a named kernel gets the first one that takes it."""
    taking = (name for name in registry.kernels if {name, "*"} & set(problem.kernels) and registry.resolve(name, asked))
    first = next(taking, None)
    for one in found.unmeasured:
        if one.strategy is None or one.kernel in registry.kernels:
            yield one
        elif first is not None:
            yield replace(one, kernel=first)


def _chosen(found: Recommendation, problem: Sweep, most: int) -> Outcome:
    """The first choices that are installed, and the names of those before them that are not."""
    any_placement = problem.placements == ("auto",)
    fitting = [choice for choice in found.choices if choice.fits is not False]
    ranked = [choice for choice in fitting if any_placement or choice.placement in problem.placements]
    choices, left_out = list[MeasuredChoice](), dict[str, str]()
    for choice in ranked:
        if choice.lacks:
            left_out[choice.title] = " && ".join(choice.install or choice.lacks)
        else:
            choices.append(MeasuredChoice.of_choice(choice))
        if len(choices) == most:
            break
    if not choices:
        directions = tuple(str(direction) for direction in problem.directions)
        left_out |= {one.kernel: " && ".join(one.install or one.lacks) for one in found.unmeasured if one.lacks}
        choices = [MeasuredChoice.of_unmeasured(one, directions) for one in found.unmeasured if not one.lacks][:most]
    if not choices and left_out:
        said = "; ".join(f"{name}: {how}" for name, how in left_out.items())
        raise RequestError(f"nothing that is recommended is installed here. Install one of them: {said}")
    if not choices:
        reasons = "; ".join(paragraph(refused.reasons) for refused in found.refused)
        said = f"nothing is recommended on {found.device}: {reasons or 'no choice fits'}"
        raise RequestError(f"{said}. See longca recommend")
    return Outcome(
        problem=found.problem,
        device=found.device,
        ranks=found.ranks,
        asked=most,
        ranked=choices[0].times["total"].predicted is not None,
        ways=tuple(choices),
        left_out=left_out,
        notes=found.notes,
    )


def _sweep(problem: Sweep, choice: MeasuredChoice) -> Sweep:
    """The sweep that measures a choice."""
    about: dict[str, Any] = {"kernels": (choice.kernel,)}
    if choice.strategy is not None:
        about["strategies"] = (choice.strategy,)
        about["placements"] = (choice.placement,) if choice.placement else problem.placements[:1]
        about["meshes"] = {choice.strategy: (choice.mesh,)} if choice.mesh else {}
    return problem.model_copy(update=about)
