"""One rank of a tiny Llama of torchtitan with LongCA. It compares a step with an oracle, and prints what it finds.

The model, its parallelize, the trainer's hook and the definition of masks are torchtitan's own. torchtitan wants the
FSDP of a newer PyTorch, which sums gradients over the ranks of context parallelism too. So they are summed here, and
PyTorch's `fully_shard` shards over the data-parallel ranks alone.

    torchrun --nproc-per-node 2 torchtitan_ranks.py
    torchrun --nproc-per-node 4 torchtitan_ranks.py fsdp
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import scaled_dot_product_attention
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed import parallel_dims as dims_module
from torchtitan.distributed import utils as dist_utils
from torchtitan.models import llama3
from torchtitan.models.common import attention as titan

from longca.errors import LongCAError

sys.path.append(str(Path(__file__).parents[2] / "docs" / "examples" / "torchtitan"))
from longca_trainer import LongCAAttention, LongCATrainer, llama3_8b_longca, prepare_batch

WINDOWS = ((-1, 0), (4, 0))


class Oracle(titan.Module):
    """Dense attention under torchtitan's own mask functions."""

    def __init__(self, window):
        super().__init__()
        self.window = window

    def forward(self, q, k, v, *, attention_masks, scale=None, enable_gqa=False):
        left, _ = self.window
        band = titan.get_causal_mask_mod() if left < 0 else titan.get_sliding_window_mask_mod(left + 1)
        mods = band, titan.get_document_mask_mod(attention_masks)
        rows, tokens = attention_masks.shape
        b, q_idx, k_idx = torch.arange(rows)[:, None, None], torch.arange(tokens)[:, None], torch.arange(tokens)
        seen = mods[0](b, 0, q_idx, k_idx) & mods[1](b, 0, q_idx, k_idx)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, seen.expand(rows, -1, -1)[:, None], scale=scale, enable_gqa=True)
        return out.transpose(1, 2)


def tiny():
    """The config of two layers, causal and a window, with grouped queries and LongCA."""
    config = llama3.llama3_configs["debugmodel"]("flex")
    layers = llama3._build_llama3_layers(
        n_layers=2, dim=256, n_heads=4, n_kv_heads=2, hidden_dim=64, attn_backend="flex",
        rope=llama3.ComplexRoPE.Config(dim=64, theta=10000, max_seq_len=64),
    )  # fmt: skip
    for layer, window in zip(layers, WINDOWS, strict=True):
        layer.attention.inner_attention = LongCAAttention.Config(window_size=window)
    config.layers = layers
    return config


def batch():
    """Two rows with other documents in each, of lengths that no number of ranks divides."""
    random, rows = torch.Generator().manual_seed(1), ((9, 13, 7), (1, 17, 11))
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in rows])
    tokens = torch.randint(0, 2048, (*positions.shape, 2), generator=random)
    return {"input": tokens[..., 0], "positions": positions}, tokens[..., 1]


def loss_and_gradients(model, inputs, labels, tokens, arguments):
    """The summed loss over the batch's tokens, and the gradients of all weights, of all ranks together."""
    model.zero_grad()
    loss = cross_entropy_loss(model(inputs, **arguments), labels) / tokens
    loss.backward()
    return [loss.detach(), *(weight.grad.clone() for weight in model.parameters())]


def built(parallelism):
    """The model on every rank, with the same weights in float64."""
    config = tiny()
    config.update_from_config(config=SimpleNamespace(parallelism=parallelism))
    torch.manual_seed(0)
    model = config.build()
    model.init_states()
    for weight in model.parameters():
        weight.data = weight.data.double()  # the cache of rotary embeddings stays complex, and in float32
    return model


def expected(parallelism):
    """The loss and the gradients of the oracle."""
    model = built(parallelism)
    for layer, window in zip(model.layers.values(), WINDOWS, strict=True):
        layer.attention.inner_attention = Oracle(window)
    inputs, labels = batch()
    arguments = {"positions": inputs["positions"], "attention_masks": inputs["positions"]}
    return loss_and_gradients(model, inputs["input"], labels, labels.numel(), arguments)


def off(found, expected):
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(found, expected, strict=True))


def trained(model, dims, parallelism, inputs, labels, tokens):
    """A step through the trainer's hook: the loss and the gradients of this rank, its batch, and the trainer."""
    trainer = LongCATrainer.__new__(LongCATrainer)
    trainer.model_parts, trainer.parallel_dims, trainer.ntokens_seen = [model], dims, 0
    trainer.config = SimpleNamespace(parallelism=parallelism, training=TrainingConfig(mixed_precision_param="float32"))
    with dist_utils.get_spmd_context(parallel_dims=dims)():
        mine, my_labels, arguments = trainer.post_dataloading_process(inputs, labels)
        found = loss_and_gradients(model, mine, my_labels, tokens, arguments)
    return found, mine, arguments, trainer


