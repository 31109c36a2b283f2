"""Verifying a user's function as a kernel: its results on each mask, by their worst rows, and the known mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
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
from longca_bench.conformance.oracle import on_outliers, verify_inputs
from longca_bench.conformance.problems import OUTLIERS_EACH
from longca_bench.functions.arguments import positions
from longca_bench.functions.function_kernel import FunctionKernel, Shape
from longca_bench.functions.function_masks import masks_for, other_mask
from longca_bench.functions.mistakes import Mistake, wrong_masks
from longca_bench.functions.ranks import Placement, Ranks
from longca_bench.functions.rotary import Rotary
from longca_bench.functions.user_function import UserFunction
from longca_bench.measuring.status import CaseEndError, Status
from longca_bench.verification.findings import Finding, Verification
from longca_bench.verification.inputs import Inputs, draw_inputs
from longca_bench.verification.reference import reference

__all__ = ["BATCH", "Examination", "FunctionCheck", "MaskCheck", "check"]

#: Sequences of a batch.
BATCH = 2
#: Wrong masks for which mistakes are looked for.
_MOST_EXPLAINED = 8


@dataclass(frozen=True)
class MaskCheck:
    """The results on one mask.

    Attributes:
        label: The mask, and how the call differs from the plain one.
        findings: The worst row of each result.
        error: The reason why there are no results, or an empty text.
        mistakes: The mistakes that explain wrong results, each with details.
    """

    label: str
    findings: tuple[Finding, ...] = ()
    error: str = ""
    mistakes: dict[Mistake, str] = field(default_factory=dict)

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
        """What is wrong: a sentence for each mistake and each error, each with the masks that show it."""
        known, sentences = self.mistakes, list[str]()
        for mistake, masks in known.items():
            detail = masks[0].mistakes[mistake]
            sentences.append(f"{mistake.says}{f' ({detail})' if detail else ''}. Shown by {_listed(masks)}.")
        left = [each for each in self.failures if not any(each in masks for masks in known.values())]
        for error in dict.fromkeys(each.error for each in left):
            masks = tuple(each for each in left if each.error == error)
            sentences.append(f"{error.rstrip('.') or 'No known mistake explains it'}. Shown by {_listed(masks)}.")
        return sentences


def _listed(masks: Sequence[MaskCheck]) -> str:
    return f"{masks[0].label}{f' and {len(masks) - 1} more' if len(masks) > 1 else ''}"


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
    placement: Placement | None = None,
    group: dist.ProcessGroup | None = None,
    equal_lengths: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> FunctionCheck:
    """Verifies an attention function as a kernel: its output and each gradient against float64 attention.

    The function gets q, k and v, and each parameter of `longca_bench.functions.arguments` that it asks for by name. It
    returns the output, or a tuple that begins with the output and may go on with the log-sum-exp. It is called on
    contiguous tensors and on strided ones. If it is right, two masks of the same lengths come in turns, inputs have
    outliers, and each half of four ranks or more is a group. Under context parallelism every rank calls this function,
    and the user's function gets the rank's own tokens.

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
    read, of = UserFunction.of(function, name), Shape.named(shape)
    ranks = None if placement is None else Ranks.of(group)
    found = Examination(
        read.name,
        read.parameters,
        lambda some: FunctionKernel(read, of, BATCH, some, placement or "contiguous"),
        device or current_device(),
        ranks=ranks,
        direction=Direction(direction),
        dtype=dtype,
        heads=heads,
        head_dim=head_dim,
        softmax_scale=softmax_scale,
        rotary=rotary,
        equal_lengths=equal_lengths,
        seed=seed,
    ).run(mask)
    if not found.passed:
        worst = next((str(each.worst) for each in found.failures if each.worst is not None), "")
        said = " ".join([*found.sentences, f"Worst row: {worst}." if worst else ""]).strip()
        raise VerificationError(f"{found.name} is wrong on {len(found.failures)} of {len(found.masks)} masks: {said}")
    return found


