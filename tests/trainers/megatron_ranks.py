"""One rank of Megatron's self-attention with LongCA. It compares steps with Megatron's own, and prints what it finds.

The layer, its shards and its rotary embeddings are Megatron's own. The reference is the layer with Megatron's
`DotProductAttention` on one device, document by document. Its helpers that name CUDA are replaced, and nothing else.

    torchrun --nproc-per-node 2 megatron_ranks.py
"""

import contextlib
import json
import sys
import types
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.fusions import fused_softmax
from megatron.core.models.common.embeddings.rope_utils import _get_thd_freqs_on_this_cp_rank
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import dot_product_attention
from megatron.core.transformer.spec_utils import build_module
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank

from longca.errors import LongCAError

sys.path.append(str(Path(__file__).parents[2] / "docs" / "examples" / "megatron"))
from longca_megatron import with_longca

WIDTH, HEAD_DIM = 32, 8
#: Documents of tokens, with their padding to chunks of 4 ranks at most.
PADDED, REAL = (16, 40, 8, 24), (13, 40, 3, 24)


def without_cuda():
    """Replaces the helpers of Megatron's reference that ask for a CUDA device."""
    memory = types.SimpleNamespace(get_tensor=lambda shape, dtype, name: torch.empty(shape, dtype=dtype))
    parallel_state.get_global_memory_buffer = lambda: memory
    tracker = types.SimpleNamespace(fork=contextlib.nullcontext)
    dot_product_attention.tensor_parallel.get_cuda_rng_tracker = tensor_parallel.get_cuda_rng_tracker = lambda: tracker
    ones = lambda s: torch.ones(s, s, dtype=torch.bool)  # noqa: E731
    fused_softmax.get_default_causal_mask = lambda s: ones(s).triu(1)
    fused_softmax.get_sliding_window_causal_mask = lambda s, _, w: ~ones(s).triu(-w[0]).tril(w[1])


def layer(params, ranks, groups, window=None, comm="p2p", **settings):
    """A self-attention layer with the same weights each time: Megatron's own, or with LongCA if it has parameters."""
    given = {"attention_dropout": 0.0, "window_size": window, **settings}
    config = TransformerConfig(
        num_layers=1, hidden_size=WIDTH, num_attention_heads=4, num_query_groups=2, kv_channels=HEAD_DIM,
        context_parallel_size=ranks, use_cpu_initialization=True, params_dtype=torch.float64, add_bias_linear=False,
        masked_softmax_fusion=False, gradient_accumulation_fusion=False, **given,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec()
    spec = spec if params is None else with_longca(spec, **params)
    torch.manual_seed(0)
    groups = groups if ranks > 1 else ProcessGroupCollection(tp=groups.tp, cp=groups.tp)  # a group of one rank
    return build_module(
        spec.submodules.self_attention, config=config, layer_number=1, cp_comm_type=comm, pg_collection=groups
    )


def angles(positions):
    """The angles of rotary embeddings [tokens, 1, 1, head dim]."""
    half = positions[:, None] * 10000.0 ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
    return torch.cat([half, half], -1)[:, None, None]


def step(model, hidden, target, embedding, packed=None):
    """The output of a layer, and the gradients of its input and its weights."""
    model.zero_grad()
    hidden = hidden.detach().clone().requires_grad_()
    out, _ = model(hidden, None, rotary_pos_emb=embedding, packed_seq_params=packed)
    out.backward(target)
    return out.detach(), hidden.grad, [weight.grad.clone() for weight in model.parameters()]


def off(found, expected):
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(found, expected, strict=True))


def expected_of(model, hidden, target, lengths):
    """Megatron's own results for packed documents [tokens, 1, width], each alone."""
    parts = zip(hidden.split(lengths), target.split(lengths), strict=True)
    steps = [step(model, h, t, angles(torch.arange(len(h), dtype=torch.float64))) for h, t in parts]
    weights = [sum(grads) for grads in zip(*(grads for _, _, grads in steps), strict=True)]
    return torch.cat([out for out, _, _ in steps]), torch.cat([grad for _, grad, _ in steps]), weights


