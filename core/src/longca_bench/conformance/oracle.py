"""One kernel on one problem: the calls, and the comparison with float64 attention.

Shapes: q and dout [Tq, Hq, D], k and v [Tk, Hkv, D], out [Tq, Hq, D], lse [Hq, Tq].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from longca.errors import VerificationError
from longca.kernels.base import Kernel, Plan, torch_device
from longca.manifests import Device, Offer, Problem
from longca.manifests.devices import current_device
from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.masks import Mask
from longca.plugins import registry
from longca_bench.conformance.isolation import Isolation
from longca_bench.measuring.results import NAMES, ContractError, held
from longca_bench.verification.change import Change
from longca_bench.verification.findings import (
    PRODUCTS,
    RANGE_OF_FLOAT32,
    Finding,
    Verification,
    check_values,
    findings_of,
    same_bits,
)
from longca_bench.verification.inputs import BEYOND_FLOAT16, WITHIN_FLOAT16, Inputs, draw_inputs
from longca_bench.verification.reference import Reference, part_reference, reference
from longca_bench.verification.verify import Means, check_backward, check_counts, check_forward, lse_dtype

__all__ = [
    "REPEATS",
    "Results",
    "on_outliers",
    "oracle",
    "run",
    "verify",
    "verify_changed",
    "verify_inputs",
    "verify_outliers",
    "verify_problem",
    "verify_repeats",
]

REPEATS = 4  # runs of a kernel that offers equal bits

#: Results by name: out and lse, and after a backward dq, dk and dv.
Results = dict[str, Tensor]


def verify(
    kernel: Kernel | str,
    mask: Mask,
    *,
    direction: Direction | str = Direction.BACKWARD,
    dtype: DType = "float32",
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    device: Device | None = None,
    seed: int = 0,
) -> Verification:
    """Compares a kernel with float64 attention on one mask: poisoned buffers, and the worst row of each tensor.

    A kernel that is right is compared again on inputs with outliers, whose scores are beyond the range of exp.

    Args:
        kernel: A name, or an instance. A named kernel runs in a worker process, and its manifest must cover the
            problem. An instance runs in this process, without a deadline, and has no manifest.
        mask: The mask.
        direction: `forward`, or `backward` for both.
        dtype: Data type of q, k and v.
        heads: Query heads and KV heads.
        head_dim: Head dimension.
        device: The device. None takes this machine's GPU, or the CPU without a GPU.
        seed: Seed of the inputs.

    Returns:
        A finding for each tensor, all within their limits.

    Raises:
        VerificationError: A result is beyond its limit. The message names the tensor and its worst row.
        UnsupportedError: No offer of the named kernel covers the problem.
        CaseEndError: The named kernel raised, crashed, hung or ran out of memory.
    """
    problem = Problem(
        mask=mask,
        heads_q=heads[0],
        heads_kv=heads[1],
        head_dim=head_dim,
        dtype=dtype,
        device=device or current_device(),
        direction=Direction(direction),
    )
    if isinstance(kernel, str):
        name = kernel
        registry().resolve(name, problem).check()
        kernel = Isolation().kernel(registry(), name, problem.device)
    else:
        name = type(kernel).__name__
    found = verify_problem(kernel, problem, seed=seed)
    if found.passed:
        found += verify_outliers(kernel, problem, seed=seed)
    if not found.passed:
        raise VerificationError(f"{name} is wrong: {'; '.join(map(str, found.failures))}")
    return found


def verify_problem(kernel: Kernel, problem: Problem, offer: Offer | None = None, *, seed: int = 0) -> Verification:
    """Verifies a kernel on one problem. A backward is verified only after a right forward, whose results it gets.

    The promises of an offer that covers the problem are verified too: the plan's form, and gradients as a part of a
    larger softmax. None expects no promises.
    """
    plan, is_backward = _planned(kernel, problem, offer), problem.direction == "backward"
    given, change = draw_inputs(problem, seed), Change.first(problem)
    inputs, counts = change.made_all(given), offer is None or not is_backward
    found = _verify_changed(kernel, plan, offer, inputs, reference(problem, given), change, counts=counts)
    if found.passed and is_backward and offer is not None and offer.backward.composes:
        found += _run_as_part(kernel, problem, inputs)
    return found


def verify_outliers(kernel: Kernel, problem: Problem, offer: Offer | None = None, *, seed: int = 0) -> Verification:
    """Verifies a kernel on inputs with outliers, whose scores are beyond the range of exp, on both sides.

    A float16 kernel that fails only where products of q and k are beyond float16's range passes, with this limit.
    """
    plan = _planned(kernel, problem, offer)

    def found(outliers: float, like: DType) -> Verification:
        given, change = draw_inputs(problem, seed, outliers), Change.first(problem)
        expected = reference(replace(problem, dtype=like), given)
        return _verify_changed(kernel, plan, offer, change.made_all(given), expected, change)

    return on_outliers(problem.dtype, found)


def on_outliers(dtype: DType, found: Callable[[float, DType], Verification]) -> Verification:
    """The findings on inputs with outliers, by their size and by the dtype whose arithmetic sets the limits."""
    is_half = dtype == "float16"
    within = found(WITHIN_FLOAT16 if is_half else BEYOND_FLOAT16, dtype)
    if not is_half or not within.passed or found(BEYOND_FLOAT16, RANGE_OF_FLOAT32).passed:
        return within
    return within + Verification((PRODUCTS,))


def verify_inputs(
    kernel: Kernel,
    plan: Plan,
    inputs: Inputs,
    expected: Reference,
    means: Means | None = None,
    *,
    rough_lse: bool = False,
    optional_lse: bool = False,
    counts: bool = False,
) -> Verification:
    """Verifies a kernel on some inputs. A backward is verified only after a right forward, whose results it gets.

    See `check_forward`. `counts` says whether exp(lse) must be the number of visible keys if q = 0.
    """
    about = {"rough_lse": rough_lse, "optional_lse": optional_lse}
    found, out, lse = check_forward(kernel, plan, inputs, expected, means, **about)
    if found.passed and counts:
        found += check_counts(kernel, plan, inputs, means)
    if not found.passed or plan.problem.direction == "forward":
        return found
    return found + check_backward(kernel, plan, inputs, out, lse, expected, means)


def _verify_changed(
    kernel: Kernel,
    plan: Plan,
    offer: Offer | None,
    inputs: Inputs,
    expected: Reference,
    change: Change,
    *,
    counts: bool = False,
) -> Verification:
    means, rough_lse = Means.here(inputs.q, change), offer is not None and offer.rough_lse
    return verify_inputs(kernel, plan, inputs, expected, means, rough_lse=rough_lse, counts=counts)


def verify_repeats(kernel: Kernel, problem: Problem, offer: Offer | None = None) -> Verification:
    """Verifies that equal inputs give equal bits, as a deterministic offer promises. Each run has its own memory."""
    original = draw_inputs(problem, seed=0)
    copies = [original.clone() for _ in range(REPEATS)]  # all alive at once, so that each has its own addresses
    first, *others = (run(kernel, _planned(kernel, problem, offer), inputs) for inputs in copies)
    findings = []
    for name, value in first.items():
        same = all(same_bits(value, other[name]) for other in others)
        note = "" if same else "equal inputs gave other bits"
        findings.append(Finding(f"{name} repeated", same, 0.0, math.nan, 0.0, 0, 0, note))
    return Verification(tuple(findings))


def verify_changed(kernel: Kernel, problem: Problem, offer: Offer, calls: int) -> Iterator[Verification]:
    """Verifies calls with one plan, and yields the findings of each. Inputs change in the same memory before each call.

    Every second call gets buffers, which are the same and poisoned anew. The others get none. A call is a forward, and
    in the backward direction its backward too.
    """
    plan, change = _planned(kernel, problem, offer), Change.none(problem)
    given = draw_inputs(problem, seed=0)
    inputs, expected = given.clone(), reference(problem, given)
    like = _like(inputs)
    buffers = {name: torch.empty_like(like[name]) for side in _sides(problem) for name in NAMES[side]}
    for number in range(calls):
        change = Change.draw(problem, change)
        change.apply(given, inputs)
        for buffer in buffers.values():
            buffer.fill_(torch.nan)
        try:
            found = run(kernel, plan, inputs, buffers if number % 2 else None)
            results = {name: change.undo(name, result) for name, result in found.items()}
            yield check_values(results, expected, rough_lse=offer.rough_lse).placed(change.place)
        except ContractError as error:
            yield Verification(findings_of(error))


def run(kernel: Kernel, plan: Plan, inputs: Inputs, buffers: Results | None = None) -> Results:
    """Runs a kernel in the plan's direction, on the inputs themselves. The backward gets its own forward's out and lse.

    Raises:
        ContractError: The results break the contract.
    """
    q, k, v, dout, like = inputs.q, inputs.k, inputs.v, inputs.dout, _like(inputs)
    given = {side: {name: buffers[name] for name in NAMES[side]} if buffers else {} for side in _sides(plan.problem)}
    tensors, buffer = {"q": q, "k": k, "v": v}, given[Direction.FORWARD]
    results = held(Direction.FORWARD, kernel.forward(q, k, v, plan, **buffer), tensors, buffer, like)
    if Direction.BACKWARD in given:
        tensors, buffer = {"dout": dout, **tensors, **results}, given[Direction.BACKWARD]
        grads: Any = kernel.backward(dout, q, k, v, results["out"], results["lse"], plan, **buffer)
        results |= held(Direction.BACKWARD, grads, tensors, buffer, like)
    return results


@lru_cache(maxsize=32)
def oracle(problem: Problem, seed: int) -> tuple[Inputs, Reference]:
    """The inputs of a seed and their reference. Callers must not write to them."""
    inputs = draw_inputs(problem, seed)
    return inputs, reference(problem, inputs)


def _planned(kernel: Kernel, problem: Problem, offer: Offer | None) -> Plan:
    plan = kernel.plan(problem)
    if offer is not None and plan.form is not offer.form:
        raise VerificationError(
            f"the plan's form is {plan.form}, but the offer that covers the problem is {offer.form}"
        )
    return plan


def _run_as_part(kernel: Kernel, problem: Problem, inputs: Inputs) -> Verification:
    """Verifies the backward of one part of a larger softmax. Out and lse over the other keys are random."""
    q, device = inputs.q, torch_device(problem.device)
    generator = torch.Generator().manual_seed(1)
    other_out = torch.randn(q.shape, generator=generator, dtype=torch.float64).to(device)
    other_lse = torch.randn((q.shape[1], q.shape[0]), generator=generator, dtype=torch.float64).to(device) + 3.0
    expected = part_reference(problem, inputs, (other_out, other_lse))
    assert expected.merged is not None
    out, lse = expected.merged
    plan = kernel.plan(replace(problem, composed=True))
    found = check_backward(kernel, plan, inputs, out.to(q.dtype), lse.to(lse_dtype(q)), expected)
    return Verification(tuple(finding.named(f"{finding.tensor} as a part") for finding in found.findings))


def _sides(problem: Problem) -> tuple[Direction, ...]:
    """The calls of a problem: a forward, and in the backward direction its backward too."""
    return tuple(Direction) if problem.direction == "backward" else (Direction.FORWARD,)


def _like(inputs: Inputs) -> Results:
    """For each result a tensor of its shape, dtype and device."""
    tokens, heads, _ = inputs.q.shape
    lse = inputs.q.new_empty((heads, tokens), dtype=lse_dtype(inputs.q))
    return {"out": inputs.q, "lse": lse, "dq": inputs.q, "dk": inputs.k, "dv": inputs.v}