@dataclass(frozen=True)
class Examination:
    """A function and the problems on which it is verified. Further attributes are those of `check`.

    Attributes:
        name: The function's name.
        parameters: The parameters after q, k and v that LongCA fills.
        kernel: The function as a kernel, for the ranks that share a sequence or None. It is asked before each use.
        device: The device.
        ranks: The ranks, or None on one device.
    """

    name: str
    parameters: tuple[str, ...]
    kernel: Callable[[Ranks | None], Any]
    device: Device
    ranks: Ranks | None = None
    direction: Direction = Direction.BACKWARD
    dtype: DType = "float32"
    heads: tuple[int, int] = (4, 2)
    head_dim: int = 64
    softmax_scale: float | None = None
    rotary: float | None = None
    equal_lengths: bool = False
    seed: int = 0

    def run(self, mask: Mask | str | None) -> FunctionCheck:
        """Verifies the function on one mask, on those of a pattern, or on all that its parameters can describe.

        Raises:
            VerificationError: It raises on a rank, or gives no answer in time.
            RequestError: No parameter describes a mask, or rotary positions do not fit.
        """
        if self.rotary is not None and (self.head_dim % 2 or not 1 < self.rotary < math.inf):
            raise RequestError(
                f"rotary positions have the base {self.rotary} and {self.head_dim} dims; give a finite base above 1, "
                "and an even head dim"
            )
        masks, halves = self._masks(mask, self.ranks), () if self.ranks is None else self.ranks.halves()
        checks = list[MaskCheck]()
        for label, each in masks:
            to_explain = sum(not made.passed for made in checks) < _MOST_EXPLAINED
            checks.append(self._on_mask(label, each, to_explain=to_explain))
        for more in (
            () if isinstance(mask, Mask) else self._on_other_masks(masks),
            (self._with_outliers(label, each) for label, each in masks[::OUTLIERS_EACH]),
            (
                self._verified(f"{label} on {half}", Mistake.GROUP, each, ranks=half)
                for half in halves
                for label, each in self._masks(mask, half)
            ),
        ):
            if all(made.passed for made in checks):
                checks += more
        groups = [] if self.ranks is None else [str(ranks) for ranks in (self.ranks, *halves)]
        return FunctionCheck(self.name, self.dtype, tuple(checks), tuple(groups))

    def _masks(self, mask: Mask | str | None, ranks: Ranks | None) -> list[tuple[str, Mask]]:
        if isinstance(mask, Mask):
            return [(mask.label, mask)]
        square, size = self.equal_lengths or self.rotary is not None, 0 if ranks is None else ranks.size
        return masks_for(self.name, self.parameters, mask, self.heads, square=square, ranks=size)

    def _on_mask(self, label: str, mask: Mask, *, to_explain: bool) -> MaskCheck:
        """Verifies the function on contiguous tensors, and if these are right on strided ones."""
        plain = self._verified(label, None, mask)
        if plain.passed:
            strided = self._verified(f"{label}, strided", Mistake.STRIDES, mask, is_strided=True)
            return plain if strided.passed else strided
        if plain.findings and to_explain:
            for mistake, detail, other in wrong_masks(mask):
                if self._verified(label, mistake, mask, right=other).passed:
                    plain.mistakes.setdefault(mistake, detail)
        return plain

    def _on_other_masks(self, masks: Sequence[tuple[str, Mask]]) -> Iterator[MaskCheck]:
        """Verifies the function on another mask of the same lengths, and then on the first again."""
        for label, mask in masks:
            if (other := other_mask(mask)) is not None:
                yield self._verified(f"another {label}", Mistake.KEPT_MASK, other)
                yield self._verified(f"{label} again", Mistake.KEPT_MASK, mask)

    def _with_outliers(self, label: str, mask: Mask) -> MaskCheck:
        def found(outliers: float, like: DType) -> Verification:
            return self._found(mask, outliers=outliers, limits_of=like)

        return self._made(f"{label}, outliers", Mistake.RANGE, lambda: on_outliers(self.dtype, found))

    def _verified(
        self, label: str, mistake: Mistake | None, mask: Mask, ranks: Ranks | None = None, **how: Any
    ) -> MaskCheck:
        return self._made(label, mistake, lambda: self._found(mask, ranks, **how), ranks)

    def _made(
        self, label: str, mistake: Mistake | None, found: Callable[[], Verification], ranks: Ranks | None = None
    ) -> MaskCheck:
        """The check of a mask. On ranks nobody goes on after an error, because the others wait for this one.

        Args:
            label: The mask's label.
            mistake: The mistake of a function that is wrong here and was right before. None if it is not known.
            found: Makes the findings.
            ranks: The ranks that share the sequence. None for all of them.
        """
        try:
            findings = found()
        except (VerificationError, CaseEndError) as error:
            if ranks := ranks or self.ranks:
                raise VerificationError(f"rank {ranks.every.rank()}: {error}") from error
            if isinstance(error, CaseEndError) and error.status is Status.TIMEOUT:
                raise VerificationError(
                    f"{self.name} gave no answer on {label} in time; raise --timeout if it is only slow"
                ) from None
            text = str(error).removeprefix("VerificationError: ")
            return MaskCheck(label, (), text, {mistake: text} if mistake else {})
        return MaskCheck(label, findings.findings, "", {mistake: ""} if mistake and not findings.passed else {})

    def _found(
        self,
        mask: Mask,
        ranks: Ranks | None = None,
        *,
        right: Mask | None = None,
        is_strided: bool = False,
        outliers: float = 0.0,
        limits_of: DType | None = None,
    ) -> Verification:
        """The findings of the function on one mask.

        Args:
            mask: The mask.
            ranks: The ranks that share the sequence. None for all of them.
            right: The mask with which results are compared. None for the mask itself.
            is_strided: Whether heads and tokens change places in memory.
            outliers: See `draw_inputs`.
            limits_of: The dtype whose arithmetic sets the limits. None for that of the inputs.
        """
        problem = Problem(
            mask=mask,
            heads_q=self.heads[0],
            heads_kv=self.heads[1],
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=self.device,
            direction=self.direction,
            softmax_scale=self.softmax_scale,
        )
        given, ranks = draw_inputs(problem, self.seed, outliers), ranks or self.ranks
        if outliers and self.rotary is not None:  # they are large after the rotation
            given = Rotary(self.rotary, positions(mask)).turned(given, back=True)
        inputs = Inputs(*map(_strided, (given.q, given.k, given.v, given.dout))) if is_strided else given
        plan = self.kernel(ranks).plan(problem)
        asked = replace(problem.with_mask(right or mask), dtype=limits_of or self.dtype)
        if self.rotary is None:
            expected = reference(asked, given)
        else:
            expected = Rotary(self.rotary, positions(asked.concrete_mask)).reference(asked, given)
        return verify_inputs(self.kernel(ranks), plan, inputs, expected, optional_lse=True)


def _strided(x: Tensor) -> Tensor:
    """The same tensor, with heads and tokens in each other's place in memory."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)
