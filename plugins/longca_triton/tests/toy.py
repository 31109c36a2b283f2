"""A flash kernel whose four launches are PyTorch's, for tests of the adapter and the tuning."""

from __future__ import annotations

import torch

from longca.masks import Form
from longca_builtin.naive import Naive
from longca_triton.config import Config, Configs
from longca_triton.kernel import FlashKernel, FlashPlan

IN_USE = Configs(Config(64, 32, 4, 2), Config(32, 64, 4, 2), Config(64, 64, 8, 2))
BROKEN = Config(1, 1, 1, 1)  # does not compile
WRONG = Config(2, 2, 2, 2)  # gives other results
UNWRITTEN = Config(3, 3, 2, 2)  # writes nothing


class Launches:
    """Attention by the book, unless a configuration is broken. `calls` are the launches, with their configurations."""

    def __init__(self):
        self.calls = []

    def _writes(self, kernel, plan, results, values):
        config = getattr(plan.configs, kernel)
        self.calls.append((kernel, config))
        if config == BROKEN:
            raise RuntimeError("out of resource: shared memory\nRequired: 300000")
        if config == UNWRITTEN:
            return
        for result, value in zip(results, values, strict=True):
            assert result.stride(-1) == 1 or result.dim() == 2
            result.copy_(value * 1.5 if config == WRONG else value)

    def launch_attend(self, q, k, v, out, lse, plan):
        assert all(x.stride(-1) == 1 for x in (q, k, v))
        naive = Naive()
        self._writes("forward", plan, (out, lse), naive.forward(q, k, v, naive.plan(plan.problem)))

    def launch_prepare(self, dout, out, lse, plan):
        return torch.stack([lse, torch.einsum("thd,thd->ht", dout.float(), out.float())])

    def _gradients(self, dout, q, k, v, prepared, plan):
        # Naive's backward takes the output; what it needs of it is the sum of dout·out alone, which any output
        # along dout has too.
        share = prepared[1].T[..., None] / dout.double().square().sum(-1, keepdim=True)
        naive = Naive()
        return naive.backward(dout, q, k, v, (share * dout).to(torch.float64), prepared[0], naive.plan(plan.problem))

    def launch_dkdv(self, dout, q, k, v, prepared, dk, dv, plan):
        self._writes("dkdv", plan, (dk, dv), self._gradients(dout, q, k, v, prepared, plan)[1:])

    def launch_dq(self, dout, q, k, v, prepared, dq, plan):
        self._writes("dq", plan, (dq,), self._gradients(dout, q, k, v, prepared, plan)[:1])


class Toy(FlashKernel[FlashPlan]):
    """The kernel."""

    def __init__(self, configs=None):
        super().__init__(configs)
        self._launches = Launches()

    def plan(self, problem):
        return FlashPlan(problem, Form.DENSE, "torch", self.configs or IN_USE)

    @property
    def launches(self):
        return self._launches
