"""Kernels that are wrong, each in one way, in a plugin of their own; and one that is right."""

from __future__ import annotations

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
        return super().forward(q, k, v, plan, **buffers)


class Zeros(Base):
    def forward(self, *arguments, **buffers):
        out, lse = super().forward(*arguments, **buffers)
        return out.zero_(), lse


class WritesNaN(Base):
    def forward(self, *arguments, **buffers):
        out, lse = super().forward(*arguments, **buffers)
        out[-1, -1, -1] = torch.nan
        return out, lse


class LeavesOutput(Base):
    """Returns the buffers without a look at them."""

    def forward(self, q, k, v, plan, *, out=None, lse=None):
        right = super().forward(q, k, v, plan)
        return right[0] if out is None else out, right[1] if lse is None else lse


class SkipsLastTile(Base):
    """Queries from 256 on are left at zero, as if there were two tiles of 128."""

    def forward(self, q, k, v, plan, **buffers):
        out, lse = super().forward(q, k, v, plan, **buffers)
        if q.shape[0] > 256:
            out[256:] = 0
        return out, lse


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
    def forward(self, *arguments, **buffers):
        out, lse = super().forward(*arguments, **buffers)
        return (out.mul_(1.01) if self.calls % 11 == 0 else out), lse


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

    def forward(self, *arguments, **buffers):
        out, lse = super().forward(*arguments, **buffers)
        return (out.mul_(1 + 2**-22) if self.calls % 2 else out), lse


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
        if self.last.problem.mask.seqlen_q == q.shape[0]:
            return super().forward(q, k, v, plan, **buffers)
        out, lse = super().forward(q, k, v, plan, **buffers)
        return out.zero_(), lse


class Raises(Base):
    def forward(self, *arguments, **buffers):
        raise RuntimeError("no such tile")


class NoBackward:
    def plan(self, problem):
        return None

    def forward(self, q, k, v, plan):
        return q, k


KERNELS = {
    "right": Base,
    "zeros": Zeros,
    "writes_nan": WritesNaN,
    "leaves_output": LeavesOutput,
    "skips_last_tile": SkipsLastTile,
    "wrong_dk": WrongDk,
    "wrong_shape": WrongShape,
    "wrong_dtype": WrongDtype,
    "alias": Alias,
    "changes_inputs": ChangesInputs,
    "ignores_strides": IgnoresStrides,
    "once_in_many": OnceInMany,
    "caches_by_pointer": CachesByPointer,
    "not_deterministic": NotDeterministic,
    "plans_another_form": PlansAnotherForm,
    "keeps_its_last_plan": KeepsItsLastPlan,
    "raises": Raises,
    "no_backward": NoBackward,
}


def manifest(name: str) -> KernelManifest:
    offer = Offer(
        form=Form.CAUSAL,
        unequal_lengths=True,
        backward=Backward.EXTERNAL,
        dtypes=("float32",),
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
