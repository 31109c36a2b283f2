"""Kernels that are wrong, each in one way, in a plugin of their own; and one that is right."""

from __future__ import annotations

import os
import re

import torch

from longca import Backward, KernelManifest, Offer, hookimpl
from longca.masks import Form
from longca_builtin.naive import Naive


class Base(Naive):
    """Right, and counts its calls."""

    calls = 0

    def plan(self, problem):
        plan = super().plan(problem)
        plan.form = Form.CAUSAL
        return plan

    def forward(self, q, k, v, plan, **buffers):
        self.calls += 1
        out, lse = super().forward(q, k, v, plan, **buffers)
        self.spoil(out)
        return out, lse

    def spoil(self, out):
        """Makes the output wrong."""


class Zeros(Base):
    def spoil(self, out):
        out.zero_()


class WritesNan(Base):
    def spoil(self, out):
        out[-1, -1, -1] = torch.nan


class LeavesOutput(Base):
    """Returns the buffers without a look at them."""

    def forward(self, q, k, v, plan, *, out=None, lse=None):
        right = super().forward(q, k, v, plan)
        return right[0] if out is None else out, right[1] if lse is None else lse


class SkipsLastTile(Base):
    """Queries from 256 on are left at zero, as if there were two tiles of 128."""

    def spoil(self, out):
        out[256:] = 0


class WrongDk(Base):
    def backward(self, *arguments, **buffers):
        dq, dk, dv = super().backward(*arguments, **buffers)
        return dq, dk.mul_(1.001), dv


class WrongShape(Base):
    def forward(self, q, k, v, plan, *, out=None, lse=None):
        result = super().forward(q, k, v, plan, out=out, lse=lse)
        return result if out is not None else (result[0].flatten(1), result[1])


class WrongDtype(Base):
    def forward(self, q, k, v, plan, *, out=None, lse=None):
        result = super().forward(q, k, v, plan, out=out, lse=lse)
        return result if out is not None else (result[0].double(), result[1])


class Alias(Base):
    def forward(self, q, k, v, plan, *, out=None, lse=None):
        result = super().forward(q, k, v, plan, out=out, lse=lse)
        return result if out is not None else (q.copy_(result[0]), result[1])


class PacksGradients(Base):
    """dk and dv are parts of one tensor."""

    def backward(self, *arguments, dq=None, dk=None, dv=None):
        grads = super().backward(*arguments, dq=dq, dk=dk, dv=dv)
        return grads if dk is not None else (grads[0], *torch.stack(grads[1:]))


class ChangesState(Base):
    def forward(self, *arguments, **buffers):
        torch.set_default_dtype(torch.float64)
        return super().forward(*arguments, **buffers)


class Exits(Base):
    def forward(self, *arguments, **buffers):
        os._exit(0)


class ChangesInputs(Base):
    def backward(self, dout, q, k, v, *arguments, **buffers):
        grads = super().backward(dout, q, k, v, *arguments, **buffers)
        dout.mul_(2)
        return grads


class IgnoresStrides(Base):
    """Takes the tokens of v for contiguous."""

    def forward(self, q, k, v, plan, **buffers):
        return super().forward(q, k, v.as_strided(v.shape, torch.empty(v.shape).stride()), plan, **buffers)


class OnceInMany(Base):
    def spoil(self, out):
        if self.calls % 11 == 0:
            out.mul_(1.01)


class CachesByPointer(Base):
    """Remembers its last answer by where the inputs and buffers lie."""

    def __init__(self):
        self.known = {}

    def forward(self, q, k, v, plan, *, out=None, lse=None):
        if out is None or lse is None:
            return super().forward(q, k, v, plan)
        key = (plan, q.data_ptr(), k.data_ptr(), out.data_ptr())
        if key in self.known:
            return tuple(b.copy_(known) for b, known in zip((out, lse), self.known[key], strict=True))
        result = super().forward(q, k, v, plan, out=out, lse=lse)
        self.known = {key: tuple(x.clone() for x in result)}
        return result


class NotDeterministic(Base):
    """Off by an ulp in every other run: within its limits, but not what it says."""

    def spoil(self, out):
        if self.calls % 2:
            out.mul_(1 + 2**-22)


class PlansAnotherForm(Base):
    def plan(self, problem):
        plan = super().plan(problem)
        plan.form = Form.DENSE
        return plan


class KeepsItsLastPlan(Base):
    """Works by what it planned last, whatever plan it is given."""

    def plan(self, problem):
        self.last = super().plan(problem)
        return self.last

    def forward(self, q, k, v, plan, **buffers):
        out, lse = super().forward(q, k, v, plan, **buffers)
        return (out if self.last.problem.mask.seqlen_q == q.shape[0] else out.zero_()), lse


class NeedsItsForward(Base):
    """The backward takes q from the last forward."""

    def forward(self, q, k, v, plan, **buffers):
        self.q = q
        return super().forward(q, k, v, plan, **buffers)

    def backward(self, dout, q, *arguments, **buffers):
        return super().backward(dout, self.q, *arguments, **buffers)


class BaseTwo(Base):
    """The log-sum-exp for other kernels has base 2."""

    def forward(self, q, k, v, plan, **buffers):
        out, lse = super().forward(q, k, v, plan, **buffers)
        return out, lse.mul_(1.4427) if plan.problem.composed else lse


class Raises(Base):
    def forward(self, *arguments, **buffers):
        raise RuntimeError("no such tile")


class NoBackward:
    def plan(self, problem):
        return None

    def forward(self, q, k, v, plan):
        return q, k


#: Each kernel by its name: `skips_last_tile` is `SkipsLastTile`.
KERNELS = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in Base.__subclasses__()}
KERNELS |= {"right": Base, "no_backward": NoBackward}


def manifest(name: str) -> KernelManifest:
    offer = Offer(
        form=Form.CAUSAL,
        unequal_lengths=True,
        backward=Backward.EXTERNAL,
        dtypes=("float32",),
        gqa=False,
        head_dims=(32,),
        cpu=True,
        deterministic=name != "once_in_many",
        metadata="O(1)",
    )
    return KernelManifest(
        name=name,
        title=name,
        family="bad",
        upstream="https://example.org",
        license="MIT",
        implementation=f"{__name__}:{KERNELS[name].__name__}",
        offers=(offer,),
    )


@hookimpl
def provide_kernel():
    """All of them; this module imports torch, which is one more thing that is wrong with it."""
    return [manifest(name) for name in KERNELS]
