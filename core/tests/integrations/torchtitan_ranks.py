"""One rank of a tiny Llama of torchtitan with LongCA. It compares a step with an oracle, and prints what it finds.

The model, its parallelize, the trainer's hook and the definition of masks are torchtitan's own. torchtitan wants the
FSDP of a newer PyTorch, which sums gradients over the ranks of context parallelism too. So they are summed here, and
PyTorch's `fully_shard` shards over the data-parallel ranks alone.

    torchrun --nproc-per-node 2 torchtitan_ranks.py
    torchrun --nproc-per-node 4 torchtitan_ranks.py fsdp

It runs with torchtitan 0.3.0, whose tensors have rows, and with its main of August 2026, which packs rows beforehand.
"""

import inspect
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
from longca.integrations.torchtitan import LongCAAttention, prepare_batch

sys.path.append(str(Path(__file__).parents[3] / "docs" / "examples" / "torchtitan"))
from longca_trainer import LongCATrainer, llama3_8b_longca

WINDOWS = ((-1, 0), (4, 0))
RATE = 0.05
#: torchtitan's main has no dim of rows. Its masks, embeddings and attentions have other names and shapes.
IS_FOLDED = "max_context_length" in inspect.signature(llama3.ComplexRoPE.Config).parameters
LONGEST = "max_context_length" if IS_FOLDED else "max_seq_len"


class Oracle(titan.Module):
    """Dense attention under torchtitan's own mask functions."""

    def __init__(self, window):
        super().__init__()
        self.window = window

    def forward(self, q, k, v, *, attention_masks, scale=None, enable_gqa=False):
        left, _ = self.window
        band = titan.get_causal_mask_mod() if left < 0 else titan.get_sliding_window_mask_mod(left + 1)
        mods = band, titan.get_document_mask_mod(attention_masks)
        rows, tokens = (1, *attention_masks.shape) if IS_FOLDED else attention_masks.shape
        b, q_idx, k_idx = torch.arange(rows)[:, None, None], torch.arange(tokens)[:, None], torch.arange(tokens)
        seen = mods[0](b, 0, q_idx, k_idx) & mods[1](b, 0, q_idx, k_idx)
        q, k, v = (
            x.unflatten(0, (rows, tokens)).transpose(1, 2) if IS_FOLDED else x.transpose(1, 2) for x in (q, k, v)
        )
        out = scaled_dot_product_attention(q, k, v, seen.expand(rows, -1, -1)[:, None], scale=scale, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1) if IS_FOLDED else out.transpose(1, 2)


def tiny():
    """The config of two layers, causal and a window, with grouped queries and LongCA."""
    config = llama3.llama3_configs["debugmodel"]("flex")
    layers = llama3._build_llama3_layers(
        n_layers=2, dim=256, n_heads=4, n_kv_heads=2, hidden_dim=64, attn_backend="flex",
        rope=llama3.ComplexRoPE.Config(dim=64, theta=10000, **{LONGEST: 64}),
    )  # fmt: skip
    for layer, window in zip(layers, WINDOWS, strict=True):
        layer.attention.inner_attention = LongCAAttention.Config(window_size=window)
    config.layers = layers
    return config


def batch(step=0):
    """Two rows with other documents in each, of lengths that no number of ranks divides."""
    random, more = torch.Generator().manual_seed(1 + step % 2), step % 5
    rows = (9 + more, 13 - more, 7), (1, 17 - more, 11 + more)
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in rows])
    tokens = torch.randint(0, 2048, (*positions.shape, 2), generator=random)
    inputs, labels = {"input": tokens[..., 0], "positions": positions}, tokens[..., 1]
    if IS_FOLDED:
        return {name: x.flatten() for name, x in inputs.items()}, labels.flatten()
    return inputs, labels


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


def losses(model, dims, parallelism, is_sharded):
    """The losses of 20 steps, whose documents differ."""
    told = []
    for step in range(20):
        inputs, labels = batch(step)
        loss, *gradients = trained(model, dims, parallelism, inputs, labels, labels.numel())[0]
        for each in (loss, *gradients) if is_sharded else ():
            dist.all_reduce(each)
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight -= RATE * gradient
        told.append(loss.item())
    return told


def fully_sharded(dims, parallelism):
    """The error of a step's gradients with FSDP2 over the data-parallel ranks, each of which has one of the rows."""
    wanted, model, mesh = expected(parallelism)[1:], built(parallelism), dims.get_mesh("dp_shard")
    model.parallelize(dims)
    for part in (*model.layers.values(), model):
        fully_shard(part, mesh=mesh)
    inputs, labels = batch()
    rows, row = labels.numel() // 2, mesh.get_local_rank()
    mine = [x.view(2, rows)[row] if IS_FOLDED else x[row : row + 1] for x in (*inputs.values(), labels)]
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
    told = {}

    def said(name, call, *arguments, **options):
        try:
            call(*arguments, **options)
            told[name] = ""
        except LongCAError as error:
            told[name] = str(error)

    class OwnMasks(llama3.Llama3Model):
        def get_attention_masks(self, positions):
            return {}

    masks = trained(model, dims, parallelism, inputs, labels, labels.numel())[2]["attention_masks"]
    said("no masks", inner, q, q, q)
    said("score_mod", inner, q, q, q, attention_masks=masks, score_mod=lambda score, *_: score)
    said("out_transform", inner, q, q, q, attention_masks=masks, out_transform=lambda out, lse: out)
    said("latents", inner, q, q, q[..., :4], attention_masks=masks)
    said("no positions", prepare_batch, [model], {"input": inputs["input"]}, labels)
    said("no layers", prepare_batch, [model.norm], inputs, labels)
    said("pixels", prepare_batch, [model], {**inputs, "pixels": labels}, labels)
    model.__class__ = OwnMasks
    said("own masks", prepare_batch, [model], inputs, labels)
    model.__class__ = llama3.Llama3Model
    model.layers["1"].attention.inner_attention.config.strategy = "ulysses"
    said("two strategies", prepare_batch, [model], inputs, labels)
    other = LongCAAttention.Config().build()
    said("partial_dtensor", other.parallelize, SimpleNamespace(tp=1, cp_enabled=True, spmd_backend="partial_dtensor"))
    return told


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
    alone = losses(built(parallelism), dims, parallelism, False)
    found, mine, _, trainer = trained(model, dims, parallelism, *whole)
    told["one device"] = {"off": off(found, wanted), "tokens": trainer.ntokens_seen, "shape": list(mine.shape)}
    model.parallelize(dims)
    for strategy in ("auto", "ulysses", "ring_p2p", "ring_all_gather"):
        with_strategy(model, strategy)
        found, mine, arguments, trainer = trained(model, dims, parallelism, *whole)
        for each in found:
            dist.all_reduce(each)
        taken = {placed.strategy for placed in arguments["attention_masks"].layouts.values()}
        told[strategy] = {"off": off(found, wanted), "tokens": trainer.ntokens_seen, "shape": list(mine.shape)}
        assert strategy == "auto" or taken == {strategy}, taken
    with_strategy(model, "ring_p2p")
    told["losses"] = alone, losses(model, dims, parallelism, True)
    messages, every = refused(model, dims, parallelism), [None] * world
    config = llama3_8b_longca()
    made = {layer.attention.inner_attention.kernel for layer in config.model_spec.model.layers}
    dist.all_gather_object(every, told)
    hook = {"trainer": type(config)._owner.__name__, "kernels": sorted(made)}
    return {"off": every, "refused": messages, "config": hook}


if __name__ == "__main__":
    main()
