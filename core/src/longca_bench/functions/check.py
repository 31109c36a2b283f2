"""Verifying a user's function: its results on each mask, by their worst rows, and the mistake that explains them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch.distributed as dist
from torch import Tensor

from longca.errors import RequestError, VerificationError
from longca.manifests import Device, Problem
from longca.manifests.devices import current_device
from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.masks import Mask
from longca_bench.conformance.problems import OUTLIERS_EACH
from longca_bench.functions.calling import Callee, Here, LateError, Way, called, read_function
from longca_bench.functions.mask_sets import Labelled, another, masks_for
from longca_bench.functions.mistakes import Mistake, explain
from longca_bench.functions.oracle import Asked, right
from longca_bench.functions.ranks import Placing, Ranks, tokens_of_ranks
from longca_bench.functions.shapes import Shape
from longca_bench.verification.findings import PRODUCTS, RANGE_OF_FLOAT32, Finding, Verification, check_values
from longca_bench.verification.inputs import BEYOND_FLOAT16, WITHIN_FLOAT16, draw_inputs

__all__ = ["FunctionCheck", "MaskCheck", "check", "examine"]

#: Sequences of a batch.
_BATCH = 2
#: Wrong masks for which mistakes are looked for.
_MOST_EXPLAINED = 8


@dataclass(frozen=True)
class MaskCheck:
    """The results on one mask.

    Attributes:
        label: The mask, and the way of the call if it is not the plain one.
        findings: The worst row of each result, of all sequences.
        error: The reason why there are no results, or an empty text.
        mistakes: The mistakes that explain wrong results, each with details.
        was_explained: Whether mistakes were looked for.
    """

    label: str
    findings: tuple[Finding, ...] = ()
    error: str = ""
    mistakes: dict[Mistake, str] = field(default_factory=dict)
    was_explained: bool = False

    @property
    def passed(self) -> bool:
        """Whether all results are right."""
        return not self.error and all(finding.passed for finding in self.findings)

    @property
    def worst(self) -> Finding | None:
        """The finding that is nearest to its limit, or furthest beyond it."""
        return max(self.findings, key=lambda finding: finding.closeness, default=None)


@dataclass(frozen=True)
class FunctionCheck:
    """The results of a function on all masks.

    Attributes:
        name: The function's name.
        dtype: Data type of q, k and v.
        masks: The results on each mask.
        groups: The groups of ranks that were tried.
    """

    name: str
    dtype: DType
    masks: tuple[MaskCheck, ...]
    groups: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the function is right on all masks."""
        return all(each.passed for each in self.masks)

    @property
    def failures(self) -> tuple[MaskCheck, ...]:
        """The masks on which it is wrong."""
        return tuple(each for each in self.masks if not each.passed)

    @property
    def limits(self) -> tuple[str, ...]:
        """The limits within which it is right."""
        return tuple(dict.fromkeys(limit for each in self.masks for limit in Verification(each.findings).limits))

    @property
    def mistakes(self) -> dict[Mistake, tuple[MaskCheck, ...]]:
        """The fewest mistakes that explain the wrong masks, each with the masks that it explains."""
        left, found = list(self.failures), dict[Mistake, tuple[MaskCheck, ...]]()
        while left:
            explained = {mistake: tuple(each for each in left if mistake in each.mistakes) for mistake in Mistake}
            best = max(Mistake, key=lambda mistake: len(explained[mistake]))
            if not explained[best]:
                break
            found[best] = explained[best]
            left = [each for each in left if each not in explained[best]]
        return found

    @property
    def sentences(self) -> list[str]:
        """What is wrong, in a sentence for each mistake, and the worst rows of masks without a known mistake."""
        said = []
        for mistake, masks in self.mistakes.items():
            detail = masks[0].mistakes[mistake]
            said.append(f"{mistake.says}{f' ({detail})' if detail else ''}. Shown by {_listed(masks)}.")
        known = [each for masks in self.mistakes.values() for each in masks]
        unknown = [each for each in self.failures if each.was_explained and each not in known]
        if unknown:
            said.append(f"No known mistake gives the results on {_listed(unknown)}.")
        for error in dict.fromkeys(each.error for each in self.failures if each.error and each not in known):
            masks = tuple(each for each in self.failures if each.error == error)
            said.append(f"{error.rstrip('.')}. Shown by {_listed(masks)}.")
        return said


def _listed(masks: Sequence[MaskCheck]) -> str:
    more = f" and {len(masks) - 1} more" if len(masks) > 1 else ""
    return f"{masks[0].label}{more}"


