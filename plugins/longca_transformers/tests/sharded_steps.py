"""A step of a model under `context_parallel`, held against that of one device, for `sharded_ranks`."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from models import make
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy

from longca_transformers import context_parallel, register, using

IGNORED = -100
#: Differences relative to the largest value. Norms and weights of some models are float32, whatever their dtype is.
MOST = {"llama": 1e-11, "mistral": 1e-11, "qwen": 1e-11, "gemma": 1e-5, "jetmoe": 1e-11}
MOST |= dict.fromkeys(("gpt_oss", "gemma2", "deepseek"), 1e-5)


def labels_of(batch):
    """Labels whose padding and first tokens of documents do not count, as collators give them."""
    labels = batch["input_ids"].clone()
    if "attention_mask" in batch:
        labels[batch["attention_mask"] == 0] = IGNORED
    if "position_ids" in batch:
        labels[batch["position_ids"] == 0] = IGNORED
    return labels


def whole(cp, shape, local, group):
    """The tensor [rows, tokens, ...] of the local ones [1, Tl, ...] of all ranks."""
    places = cp.shard(torch.arange(shape[0] * shape[1]).view(shape))
    everyones = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, (places[0], local[0].detach()), group)
    out = local.new_zeros(shape[0] * shape[1], *local.shape[2:])
    for where, values in everyones:
        out[where] = values
    return out.view(*shape, *local.shape[2:])


def gradients(model):
    """The gradients of all parameters, by their names."""
    full = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad.clone() for name, grad in full.items()}


def close(found, wanted, most, what):
    torch.testing.assert_close(
        found, wanted, rtol=0, atol=most * max(1e-3, wanted.abs().max().item()), msg=lambda text: f"{what}: {text}"
    )


def same(name, batch, mesh, strategy, implementation="sdpa", most=None, own=None):
    """Logits, gradients of a loss in float64, and the model's own loss and gradients are those of one device."""
    most = most or MOST[name]
    shape, group = batch["input_ids"].shape, mesh.get_group()
    model, labels = make(name), labels_of(batch)
    with using(own) if own is not None else nullcontext():
        register()
        model.set_attn_implementation(implementation)
        logits = model(**batch, use_cache=False).logits
        real = torch.nn.functional.pad(labels, (0, 1), value=IGNORED)[:, 1:]
        cross_entropy(logits.flatten(0, 1), real.flatten(), ignore_index=IGNORED).backward()
        wanted = gradients(model)
        model.zero_grad(set_to_none=True)
        loss = model(**batch, labels=labels, use_cache=False).loss
        loss.backward()
        wanted_loss, wanted_too = loss.detach(), gradients(model)
        model.zero_grad(set_to_none=True)
        cp = context_parallel(model, mesh, strategy)
        mine = model(**batch).logits
        shown = batch.get("attention_mask", torch.ones(shape)).bool()
        close(whole(cp, shape, mine, group)[shown], logits.detach()[shown], most, "logits")
        targets = cp.shard(real)[0]
        (cross_entropy(mine[0], targets, ignore_index=IGNORED, reduction="sum") / (real != IGNORED).sum()).backward()
        cp.sync_gradients()
        found = gradients(model)
        model.zero_grad(set_to_none=True)
        loss = model(**batch, labels=labels).loss
        loss.backward()
        cp.sync_gradients()
    close(loss.detach(), wanted_loss, 1e-6, "loss")  # transformers computes losses in float32
    found_too = gradients(model)
    assert found.keys() == found_too.keys() == wanted.keys()
    for parameter, gradient in wanted.items():
        close(found[parameter], gradient, most, parameter)
        close(found_too[parameter], wanted_too[parameter], max(most, 1e-6), f"{parameter}, by the model's loss")
    cp.remove()
    assert model.config._attn_implementation == implementation


def line(size):
    """A mesh of some ranks of the world, which this rank is in."""
    return init_device_mesh("cpu", (dist.get_world_size() // size, size), mesh_dim_names=("others", "cp"))["cp"]