def fully_sharded(dims, parallelism):
    """The error of a step's gradients with FSDP2 over the data-parallel ranks, each of which has one of the rows."""
    wanted, model, mesh = expected(parallelism)[1:], built(parallelism), dims.get_mesh("dp_shard")
    model.parallelize(dims)
    for part in (*model.layers.values(), model):
        fully_shard(part, mesh=mesh)
    inputs, labels = batch()
    rows, row = labels.numel() // 2, mesh.get_local_rank()
    mine = [x[row : row + 1] for x in (*inputs.values(), labels)]
    _, *gradients = trained(model, dims, parallelism, dict(zip(inputs, mine[:2], strict=True)), mine[2], 2 * rows)[0]
    found = [gradient.full_tensor() * mesh.size() for gradient in gradients]  # FSDP averages
    for each in found:
        dist.all_reduce(each, group=dims.get_mesh("cp").get_group())
    return off(found, wanted)


def with_strategy(model, strategy):
    for layer in model.layers.values():
        layer.attention.inner_attention.config.strategy = strategy


def refused(model, dims, parallelism):
    """What LongCA says to what it does not compute, by a name for each."""
    inputs, labels = batch()
    inner, q = model.layers["0"].attention.inner_attention, torch.randn(1, 8, 4, 8)
    masks = trained(model, dims, parallelism, inputs, labels, labels.numel())[2]["attention_masks"]
    backend = SimpleNamespace(tp=1, cp_enabled=True, spmd_backend="partial_dtensor")

    class OwnMasks(llama3.Llama3Model):
        def get_attention_masks(self, positions):
            return {}

    def with_own_masks():
        model.__class__ = OwnMasks
        try:
            prepare_batch([model], inputs, labels)
        finally:
            model.__class__ = llama3.Llama3Model

    def with_two_strategies():
        model.layers["1"].attention.inner_attention.config.strategy = "ulysses"
        prepare_batch([model], inputs, labels)

    calls = {
        "no masks": lambda: inner(q, q, q),
        "score_mod": lambda: inner(q, q, q, attention_masks=masks, score_mod=lambda score, *_: score),
        "latents": lambda: inner(q, q, q[..., :4], attention_masks=masks),
        "no positions": lambda: prepare_batch([model], {"input": inputs["input"]}, labels),
        "no layers": lambda: prepare_batch([model.norm], inputs, labels),
        "pixels": lambda: prepare_batch([model], {**inputs, "pixels": labels}, labels),
        "own masks": with_own_masks,
        "two strategies": with_two_strategies,
        "partial_dtensor": lambda: LongCAAttention.Config().build().parallelize(backend),
    }
    messages = {}
    for name, call in calls.items():
        try:
            call()
        except LongCAError as error:
            messages[name] = str(error)
    return messages


def main():
    dims_module.device_type = "cpu"
    dist.init_process_group("gloo")
    world, copies = dist.get_world_size(), 2 if "fsdp" in sys.argv else 1
    dist_utils.set_spmd_backend("spmd_types")
    parallelism = ParallelismConfig(context_parallel_degree=world // copies, data_parallel_shard_degree=copies)
    dims = dims_module.ParallelDims.from_config(parallelism, world)
    dims.build_mesh()
    told = {"fsdp": fully_sharded(dims, parallelism)} if copies > 1 else compared(dims, parallelism, world)
    if dist.get_rank() == 0:
        print(json.dumps(told))
    dist.destroy_process_group()


def compared(dims, parallelism, world):
    """What all ranks found, and what they refused."""
    wanted = expected(parallelism)
    model, told = built(parallelism), {}
    inputs, labels = batch()
    whole = inputs, labels, labels.numel()
    found, mine, _, trainer = trained(model, dims, parallelism, *whole)
    told["one device"] = {"off": off(found, wanted), "tokens": trainer.ntokens_seen, "shape": list(mine.shape)}
    model.parallelize(dims)
    for strategy in ("auto", "ulysses", "ring_p2p", "ring_all_gather"):
        with_strategy(model, strategy)
        found, mine, arguments, trainer = trained(model, dims, parallelism, *whole)
        for each in found:
            dist.all_reduce(each)
        taken = {placed.strategy for _, placed in arguments["attention_masks"].values()}
        told[strategy] = {"off": off(found, wanted), "tokens": trainer.ntokens_seen, "shape": list(mine.shape)}
        assert strategy == "auto" or taken == {strategy}, taken
    with_strategy(model, "ring_p2p")
    messages, every = refused(model, dims, parallelism), [None] * world
    config = llama3_8b_longca()
    made = {layer.attention.inner_attention.kernel for layer in config.model_spec.model.layers}
    dist.all_gather_object(every, told)
    hook = {"trainer": type(config)._owner.__name__, "kernels": sorted(made)}
    return {"off": every, "refused": messages, "config": hook}


if __name__ == "__main__":
    main()
