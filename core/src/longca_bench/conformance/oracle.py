"""One kernel on one problem: the calls, and the comparison with float64 attention.

Shapes: q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv], out and dout [Tq, Hq, Dv], lse [Hq, Tq].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
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
    "on_outliers",
    "verify",
    "verify_calls",
    "verify_changed",
    "verify_inputs",
    "verify_outliers",
    "verify_problem",
    "verify_repeats",
    "verify_results",
    "verify_reused",
]

REPEATS = 4  # runs of a kernel that offers equal bits
CALLS = 24  # finds a kernel that is wrong in one run of ten with a probability above 90 %

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
    head_dim_v: int | None = None,
    softcap: float | None = None,
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
        head_dim: Head dimension of q and k.
        head_dim_v: Head dimension of v. None for that of q and k.
        softcap: Bound of the scores (`longca.Problem`). None for no bound.
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
        head_dim_v=head_dim_v,
        dtype=dtype,
        device=device or current_device(),
        direction=Direction(direction),
        softcap=softcap,
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
    inputs, expected = change.made_all(given), reference(problem, given)
    about = {"rough_lse": _is_rough(offer), "counts": offer is None or not is_backward}
    found = verify_inputs(kernel, plan, inputs, expected, change, **about)
    if found.passed and is_backward and offer is not None and offer.backward.composes and not problem.sinks:
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
        return verify_inputs(kernel, plan, change.made_all(given), expected, change, rough_lse=_is_rough(offer))

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
    change: Change | None = None,
    *,
    rough_lse: bool = False,
    optional_lse: bool = False,
    counts: bool = False,
) -> Verification:
    """Verifies a kernel on some inputs. A backward is verified only after a right forward, whose results it gets.

    The inputs are those of the reference, or have a change. With `counts`, exp(lse) of q = 0 must be the number of
    visible keys. See `check_forward` for an lse that is rough or optional.
    """
    means = Means.here(inputs.q, change)
    about = {"rough_lse": rough_lse, "optional_lse": optional_lse}
    found, out, lse = check_forward(kernel, plan, inputs, expected, means, **about)
    if found.passed and counts:
        found += check_counts(kernel, plan, inputs, means)
    if not found.passed or plan.problem.direction == "forward":
        return found
    return found + check_backward(kernel, plan, inputs, out, lse, expected, means)


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


def verify_changed(kernel: Kernel, problem: Problem, offer: Offer | None, calls: int) -> Iterator[Verification]:
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
            yield check_values(results, expected, rough_lse=_is_rough(offer)).placed(change.place)
        except ContractError as error:
            yield Verification(findings_of(error))


def verify_calls(kernel: Kernel, problem: Problem, offer: Offer | None = None) -> Verification:
    """Verifies many calls on changed inputs, until one is wrong."""
    found = Verification(())
    for number, found in enumerate(verify_changed(kernel, problem, offer, CALLS), start=1):
        if not found.passed:
            return _renamed(found, f"call {number} of {CALLS}: {{}}")
    return found


def verify_reused(kernel: Kernel, problem: Problem, other: Problem, offer: Offer | None = None) -> Verification:
    """Verifies calls with one plan, between which other plans are made and run."""
    plan = _planned(kernel, problem, offer)
    if plan.problem != problem:
        raise VerificationError("the plan's problem is not the one that was planned for")
    found = Verification(())
    for seed, between in enumerate((problem, other, problem)):
        run(kernel, plan if between is problem else kernel.plan(between), draw_inputs(between, seed))
        found += verify_results(kernel, plan, seed, offer)
    return _renamed(found, "{} with one plan")


def verify_results(
    kernel: Kernel,
    plan: Plan,
    seed: int,
    offer: Offer | None,
    laid_out: Callable[[Inputs], Inputs] = lambda inputs: inputs,
) -> Verification:
    """Verifies the results of a run without buffers, on the inputs of a seed as they are laid out in memory."""
    inputs = draw_inputs(plan.problem, seed)
    expected = reference(plan.problem, inputs)
    return check_values(run(kernel, plan, laid_out(inputs)), expected, rough_lse=_is_rough(offer))


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


def _renamed(found: Verification, name: str) -> Verification:
    """The findings under longer names of their tensors."""
    return Verification(tuple(finding.named(name.format(finding.tensor)) for finding in found.findings))


def _is_rough(offer: Offer | None) -> bool:
    return offer is not None and offer.rough_lse


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
    other_out = torch.randn(inputs.dout.shape, generator=generator, dtype=torch.float64).to(device)
    other_lse = torch.randn((q.shape[1], q.shape[0]), generator=generator, dtype=torch.float64).to(device) + 3.0
    expected = part_reference(problem, inputs, (other_out, other_lse))
    assert expected.merged is not None
    out, lse = expected.merged
    plan = kernel.plan(replace(problem, composed=True))
    found = check_backward(kernel, plan, inputs, out.to(q.dtype), lse.to(lse_dtype(q)), expected)
    return _renamed(found, "{} as a part")


def _sides(problem: Problem) -> tuple[Direction, ...]:
    """The calls of a problem: a forward, and in the backward direction its backward too."""
    return tuple(Direction) if problem.direction == "backward" else (Direction.FORWARD,)


def _like(inputs: Inputs) -> Results:
    """For each result a tensor of its shape, dtype and device."""
    tokens, heads, _ = inputs.q.shape
    lse = inputs.q.new_empty((heads, tokens), dtype=lse_dtype(inputs.q))
    return {"out": inputs.dout, "lse": lse, "dq": inputs.q, "dk": inputs.k, "dv": inputs.v}
