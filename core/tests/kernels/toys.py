"""Small kernels and a registry of them, for tests that are about neither the core's kernels nor the plugins."""

import torch

from longca.discovery import PluginInfo
from longca.errors import UnknownNameError
from longca.kernels.base import Plan, fill
from longca.kernels.lse_grad import backward_through_lse
from longca.manifests import Backward, KernelManifest, Offer, resolve_manifest
from longca.masks import Form
from longca.plugins import call_function
from longca_advice.devices import evidence_name
from longca_advice.evidence import Row, Run
from longca_advice.history import append
from longca_advice.work import work_of
from longca_builtin.naive import Naive

from .reference import softmax_attention, visible_by_head


def manifest(name, **offer):
    """A manifest with one offer: everything on CPUs, unless said otherwise."""
    everything = {
        "form": Form.DENSE,
        "mask_heads": "query",
        "unequal_lengths": True,
        "backward": Backward.EXTERNAL,
        "dtypes": ("float64", "float32", "bfloat16", "float16"),
        "cpu": True,
        "metadata": "O(1)",
    }
    return KernelManifest(
        name=name,
        family="toy",
        title=name,
        upstream="https://example.org",
        license="MIT",
        implementation="nowhere:Nothing",
        offers=(Offer.model_validate({**everything, **offer}),),
    )


def measured(kernel, seconds, problem, form=Form.DENSE, **changes):
    """Adds a measurement of a problem's direction to this machine's history, some of its facts changed."""
    device, mask = problem.device, problem.concrete_mask
    run = Run(run="this machine", device=changes.pop("device", evidence_name(device)), capability=device.capability)
    facts = {
        "kernel": kernel,
        "direction": problem.direction,
        "seconds": seconds,
        "pattern": mask.pattern,
        "seqlen": mask.seqlen_q,
        "density": mask.density,
        "heads_q": problem.heads_q,
        "heads_kv": problem.num_heads_kv,
        "head_dim": problem.head_dim,
        "dtype": problem.dtype,
        "work": tuple(vars(work_of(mask, form)).values()),
        "run": run,
    }
    append(Row(**{**facts, **changes}))


class Toys:
    """A registry of toys: as much of `longca.plugins.Registry` as attention asks for."""

    plugins = ()

    def __init__(self, *manifests, **implementations):
        self.kernels = {m.name: m for m in manifests}
        self.implementations = implementations

    def extended(self, known):
        return self

    def manifest(self, kernel):
        if kernel not in self.kernels:
            raise UnknownNameError("kernel", kernel, self.kernels)
        return self.kernels[kernel]

    def provider(self, kernel):
        return PluginInfo("toys", "toys", "1", "toys")

    def resolve(self, kernel, problem, layout=None, *, anywhere=False):
        return resolve_manifest(self.manifest(kernel), problem, layout)

    def call(self, manifest, field, *arguments):
        return call_function(manifest, field, arguments, "toys")

    def load(self, kernel):
        return self.implementations[kernel]


class Counting(Naive):
    """naive, with a list of its problems."""

    def __init__(self):
        self.planned, self.forwards, self.backwards = [], 0, 0
        self.douts_were_contiguous = []

    def plan(self, problem):
        self.planned.append(problem)
        return super().plan(problem)

    def forward(self, *args, **kwargs):
        self.forwards += 1
        return super().forward(*args, **kwargs)

    def backward(self, dout, *args, **kwargs):
        self.backwards += 1
        self.douts_were_contiguous.append(dout.is_contiguous())
        return super().backward(dout, *args, **kwargs)


class Differentiable:
    """A kernel that is differentiable in (out, lse) and no more."""

    def plan(self, problem):
        return Plan(problem, Form.DENSE, "einsum")

    def forward(self, q, k, v, plan, *, out=None, lse=None):
        result, sums = self._attend(q, k, v, plan)
        return fill(out, result), fill(lse, sums)

    def backward(self, dout, q, k, v, out, lse, plan, *, dq=None, dk=None, dv=None):
        grads = backward_through_lse(lambda *qkv: self._attend(*qkv, plan), dout, q, k, v, out, lse)
        return tuple(fill(buffer, grad) for buffer, grad in zip((dq, dk, dv), grads, strict=True))

    def _attend(self, q, k, v, plan):
        wide = torch.promote_types(q.dtype, torch.float32)
        visible = visible_by_head(plan.problem.concrete_mask, q.shape[1])
        out, lse = softmax_attention(q.to(wide), k.to(wide), v.to(wide), visible, plan.problem.scale)
        return out.to(q.dtype), lse