def sequences(group, groups, ranks, window, comm):
    """A batch of two sequences. Returns the largest relative difference."""
    hidden, target = torch.randn(2, 48, 2, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    positions = torch.arange(48, dtype=torch.float64)
    own = layer(None, 1, groups, window)
    out, grad, weights = step(own, hidden, target, angles(positions))
    mine = {"hidden": hidden.transpose(0, 1), "target": target.transpose(0, 1), "out": out.transpose(0, 1)}
    mine |= {"grad": grad.transpose(0, 1), "positions": positions[None]}
    if ranks > 1:
        mine = get_batch_on_this_cp_rank(mine, group)
    model = layer({}, ranks, groups, window, comm)
    h, t = (mine[name].transpose(0, 1) for name in ("hidden", "target"))
    found = step(model, h, t, angles(mine["positions"][0]))
    reduce(found[2], group, ranks)
    return off([*found[:2], *found[2]], [*(mine[n].transpose(0, 1) for n in ("out", "grad")), *weights])


def reduce(gradients, group, ranks):
    """Sums the gradients of weights over the ranks, as Megatron does."""
    for each in gradients if ranks > 1 else ():
        dist.all_reduce(each, group=group)


def documents(group, groups, ranks, window, comm, real):
    """Packed documents, with padding between them if `real` has fewer tokens. Returns the largest difference."""
    bounds = torch.tensor([0, *PADDED]).cumsum(0).int()
    tokens = int(bounds[-1])
    shown = torch.cat([torch.arange(n) < r for n, r in zip(PADDED, real, strict=True)])
    hidden, target = torch.randn(
        2, tokens, 1, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(4)
    ) * shown.double().reshape(-1, 1, 1)
    own = layer(None, 1, groups, window)
    out, grad, weights = expected_of(own, hidden[shown], target[shown], real)
    whole = {"out": torch.zeros_like(hidden), "grad": torch.zeros_like(hidden)}
    whole["out"][shown], whole["grad"][shown] = out, grad
    # Megatron's shards of packed documents, by the function that takes the rows of rotary embeddings apart.
    places = torch.arange(tokens)
    rank = group.rank() if ranks > 1 else 0
    starts = zip(PADDED, bounds.tolist(), strict=False)
    shards = [_get_thd_freqs_on_this_cp_rank(rank, ranks, torch.empty(n // ranks), places, at) for n, at in starts]
    mine = torch.cat(shards)
    inner, padded = torch.tensor([0, *real]).cumsum(0).int(), bounds if real != PADDED else None
    packed = PackedSeqParams("thd", inner, inner, padded, padded, max(PADDED), max(PADDED))
    model = layer({}, ranks, groups, window, comm)
    found = step(model, hidden[mine], target[mine], angles(torch.arange(64, dtype=torch.float64)), packed)
    reduce(found[2], group, ranks)
    seen = shown[mine]
    parts = [found[0][seen], found[1][seen], *found[2]]
    return off(parts, [whole["out"][mine][seen], whole["grad"][mine][seen], *weights])


def refused(groups):
    """What LongCA says to settings and calls that it does not compute, by their names."""
    odd = PackedSeqParams("thd", torch.tensor([0, 3, 8]), torch.tensor([0, 3, 8]))
    q, short = torch.randn(8, 1, 4, HEAD_DIM), torch.randn(4, 1, 4, HEAD_DIM)
    thd = q[:4, 0]

    def built(ranks=1, comm="p2p", **settings):
        return layer({}, ranks, groups, None, comm, **settings).core_attention

    core, parallel, messages = built(), built(2), {}
    calls = {
        "attention_dropout": lambda: built(attention_dropout=0.1),
        "softmax_type": lambda: built(softmax_type="learnable"),
        "window_size": lambda: built(window_size=(4, 4)),
        "cp_comm_type": lambda: built(2, "a2a"),
        "attention_mask": lambda: core(q, q, q, torch.ones(1, 1, 8, 8).triu(1).bool()),
        "decode": lambda: core(short, q, q),
        "odd": lambda: parallel(thd, thd, thd, packed_seq_params=odd),
    }
    for name, call in calls.items():
        try:
            call()
        except LongCAError as error:
            messages[name] = str(error)
    return messages


def main():
    dist.init_process_group("gloo")
    without_cuda()
    parallel_state.initialize_model_parallel(context_parallel_size=2)
    groups = ProcessGroupCollection.use_mpu_process_groups(["tp", "cp", "pp", "embd"])
    group, found = groups.cp, {}
    for ranks, comm in ((1, "p2p"), (2, "p2p"), (2, "all_gather")):
        for window in (None, (5, 0)):
            about = f"{ranks} ranks, {comm}, window {window}"
            found[f"sequences, {about}"] = sequences(group, groups, ranks, window, comm)
            found[f"documents, {about}"] = documents(group, groups, ranks, window, comm, PADDED)
            found[f"padded documents, {about}"] = documents(group, groups, ranks, window, comm, REAL)
    every = [None] * 2
    dist.all_gather_object(every, found)
    if dist.get_rank() == 0:
        print(json.dumps({"off": every, "refused": refused(groups)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
