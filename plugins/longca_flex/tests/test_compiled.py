"""The number of compilations: one program of a kind serves every mask and length."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend
from torch.fx.experimental.symbolic_shapes import statically_known_true

from longca import Device, Problem, masks
from longca_flex.flex import Flex

OPERATORS = ("flex_attention", "_operator")


class Watching:
    """A backend that records graphs and runs them unchanged."""

    def __init__(self, name="eager"):
        self.graphs = []
        self._inner = lookup_backend(name)

    def __call__(self, graph, examples):
        self.graphs.append(graph)
        return self._inner(graph, examples)

    def lengths(self):
        """The lengths of the queries in each graph."""
        for graph in self.graphs:
            (call,) = [n for n in graph.graph.nodes if any(name in str(n.target) for name in OPERATORS)]
            yield call.args[0].meta["example_value"].shape[2]


@pytest.fixture
def watched():
    torch._dynamo.reset()
    yield (backend := Watching()), Flex(backend)
    torch._dynamo.reset()


def run(kernel, mask, heads=(4, 2), scale=None, dtype="float32", direction="backward"):
    asked = Problem(
        mask=mask,
        heads_q=heads[0],
        heads_kv=heads[1],
        head_dim=16,
        dtype=dtype,
        device=Device("cpu"),
        direction=direction,
        softmax_scale=scale,
    )
    made = getattr(torch, dtype)
    q, dout = (torch.randn(mask.seqlen_q, heads[0], 16).to(made) for _ in range(2))
    k, v = (torch.randn(mask.seqlen_k, heads[1], 16).to(made) for _ in range(2))
    plan = kernel.plan(asked)
    out, lse = kernel.forward(q, k, v, plan)
    if direction == "backward":
        kernel.backward(dout, q, k, v, out, lse, plan)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lengths", [(256, 640), (130, 77)])
def test_one_program_a_direction_for_every_mask_and_length(watched, lengths):
    backend, kernel = watched
    drawn = [
        masks.sample(name, seqlen, lengths="pile", seed=seqlen)
        for seqlen in lengths
        for name, pattern in masks.PATTERNS.items()
        if not pattern.admits(masks.Form.BLOCK_SPARSE)
    ]
    drawn.append(masks.build("full", lengths[0], seqlen_k=lengths[1]))
    for mask in drawn:
        run(kernel, mask)
    intervals = {len(mask.row_intervals()[0]) for mask in drawn}
    assert intervals == {1, 2}
    assert len(backend.graphs) == 2 * len(intervals)


def test_a_length_is_known_to_be_whole_blocks_and_no_more(watched):
    backend, kernel = watched
    for seqlen in (256, 300):
        run(kernel, masks.build("causal", seqlen))
    whole = [statically_known_true(length % 128 == 0) for length in backend.lengths()]
    assert whole == [True, True, False, False]
    assert all(isinstance(length, torch.SymInt) for length in backend.lengths())


def test_kinds_of_problems_are_compiled_apart_and_have_no_limit(watched):
    backend, kernel = watched
    for heads_kv in (1, 2, 4):
        for scale in (0.25, 0.5, 1.0):
            run(kernel, masks.build("causal", 256), (4, heads_kv), scale, direction="forward")
    assert len(backend.graphs) == 9  # more than the 8 after which PyTorch gives up
