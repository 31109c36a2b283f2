"""Verifying a user's function as a kernel: its results on each mask, by their worst rows, and the known mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist
from torch import Tensor

from longca.errors import VerificationError
from longca.manifests import Device, Problem
from longca.manifests.devices import current_device
from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.masks import Mask
from longca_bench.conformance.oracle import on_outliers, verify_inputs
from longca_bench.conformance.problems import OUTLIERS_EACH
from longca_bench.functions.function_kernel import FunctionKernel, Shape
from longca_bench.functions.function_masks import masks_for, other_mask, wrong_masks
from longca_bench.functions.ranks import Placement, Ranks
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
_STRIDES = "Strided tensors are misread, and contiguous ones are right"
_KEPT_MASK = "The mask of an earlier call is kept"
_RANGE = "Large scores overflow: subtract a row's maximum before exp, also in merges"
_GROUP = "A group of half of the ranks is wrong: take ranks and sizes from the group"


@dataclass(frozen=True)
class MaskCheck:
    """The results on one mask.

    Attributes:
        label: The mask, and how the call differs from the plain one.
        findings: The worst row of each result.
        error: The reason why there are no results, or an empty text.
        mistake: The mistake that explains wrong results, in a sentence, or an empty text.
    """

    label: str
    findings: tuple[Finding, ...] = ()
    error: str = ""
    mistake: str = ""

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
        return not self.failures

    @property
    def failures(self) -> tuple[MaskCheck, ...]:
        """The masks on which it is wrong."""
        return tuple(each for each in self.masks if not each.passed)

    @property
    def limits(self) -> tuple[str, ...]:
        """The limits within which it is right."""
        return tuple(dict.fromkeys(limit for each in self.masks for limit in Verification(each.findings).limits))

    @property
    def sentences(self) -> list[str]:
        """A sentence for each mistake and each error, with the masks that show it."""
        shown_by = dict[str, list[str]]()
        for each in self.failures:
            reason = each.mistake or each.error.rstrip(".") or "No known mistake explains it"
            shown_by.setdefault(reason, []).append(each.label)
        return [
            f"{reason}. Shown by {labels[0]}{f' and {len(labels) - 1} more' if len(labels) > 1 else ''}."
            for reason, labels in sorted(shown_by.items(), key=lambda item: -len(item[1]))
        ]


def check(
    function: Callable[..., Any],
    mask: Mask | str | None = None,
    *,
    shape: Shape | str = Shape.THD,
    direction: Direction | str = Direction.BACKWARD,
    dtype: DType = "float32",
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    head_dim_v: int | None = None,
    device: Device | None = None,
    softmax_scale: float | None = None,
    softcap: float | None = None,
    placement: Placement | None = None,
    group: dist.ProcessGroup | None = None,
    equal_lengths: bool = False,
    seed: int = 0,
) -> FunctionCheck:
    """Verifies an attention function as a kernel: its output and each gradient against float64 attention.

    The function gets q, k and v, and each parameter of `longca_bench.functions.arguments` that it asks for by name. It
    returns the output, or a tuple that begins with the output and may go on with the log-sum-exp. It is called on
    contiguous tensors and on strided ones. If it is right, two masks of the same lengths come in turns, inputs have
    outliers, and half of four ranks or more is a group. Under context parallelism every rank calls `check`, and the
    user's function gets the rank's own tokens.

    Args:
        function: The function.
        mask: One mask, or a pattern's name for the masks of conformance of this pattern. None for all masks of
            conformance that the function's parameters can describe.
        shape: The shape of q, k, v and the output: `thd`, `bhsd` or `bshd`.
        direction: `forward`, or `backward` for both.
        dtype: Data type of q, k and v.
        heads: Query heads and KV heads.
        head_dim: Head dimension of q and k.
        head_dim_v: Head dimension of v. None for that of q and k.
        device: The device. None takes this machine's GPU, or the CPU without a GPU.
        softmax_scale: Factor on the scores. None for 1/√head_dim.
        softcap: Bound of the scores (`longca.Problem`). None for no bound.
        placement: The tokens of each rank, by a placement's name or a function. None runs on one device.
        group: The process group of the ranks. None for all processes.
        equal_lengths: Whether to take only masks with as many queries as keys.
        seed: Seed of the inputs.

    Returns:
        The findings on each mask, all within their limits.

    Raises:
        VerificationError: A result is beyond its limit, or the function raises. The message names the mistake.
        RequestError: The function or an argument does not fit. The message has the remedy.
    """
    read, of = UserFunction.of(function), Shape.named(shape)
    asked = {
        "heads_q": heads[0],
        "heads_kv": heads[1],
        "head_dim": head_dim,
        "head_dim_v": head_dim_v,
        "dtype": dtype,
        "device": device or current_device(),
        "direction": Direction(direction),
        "softmax_scale": softmax_scale,
        "softcap": softcap,
    }
    found = Examination(
        read.name,
        read.parameters,
        lambda some: FunctionKernel(read, of, BATCH, some, placement or "contiguous"),
        asked,
        None if placement is None else Ranks.of(group),
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
    """A function and the problems on which it is verified.

    `parameters` are those that LongCA fills. `kernel` gives the function as a kernel, for the ranks that share a
    sequence or None, and is asked at each use. `asked` has the fields of the problems, without the mask.
    """

    name: str
    parameters: tuple[str, ...]
    kernel: Callable[[Ranks | None], Any]
    asked: Mapping[str, Any]
    ranks: Ranks | None = None
    equal_lengths: bool = False
    seed: int = 0

    def run(self, mask: Mask | str | None) -> FunctionCheck:
        """Verifies the function on one mask, on those of a pattern, or on all that its parameters can describe.

        Raises:
            VerificationError: It raises on a rank, or gives no answer in time.
            RequestError: No parameter describes a mask.
        """
        masks, checks = self._masks(mask, self.ranks), list[MaskCheck]()
        for label, each in masks:
            to_explain = sum(not made.passed for made in checks) < _MOST_EXPLAINED
            checks.append(self._on_mask(label, each, to_explain=to_explain))
        for more in (
            iter(()) if isinstance(mask, Mask) else self._in_turns(masks),
            (self._with_outliers(label, each) for label, each in masks[::OUTLIERS_EACH]),
            self._on_half(mask),
        ):
            if all(made.passed for made in checks):
                checks += more
        return FunctionCheck(self.name, self.asked["dtype"], tuple(checks))

    def _masks(self, mask: Mask | str | None, ranks: Ranks | None) -> list[tuple[str, Mask]]:
        if isinstance(mask, Mask):
            return [(mask.label, mask)]
        heads, size = (self.asked["heads_q"], self.asked["heads_kv"]), 0 if ranks is None else ranks.size
        return masks_for(self.name, self.parameters, mask, heads, square=self.equal_lengths, ranks=size)

    def _on_mask(self, label: str, mask: Mask, *, to_explain: bool) -> MaskCheck:
        """Verifies the function on contiguous tensors, and if these are right on strided ones."""
        plain = self._verified(label, "", mask)
        if plain.passed:
            strided = self._verified(f"{label}, strided", _STRIDES, mask, is_strided=True)
            return plain if strided.passed else strided
        if plain.findings and to_explain:
            for mistake, other in wrong_masks(mask):
                if self._verified(label, "", mask, right=other).passed:
                    return replace(plain, mistake=mistake)
        return plain

    def _in_turns(self, masks: list[tuple[str, Mask]]) -> Iterator[MaskCheck]:
        """Verifies the function on another mask of the same lengths, and then on the first again."""
        for label, mask in masks:
            if (other := other_mask(mask)) is not None:
                yield self._verified(f"another {label}", _KEPT_MASK, other)
                yield self._verified(f"{label} again", _KEPT_MASK, mask)

    def _with_outliers(self, label: str, mask: Mask) -> MaskCheck:
        def found(outliers: float, like: DType) -> Verification:
            return self._found(mask, outliers=outliers, limits_of=like)

        return self._made(f"{label}, outliers", _RANGE, lambda: on_outliers(self.asked["dtype"], found))

    def _on_half(self, mask: Mask | str | None) -> Iterator[MaskCheck]:
        if self.ranks is not None and (half := self.ranks.second_half()) is not None:
            for label, each in self._masks(mask, half):
                yield self._verified(f"{label} on {half}", _GROUP, each, ranks=half)

    def _verified(self, label: str, mistake: str, mask: Mask, **how: Any) -> MaskCheck:
        return self._made(label, mistake, lambda: self._found(mask, **how))

    def _made(self, label: str, mistake: str, found: Callable[[], Verification]) -> MaskCheck:
        """The check of a mask. `mistake` is that of a function that is wrong here and was right before.

        On ranks nobody goes on after an error, because the others wait for this one.
        """
        try:
            findings = found()
        except (VerificationError, CaseEndError) as error:
            if self.ranks is not None:
                raise VerificationError(f"rank {self.ranks.every.rank()}: {error}") from error
            if isinstance(error, CaseEndError) and error.status is Status.TIMEOUT:
                raise VerificationError(
                    f"{self.name} gave no answer on {label} in time; raise --timeout if it is only slow"
                ) from None
            text = str(error).removeprefix("VerificationError: ")
            return MaskCheck(label, (), text, f"{mistake} ({text.rstrip('.')})" if mistake else "")
        return MaskCheck(label, findings.findings, "", "" if findings.passed else mistake)

    def _found(
        self,
        mask: Mask,
        *,
        ranks: Ranks | None = None,
        right: Mask | None = None,
        is_strided: bool = False,
        outliers: float = 0.0,
        limits_of: DType | None = None,
    ) -> Verification:
        """The findings of the function on one mask, compared with attention on the `right` mask.

        `limits_of` is the dtype whose arithmetic sets the limits. See `draw_inputs` for outliers.
        """
        problem = Problem(mask=mask, **self.asked)
        given, ranks = draw_inputs(problem, self.seed, outliers), ranks or self.ranks
        inputs = Inputs(*map(_strided, (given.q, given.k, given.v, given.dout))) if is_strided else given
        plan = self.kernel(ranks).plan(problem)
        expected = reference(replace(problem.with_mask(right or mask), dtype=limits_of or problem.dtype), given)
        return verify_inputs(self.kernel(ranks), plan, inputs, expected, optional_lse=True)


def _strided(x: Tensor) -> Tensor:
    """The same tensor, with heads and tokens in each other's place in memory."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)
