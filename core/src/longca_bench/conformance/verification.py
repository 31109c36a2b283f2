"""Verifying one kernel on one mask, for tests of an author's own."""

from __future__ import annotations

from longca.errors import UnsupportedError, VerificationError
from longca.kernels.base import Kernel
from longca.manifests import Device, Problem
from longca.manifests.devices import current_device
from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.masks import Mask
from longca.plugins import registry
from longca_bench.verification.inputs import draw_inputs
from longca_bench.verification.reference import reference
from longca_bench.verification.verify import Verification, check_backward, check_counts, check_forward

__all__ = ["verify"]


def verify(
    kernel: Kernel | str,
    mask: Mask,
    *,
    direction: Direction = "backward",
    dtype: DType = "float32",
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    device: Device | None = None,
    seed: int = 0,
) -> Verification:
    """Holds a kernel against float64 attention on one mask: poisoned buffers, each tensor apart, by its worst row.

    Args:
        kernel: An instance, whose manifest is not asked; or a name, whose manifest must cover the problem.
        mask: The mask.
        direction: `forward`, or `backward` for both.
        dtype: Data type of q, k and v.
        heads: Query heads and KV heads.
        head_dim: Head dimension.
        device: Where to run; None for this machine's GPU where it has one.
        seed: Seed of the inputs.

    Returns:
        What was found of each tensor, all within its limit.

    Raises:
        VerificationError: A result is beyond its limit; the message names the tensor and its worst row.
        UnsupportedError: No offer of the named kernel covers the problem.
    """
    problem = Problem(
        mask=mask,
        heads_q=heads[0],
        heads_kv=heads[1],
        head_dim=head_dim,
        dtype=dtype,
        device=device or current_device(),
        direction=direction,
    )
    chosen = _supported(kernel, problem) if isinstance(kernel, str) else kernel
    inputs = draw_inputs(problem, seed)
    expected = reference(problem, inputs)
    plan = chosen.plan(problem)
    found, out, lse = check_forward(chosen, plan, inputs, expected)
    found += check_counts(chosen, plan, inputs)
    if found.passed and direction == "backward":
        found += check_backward(chosen, plan, inputs, out, lse, expected)
    if not found.passed:
        raise VerificationError(f"{type(chosen).__name__} is wrong: {'; '.join(map(str, found.failures))}")
    return found


def _supported(name: str, problem: Problem) -> Kernel:
    verdict = registry().resolve(name, problem)
    if not verdict.valid:
        raise UnsupportedError(" ".join(map(str, verdict.reasons)))
    kernel: Kernel = registry().load(name)
    return kernel