def check(
    function: Callable[..., Any],
    mask: Mask | str | None = None,
    *,
    shape: Shape | str = Shape.THD,
    direction: Direction | str = Direction.BACKWARD,
    dtype: DType = "float32",
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    device: Device | None = None,
    softmax_scale: float | None = None,
    rotary: float | None = None,
    placement: Placing | None = None,
    group: dist.ProcessGroup | None = None,
    equal_lengths: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> FunctionCheck:
    """Compares an attention function with float64 attention: its output and each gradient, by their worst rows.

    The function gets q, k and v, and each parameter of `Argument` that it asks for by name. It returns the output, or
    a tuple that begins with it. It is called on contiguous tensors and on strided ones. If it is right, two masks of
    the same lengths come in turns, inputs have outliers, and each half of four ranks or more is a group. Under context
    parallelism every rank calls this function, and the user's function gets the rank's own tokens.

    Args:
        function: The function.
        mask: One mask, or a pattern's name for the masks of conformance of this pattern. None for all masks of
            conformance that the function's parameters can describe.
        shape: The shape of q, k, v and the output: `thd`, `bhsd` or `bshd`.
        direction: `forward`, or `backward` for both.
        dtype: Data type of q, k and v.
        heads: Query heads and KV heads.
        head_dim: Head dimension.
        device: The device. None takes this machine's GPU, or the CPU without a GPU.
        softmax_scale: Factor on the scores. None for 1/√head_dim.
        rotary: Base of the rotary positions that the function applies to q and k by itself. None for no positions.
        placement: The tokens of each rank, by a placement's name or a function. None runs on one device.
        group: The process group of the ranks. None for all processes.
        equal_lengths: Whether to take only masks with as many queries as keys.
        seed: Seed of the inputs.
        name: The function's name in messages. None for its own.

    Returns:
        The findings on each mask, all within their limits.

    Raises:
        VerificationError: A result is beyond its limit, or the function raises. The message names the mistake.
        RequestError: The function or an argument does not fit. The message has the remedy.
    """
    described = {"dtype": dtype, "heads": heads, "head_dim": head_dim, "softmax_scale": softmax_scale}
    asked = {"shape": shape, "direction": direction, "rotary": rotary, "equal_lengths": equal_lengths, "seed": seed}
    read, ranks = read_function(function, name), None if placement is None else Ranks.of(group)
    here = Here(read, ranks)
    found = examine(here, mask, device or current_device(), ranks=ranks, placement=placement, **described, **asked)  # type: ignore[arg-type]
    if not found.passed:
        worst = next((str(each.worst) for each in found.failures if each.worst is not None), "")
        said = " ".join([*found.sentences, f"Worst row: {worst}." if worst else ""]).strip()
        raise VerificationError(f"{found.name} is wrong on {len(found.failures)} of {len(found.masks)} masks: {said}")
    return found


def examine(
    callee: Callee,
    mask: Mask | str | None,
    device: Device,
    *,
    shape: Shape | str,
    direction: Direction | str,
    dtype: DType,
    heads: tuple[int, int],
    head_dim: int,
    softmax_scale: float | None,
    rotary: float | None,
    equal_lengths: bool,
    seed: int,
    ranks: Ranks | None = None,
    placement: Placing | None = None,
) -> FunctionCheck:
    """Verifies a function on all its masks. The arguments are those of `check`.

    Args:
        callee: The function.
        mask: One mask, a pattern, or None.
        device: The device.
        ranks: The ranks, or None on one device.
        shape: See `check`, like all arguments that follow.

    Raises:
        VerificationError: It raises on a rank, or gives no answer in time.
        RequestError: An argument does not fit.
    """
    if shape not in tuple(Shape):
        raise RequestError(f"the shape is {shape!r}; give {', '.join(Shape)}")
    if rotary is not None and (head_dim % 2 or not 1 < rotary < math.inf):
        raise RequestError(
            f"rotary positions have the base {rotary} and {head_dim} dims; give a finite base above 1, "
            "and an even head dim"
        )

    def masks(size: int) -> list[Labelled]:
        if isinstance(mask, Mask):
            return [(mask.label, mask)]
        square = equal_lengths or rotary is not None
        return masks_for(callee.name, callee.asks, mask, heads, square=square, ranks=size)

    def on(label: str, each: Mask, group: Ranks | None = ranks, **about: Any) -> MaskCheck:
        problem = Problem(
            mask=each,
            heads_q=heads[0],
            heads_kv=heads[1],
            head_dim=head_dim,
            dtype=dtype,
            device=device,
            direction=Direction(direction),
            softmax_scale=softmax_scale,
        )
        tokens = () if group is None else tokens_of_ranks(placement or "contiguous", problem, group.size)
        way = Way(Shape(shape), ranks=group, tokens=tokens)  # type: ignore[call-arg]  # a member by its name
        return _on_mask(callee, label, problem, way, rotary, seed, **about)

    def passed() -> bool:
        own = all(made.passed for made in checks)
        return own if ranks is None else bool(ranks.share(own))

    checks = list[MaskCheck]()
    labelled = masks(0 if ranks is None else ranks.size)
    for label, each in labelled:
        to_explain = sum(not made.passed for made in checks) < _MOST_EXPLAINED
        checks.append(on(label, each, to_explain=to_explain))
    if passed() and not isinstance(mask, Mask):  # a function for one mask may know its factors
        for label, each in labelled:
            if (other := another(each)) is not None:
                checks.append(on(f"another {label}", other, mistake=Mistake.KEPT_MASK))
                checks.append(on(f"{label} again", each, mistake=Mistake.KEPT_MASK))
    for label, each in labelled[::OUTLIERS_EACH] if passed() else ():
        checks.append(_with_outliers(on, f"{label}, outliers", each, dtype, ranks))
    groups = [] if ranks is None else [str(ranks)]
    if ranks is not None and (half := ranks.half) is not None and passed():
        groups += dict.fromkeys(ranks.joined([str(half)], str))
        own = [on(f"{label} on {half}", each, half, mistake=Mistake.GROUP) for label, each in masks(half.size)]
        checks += ranks.joined(own if half.rank == 0 else [], MaskCheck)
    found = FunctionCheck(callee.name, dtype, tuple(checks), tuple(groups))
    return found if ranks is None else ranks.share(found)


def _with_outliers(
    on: Callable[..., MaskCheck], label: str, mask: Mask, dtype: DType, ranks: Ranks | None
) -> MaskCheck:
    """Verifies the function on inputs with outliers. See `longca_bench.conformance.oracle.verify_outliers`."""
    is_half = dtype == "float16"
    found = on(label, mask, mistake=Mistake.RANGE, outliers=WITHIN_FLOAT16 if is_half else BEYOND_FLOAT16)
    if not is_half or not (found.passed if ranks is None else ranks.share(found.passed)):
        return found
    beyond = on(label, mask, mistake=Mistake.RANGE, outliers=BEYOND_FLOAT16, like=RANGE_OF_FLOAT32)
    return found if beyond.passed else replace(found, findings=(*found.findings, PRODUCTS))


def _on_mask(
    callee: Callee,
    label: str,
    problem: Problem,
    way: Way,
    rotary: float | None,
    seed: int,
    *,
    mistake: Mistake | None = None,
    to_explain: bool = False,
    outliers: float = 0.0,
    like: DType | None = None,
) -> MaskCheck:
    """Verifies the function on contiguous tensors, and if these are right on strided ones.

    Args:
        callee: The function.
        label: The mask's label.
        problem: The problem.
        way: How the function is called.
        rotary: The base of rotary positions, or None.
        seed: Seed of the inputs.
        mistake: The mistake of a function that is wrong here, and was right on this mask. It gets no strided tensors.
        to_explain: Whether mistakes are looked for.
        outliers: See `draw_inputs`.
        like: The dtype whose arithmetic sets the limits. None for that of the inputs.
    """
    batch = _BATCH if way.shape.is_batched else 1
    sequences = []
    for at in range(batch):
        asked = Asked.of(problem, draw_inputs(problem, seed * _BATCH + at, outliers), rotary, way.tokens)
        sequences.append(asked.turned_before() if outliers else asked)
    expected = [replace(asked, problem=replace(problem, dtype=like or problem.dtype)) for asked in sequences]
    for strided in (False,) if mistake else (False, True):
        here = f"{label}, strided" if strided else label
        fault = Mistake.STRIDES if strided else mistake
        try:
            results = called(callee, problem, [asked.inputs for asked in sequences], replace(way, strided=strided))
        except VerificationError as error:
            if way.ranks is not None:
                where = f" of a group of {way.ranks}" if way.ranks.is_half else ""
                raise VerificationError(f"rank {way.ranks.rank}{where}: {error}") from error
            if isinstance(error, LateError):
                raise
            return MaskCheck(here, error=str(error), mistakes={fault: str(error)} if fault else {})
        found = _compared(here, expected, results, fault, to_explain=to_explain)
        if not (found.passed if way.ranks is None else way.ranks.share(found.passed)):
            return found
    return replace(found, label=label)


def _compared(
    label: str, sequences: list[Asked], results: list[dict[str, Tensor]], fault: Mistake | None, *, to_explain: bool
) -> MaskCheck:
    """The findings of all sequences. Ranks other than the first have no results and no findings."""
    findings, wrong, wrong_out = list[Finding](), list[int](), list[int]()
    for at, (asked, result) in enumerate(zip(sequences, results, strict=False)):
        verified = check_values(result, right(asked))
        findings += verified.findings
        wrong += [] if verified.passed else [at]
        wrong_out += [] if verified.findings[0].passed else [at]
    mistakes: dict[Mistake, str] = {}
    if wrong and fault:
        mistakes = {fault: ""}
    elif 0 < len(mixed := wrong_out or wrong) < len(results):
        mistakes = {Mistake.BATCH: f"sequence {mixed[0]} is wrong"}
    elif wrong and to_explain:
        mistakes = explain(sequences[wrong[0]], results[wrong[0]])
    return MaskCheck(label, tuple(findings), "", mistakes, bool(wrong) and to_explain)
