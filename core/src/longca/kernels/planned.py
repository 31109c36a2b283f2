"""Planned: a kernel and its plan, made at the first call with a mask and reused by later ones."""

from __future__ import annotations

import atexit
from collections.abc import Hashable
from functools import partial
from typing import NamedTuple

import torch
from torch import _C, Tensor

from longca import plugins
from longca.adviser import adviser, log
from longca.errors import PluginError, RequestError
from longca.kernels.ahead import Prefetch, ask, take
from longca.kernels.base import Kernel, Plan, as_in_an_operator, device_of, in_given_dtypes, on_device_of
from longca.kernels.refusals import check_taken
from longca.kernels.sinks import backward_with_sinks, forward_with_sinks
from longca.kernels.unverified import check_unverified, choose_checked
from longca.manifests import Direction, Problem
from longca.masks import Mask
from longca.plan_cache import PlanCache

__all__ = ["PLANS", "Planned", "Settings", "plan_ahead", "planned", "problem_of"]

_QKV = tuple[Tensor, Tensor, Tensor]


class Settings(NamedTuple):
    """The settings of a call, with whether it has sinks. `longca.attention` has their meaning."""

    kernel: str
    softmax_scale: float | None
    softcap: float | None = None
    deterministic: bool = False
    allow_unverified: bool = False
    sinks: bool = False


class Planned(NamedTuple):
    """A kernel, its plan, and the mask's key: int64 [], on the CPU. It runs below autograd."""

    kernel: Kernel
    plan: Plan
    key: Tensor

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """out [Tq, Hq, Dv] and lse [Hq, Tq], contiguous, on q's device in q's dtype, with sinks [Hq] if any."""
        with as_in_an_operator(q):
            if sinks is None:
                out, lse = self.kernel.forward(q, k, v, self.plan)
            else:
                out, lse = forward_with_sinks(self.kernel, q, k, v, sinks, self.plan)
            out, lse = out.contiguous(), lse.contiguous()
        self._check_memory((out, lse), (q, k, v))
        return out, lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sinks: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The gradients of q, k and v, contiguous, and of sinks [Hq] if there are any."""
        with as_in_an_operator(q):
            dout, dsinks = dout.contiguous(), None
            if sinks is None:
                dq, dk, dv = self.kernel.backward(dout, q, k, v, out, lse, self.plan)
            else:
                results = backward_with_sinks(self.kernel, dout, q, k, v, out, lse, sinks, self.plan)
                dq, dk, dv, dsinks = results
            dq, dk, dv = dq.contiguous(), dk.contiguous(), dv.contiguous()
        self._check_memory((dq, dk, dv), (dout, q, k, v, out, lse))
        return dq, dk, dv, dsinks

    def _check_memory(self, results: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> None:
        """Autograd and compilers take every result for new memory."""
        if _C._any_output_is_alias_to_input_or_output(inputs, {}, results):
            raise PluginError(
                f"{type(self.kernel).__name__} ({self.plan.backend}) returned a result that shares memory with an "
                "input or with another result; a kernel must return new tensors if it was given no buffers"
            )


#: The kernels and plans of the latest calls. A plan holds its mask.
PLANS: PlanCache[Planned] = PlanCache()

#: The plans in CUDA graphs, whose replays read their tensors without asking for them. They stay until the process ends.
_CAPTURED: dict[int, Planned] = {}
atexit.register(_CAPTURED.clear)


def planned(mask: Mask | int, q: Tensor, k: Tensor, v: Tensor, settings: Settings, training: bool) -> Planned:
    """The kernel and the plan for some tensors and a mask or its key. It raises as `longca.attention` does."""
    about = settings, training, q.shape, k.shape, v.shape, q.dtype, q.device
    found = PLANS.get(mask, about, partial(_taken_or_made, about, mask, (q, k, v), settings, training))
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        _CAPTURED[id(found)] = found
    return found


def plan_ahead(mask: Mask, q: Tensor, k: Tensor, v: Tensor, settings: Settings, training: bool) -> Prefetch:
    """Asks the side thread for the plan that a later call of `planned` takes. The arguments are those of that call."""
    about = settings, training, q.shape, k.shape, v.shape, q.dtype, q.device

    def make() -> Planned:
        return PLANS.find(mask, about) or _make(mask, (q, k, v), settings, training)

    return ask((mask.key, about), make, q.device)


def _taken_or_made(about: Hashable, mask: Mask | int, qkv: _QKV, settings: Settings, training: bool) -> Planned:
    """The plan that the side thread was asked for, or else a new one."""
    asked = take((getattr(mask, "key", mask), about))
    made: Planned = _make(mask, qkv, settings, training) if asked is None else asked.taken()
    return made


def _make(mask: Mask | int, qkv: _QKV, settings: Settings, training: bool) -> Planned:
    q, k, _ = qkv
    whole = mask if isinstance(mask, Mask) else Mask.by_key(mask)
    if (q.shape[0], k.shape[0]) != (whole.seqlen_q, whole.seqlen_k):
        raise RequestError(
            f"q has {q.shape[0]} tokens and k {k.shape[0]}, but the mask is {whole.seqlen_q} × {whole.seqlen_k}. "
            "Build the mask for the tensors' lengths"
        )
    # A plan that is made in inference mode must serve other calls too.
    with on_device_of(q), in_given_dtypes(q), torch.inference_mode(False):
        kernel, plan = _plan(settings.kernel, problem_of(*qkv, whole, settings, training))
        return Planned(kernel, plan, torch.from_numpy(whole.key_array))


def _plan(name: str, problem: Problem) -> tuple[Kernel, Plan]:
    registry = plugins.registry()
    if name == "auto":
        choice = choose_checked(registry, problem, lambda asked: adviser().choose(asked, registry))
        log(choice)
        name = choice.kernel
    else:
        verdict = registry.resolve(name, problem)
        check_taken(registry, verdict, problem)
        check_unverified(registry, verdict, problem)
    kernel: Kernel = registry.load(name)
    return kernel, kernel.plan(problem)


def problem_of(q: Tensor, k: Tensor, v: Tensor, mask: Mask, settings: Settings, training: bool) -> Problem:
    """The problem that tensors, a mask and settings pose."""
    return Problem(
        mask=mask,
        heads_q=q.shape[1],
        heads_kv=k.shape[1],
        head_dim=q.shape[2],
        head_dim_v=v.shape[2],
        dtype=str(q.dtype).removeprefix("torch."),  # type: ignore[arg-type]  # Problem checks it
        device=device_of(q),
        direction=Direction.BACKWARD if training else Direction.FORWARD,
        softmax_scale=settings.softmax_scale,
        softcap=settings.softcap,
        deterministic=settings.deterministic,
        allow_unverified=settings.allow_unverified,
        sinks=settings.sinks,
    )
