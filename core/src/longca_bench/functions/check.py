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
from longca_bench.functions.calling import Callee, Here, LateError, Way, called, read_function
from longca_bench.functions.mask_sets import Labelled, masks_for
from longca_bench.functions.mistakes import Mistake, explain
from longca_bench.functions.oracle import Asked, right
from longca_bench.functions.ranks import Placing, Ranks, tokens_of_ranks
from longca_bench.functions.shapes import Shape
from longca_bench.verification.findings import Finding, check_values
from longca_bench.verification.inputs import draw_inputs

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
    """

    name: str
    dtype: DType
    masks: tuple[MaskCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether the function is right on all masks."""
        return all(each.passed for each in self.masks)

    @property
    def failures(self) -> tuple[MaskCheck, ...]:
        """The masks on which it is wrong."""
        return tuple(each for each in self.masks if not each.passed)

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
    a tuple that begins with it. It is called on contiguous tensors and on strided ones. Under context parallelism every
    rank calls this function, and the user's function gets the rank's own tokens.

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
    here = Here(read, None if ranks is None else ranks.group)
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
    size = 0 if ranks is None else ranks.size
    labelled: Sequence[Labelled] = (
        [(mask.label, mask)]
        if isinstance(mask, Mask)
        else masks_for(callee.name, callee.asks, mask, heads, square=equal_lengths or rotary is not None, ranks=size)
    )
    checks = list[MaskCheck]()
    for label, each in labelled:
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
        tokens = () if ranks is None else tokens_of_ranks(placement or "contiguous", problem, size)
        way = Way(Shape(shape), ranks=ranks, tokens=tokens)  # type: ignore[call-arg]  # a member by its name
        to_explain = sum(not made.passed for made in checks) < _MOST_EXPLAINED
        checks.append(_on_mask(callee, label, problem, way, rotary, seed, to_explain))
    found = FunctionCheck(callee.name, dtype, tuple(checks))
    return found if ranks is None else ranks.share(found)


def _on_mask(
    callee: Callee, label: str, problem: Problem, way: Way, rotary: float | None, seed: int, to_explain: bool
) -> MaskCheck:
    """Verifies the function on contiguous tensors, and if these are right on strided ones."""
    batch = _BATCH if way.shape.is_batched else 1
    sequences = [Asked.of(problem, draw_inputs(problem, seed * _BATCH + at), rotary, way.tokens) for at in range(batch)]
    for strided in (False, True):
        here = f"{label}, strided" if strided else label
        try:
            results = called(callee, problem, [asked.inputs for asked in sequences], replace(way, strided=strided))
        except VerificationError as error:
            if way.ranks is not None:
                raise VerificationError(f"rank {way.ranks.rank}: {error}") from error
            if isinstance(error, LateError):
                raise
            return MaskCheck(here, error=str(error), mistakes={Mistake.STRIDES: str(error)} if strided else {})
        found = _compared(here, sequences, results, strided=strided, to_explain=to_explain)
        if not (found.passed if way.ranks is None else way.ranks.share(found.passed)):
            return found
    return replace(found, label=label)


def _compared(
    label: str, sequences: list[Asked], results: list[dict[str, Tensor]], *, strided: bool, to_explain: bool
) -> MaskCheck:
    """The findings of all sequences. Ranks other than the first have no results and no findings."""
    findings, wrong, wrong_out = list[Finding](), list[int](), list[int]()
    for at, (asked, result) in enumerate(zip(sequences, results, strict=False)):
        verified = check_values(result, right(asked))
        findings += verified.findings
        wrong += [] if verified.passed else [at]
        wrong_out += [] if verified.findings[0].passed else [at]
    mistakes: dict[Mistake, str] = {}
    if wrong and strided:
        mistakes = {Mistake.STRIDES: ""}
    elif 0 < len(mixed := wrong_out or wrong) < len(results):
        mistakes = {Mistake.BATCH: f"sequence {mixed[0]} is wrong"}
    elif wrong and to_explain:
        mistakes = explain(sequences[wrong[0]], results[wrong[0]])
    return MaskCheck(label, tuple(findings), "", mistakes, bool(wrong) and to_explain)
