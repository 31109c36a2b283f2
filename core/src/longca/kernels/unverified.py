"""Unverified offers: a kernel that nobody verified on a device computes a small call there before its first use.

The small call is compared with float64 attention, once in a process. `longca verify --unverified` tries far more, and
stores the verdict for all processes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product

import torch

from longca.adviser import Choice
from longca.errors import LongCAError, VerificationError
from longca.kernels.base import Kernel, as_in_an_operator, in_given_dtypes, torch_device, torch_dtype
from longca.manifests import Device, Direction, Layout, Offer, Problem, Verdict
from longca.manifests.verified import Check, check_of, standing
from longca.masks import PATTERNS, sample
from longca.plugins import Registry

__all__ = ["check_unverified", "choose_checked"]

_log = logging.getLogger("longca")

#: Tokens of the small call: the first number that the offer takes.
_SEQLENS = (512, 128)
#: The error that a right kernel stays below, as a share of the norm of the result.
_TRIAL_ERROR = {"float64": 1e-8, "float32": 3e-3, "bfloat16": 1e-2, "float16": 1e-2}
#: The offers that passed in this process, by kernel, digest and device.
_PASSED: set[tuple[str, str, Device]] = set()


def check_unverified(registry: Registry, verdict: Verdict, problem: Problem) -> None:
    """Tries the offers of a verdict that nobody verified on the problem's device, and raises if one is wrong.

    Raises:
        VerificationError: An offer is wrong on this device, now or in an earlier verification.
    """
    for half in verdict.halves or (verdict,):
        for offer in (half.offer, *half.offers) if half.unverified else ():
            if offer is not None and standing(half.kernel, offer, problem.device).is_open:
                _check(registry, half.kernel, offer, problem)


def choose_checked(
    registry: Registry, problem: Problem, choose: Callable[[Problem], Choice], layout: Layout | None = None
) -> Choice:
    """The choice of `auto`, after its kernel was checked. If that fails, the choice is among verified kernels.

    Raises:
        UnsupportedError: No verified kernel takes the problem.
    """
    choice = choose(problem)
    if not problem.allow_unverified:
        return choice
    try:
        check_unverified(registry, registry.resolve(choice.kernel, problem, layout), problem)
    except VerificationError as error:
        _log.warning("attention: %s. Now a verified kernel is chosen", error)
        choice = choose(replace(problem, allow_unverified=False))
    return choice


def _check(registry: Registry, kernel: str, offer: Offer, problem: Problem) -> None:
    device, command = problem.device, f"`longca verify --unverified --kernel {kernel}`"
    passed = kernel, Check.digest(offer), device
    if passed in _PASSED:
        return
    if (earlier := check_of(kernel, offer, device)) is not None:
        wrong = earlier.message or "its verification failed"
    else:
        _log.warning(
            "attention: nobody verified %s on %s; it is tried on a small call. Run %s", kernel, device, command
        )
        wrong = _wrong(registry, kernel, offer, problem)
    if wrong:
        advice = f"Take another kernel, or run {command} once the reason is gone"
        raise VerificationError(f"{kernel} is not verified on {device}: {wrong}. {advice}")
    _PASSED.add(passed)


def _wrong(registry: Registry, kernel: str, offer: Offer, problem: Problem) -> str:
    """The fault of a kernel on a small problem of its offer. Empty if it has none, or if no small problem fits."""
    small = next(_small_problems(registry, kernel, offer, problem), None)
    if small is None:
        return ""
    try:
        errors = _errors(registry.load(kernel), offer, small)
    except (Exception, SystemExit) as error:
        return f"{small.concrete_mask.label} raised {type(error).__name__}: {error}"
    wrong = [f"{name} by {error:.2%}" for name, error in errors.items() if not error <= _TRIAL_ERROR[small.dtype]]
    return f"{', '.join(wrong)} on {small.concrete_mask.label}, {small.direction}" if wrong else ""


def _small_problems(registry: Registry, kernel: str, offer: Offer, problem: Problem) -> Iterator[Problem]:
    """Small problems like a problem that the kernel takes by the offer. Its own pattern comes first."""
    own = problem.concrete_mask.pattern
    like = replace(
        problem,
        direction=problem.direction if problem.direction in offer.directions else offer.directions[-1],
        backward_only=not offer.forward,
        composed=not offer.forward,
    )
    for name, seqlen in product(sorted(PATTERNS, key=lambda name: name != own), _SEQLENS):
        with suppress(LongCAError):
            asked = replace(like, mask=sample(name, seqlen))
            if registry.resolve(kernel, asked).offer == offer:
                yield asked


def _errors(kernel: Kernel, offer: Offer, problem: Problem) -> dict[str, float]:
    """The errors of a kernel's results on random inputs, as shares of the norms of the float64 results."""
    from longca_builtin.blockwise import attention_backward, attention_forward

    device, dtype, mask = torch_device(problem.device), torch_dtype(problem.dtype), problem.concrete_mask
    dice = torch.Generator(device).manual_seed(0)
    of_q, of_k = (mask.seqlen_q, problem.heads_q), (mask.seqlen_k, problem.num_heads_kv)
    dim_q, dim_v = problem.dims
    q, k, v, dout = (
        torch.randn((*size, dim), generator=dice, device=device).to(dtype)
        for size, dim in ((of_q, dim_q), (of_k, dim_q), (of_k, dim_v), (of_q, dim_v))
    )
    plan = kernel.plan(problem)
    with torch.no_grad(), as_in_an_operator(q), in_given_dtypes(q):
        wide, about = (q.double(), k.double(), v.double()), (mask, problem.scale, torch.float64)
        out, lse = attention_forward(*wide, *about, softcap=problem.softcap)
        found, sums = kernel.forward(q, k, v, plan) if offer.forward else (out.to(q.dtype), lse.float())
        pairs = {"out": (found, out)}
        if not (offer.rough_lse or offer.optional_lse):
            pairs["lse"] = sums.exp(), lse.exp()
        if problem.direction is Direction.BACKWARD:
            grads = kernel.backward(dout, q, k, v, found, sums, plan)
            expected = attention_backward(dout.double(), *wide, out, lse, *about, softcap=problem.softcap)
            pairs |= dict(zip(("dq", "dk", "dv"), zip(grads, expected, strict=True), strict=True))
    return {name: float((a.double() - b).norm() / b.norm().clamp_min(1e-30)) for name, (a, b) in pairs.items()}
