"""The jobs of traffic: what ranks send, and the buffers that it comes to."""

from functools import partial
from unittest import mock

import torch
import torch.distributed as dist
from jobs import attend, inputs, mask_of, mesh_of, problem_of, rank_of
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import longca
from longca.kernels.operators import ATTENTION_OPERATORS
from longca.parallel.pushes import watched
from longca_bench.measuring.traffic import Recorder, repeat, sent_by_kind
from longca_builtin.naive import Naive


def sent(strategy, sizes, kind, seqlen, factors, placement, heads):
    """Bytes that this rank sends, by kind, forward and then backward."""
    mask, mesh = mask_of(kind, seqlen, factors), mesh_of(sizes)
    layout = longca.layout(
        mask, strategy=strategy, mesh=mesh, placement=placement, heads=heads, head_dim=8, dtype="float32"
    )
    q, k, v, dout = (layout.shard(x, rank_of(sizes, None)) for x in inputs(seqlen, heads, "float32"))
    made = longca.registry().load_strategy(strategy)(mesh)
    plan, kept = made.plan(problem_of(mask, q, k), layout, Naive()), []
    with Recorder() as forward:
        out, lse = made.forward(q, k, v, plan, kept=kept)
    with Recorder() as backward:
        made.backward(dout, q, k, v, out, lse, plan, kept=kept)
    return tuple(dict(sent_by_kind(recorder.collectives)) for recorder in (forward, backward))


def sent_with_sinks(strategy, sizes, transport):
    """Bytes that a forward and backward send, by kind, with sinks and without them."""
    mask, mesh = mask_of("causal", 40, ()), mesh_of(sizes)
    about = {"strategy": strategy, "mesh": mesh, "kernel": "naive"}
    layout = longca.layout(mask, heads=(8, 4), head_dim=8, dtype="float64", **about)
    given = [layout.shard(x, rank_of(sizes, None)) for x in inputs(40, (8, 4), "float64")]
    found = []
    for more in ({"sinks": torch.zeros(8, dtype=torch.float64)}, {}):
        attend(mask, given, transport=transport, **about, **more)  # ranks agree on the first call
        with watched() as pushes, Recorder() as recorder:
            attend(mask, given, transport=transport, **about, **more)
        recorder.add(pushes)
        found.append(dict(sent_by_kind(recorder.collectives)))
    return found


def pushed_again(strategy, sizes, kind, factors):
    """Bytes of a forward and backward that leave this rank, by kind, and whether a call after more pushes is right."""
    mesh, seqlen, heads = mesh_of(sizes), 40, (8, 2)
    mask, given = mask_of(kind, seqlen, factors), inputs(seqlen, heads, "float64")
    about = {"strategy": strategy, "mesh": mesh, "kernel": "naive"}
    layout = longca.layout(mask, heads=heads, head_dim=8, dtype="float64", placement="contiguous", **about)
    mine = [layout.shard(x, mesh.get_rank()) for x in given]
    about |= {"placement": layout, "transport": "copy_engine"}
    before = attend(mask, mine, **about)
    with watched() as pushes, Recorder() as recorder:
        attend(mask, mine, **about)
    dist.barrier()
    recorder.add(pushes)
    sizes_sent = sent_by_kind(recorder.collectives)
    repeat([each for each in recorder.collectives if each.kind == "push"])
    dist.barrier()
    return dict(sizes_sent), all(map(torch.equal, before, attend(mask, mine, **about)))


def checkpointed(strategy, sizes, kind, factors, with_sinks):
    """Collectives and kernel forwards of a training step without a checkpoint, with one, and with a selective one.

    The third value of each is whether its gradients are those of the first.
    """
    mesh, heads, forwards = mesh_of(sizes), (8, 2), []
    mask, given = mask_of(kind, 40, factors), inputs(40, heads, "float64")
    about = {"strategy": strategy, "mesh": mesh, "kernel": "naive"}
    layout = longca.layout(mask, heads=heads, head_dim=8, dtype="float64", **about)
    *qkv, dout = (layout.shard(x, rank_of(sizes, None)) for x in given)
    leaves = [x.clone().requires_grad_() for x in (*qkv, *[torch.linspace(-1, 1, 8)] * with_sinks)]
    naive = Naive.forward

    def layer(q, k, v, sinks=None):
        return longca.attention(q * 1, k * 1, v * 1, mask, sinks=sinks, placement=layout, **about) * 2

    def counted(*call, **buffers):
        forwards.append(call)
        return naive(*call, **buffers)

    found, wanted = [], None
    selective = partial(create_selective_checkpoint_contexts, ATTENTION_OPERATORS)
    for options in (None, {}, {"context_fn": selective}):
        forwards.clear()
        with mock.patch.object(Naive, "forward", counted), torch.autograd.profiler.profile() as profile:
            out = layer(*leaves) if options is None else checkpoint(layer, *leaves, use_reentrant=False, **options)
            gradients = torch.autograd.grad(out, leaves, dout)
        wanted = wanted or gradients
        moves = sum(event.name.startswith("c10d::") for event in profile.function_events)
        found.append((moves, len(forwards), all(map(torch.equal, gradients, wanted))))
    return found
