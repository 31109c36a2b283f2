"""A Llama of transformers with one kind of attention, and its training steps, for `transformers_step.py`."""

from __future__ import annotations

import argparse
import inspect
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

from longca import masks
from longca_transformers import ContextParallel, context_parallel

TAKES_BOUNDS = ("flash_attention_4", "flash_attention_2", "torch_varlen")
PYTORCH = ("torch_alltoall", "torch_allgather")  # PyTorch's own context parallelism, by both of its rotations
WARM_UP = 2
PART = 8192  # tokens whose logits are in memory at once
IGNORED = -100


def torch_varlen(
    module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor, attention_mask: Any, scaling: float, **others: Any
) -> tuple[Tensor, None]:
    """PyTorch's FlashAttention-2 with the bounds of the documents, as an attention implementation of transformers."""
    from torch.nn.attention.varlen import varlen_attn

    taken = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in taken else {"is_causal": True}
    if "enable_gqa" in taken:
        options["enable_gqa"] = True
    bounds, longest = others["cu_seq_lens_q"], others["max_length_q"]
    q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
    out = varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=scaling, **options)
    assert isinstance(out, Tensor), "no log-sum-exp was asked for"
    return out[None], None


def torch_causal(
    module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor, attention_mask: Any, scaling: float, **others: Any
) -> tuple[Tensor, None]:
    """PyTorch's attention, causal, by the full name that its context parallelism replaces."""
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2), None


@contextmanager
def pytorch_shards(subject: str, mesh: DeviceMesh, batch: Batch) -> Iterator[None]:
    """PyTorch's context parallelism of a causal batch, whose tensors are this rank's shards within."""
    from torch.distributed.tensor.experimental import _attention as package

    package.set_rotate_method(subject.removeprefix("torch_"))
    package._cp_options.enable_load_balance = True
    tensors = [batch.tokens, batch.targets, batch.positions]
    shards = package.context_parallel(
        mesh, buffers=tensors, buffer_seq_dims=[0] * len(tensors), no_restore_buffers=set(tensors)
    )
    with shards, sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        yield


def model_of(asked: argparse.Namespace, implementation: str, device: torch.device) -> Any:
    """A model with the weights that all subjects begin with. Its logits are the hidden states of its last layer."""
    heads, heads_kv = map(int, asked.heads.split(":"))
    sizes: dict[str, Any] = {
        "hidden_size": asked.width,
        "intermediate_size": asked.inner,
        "num_hidden_layers": asked.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads_kv,
        "head_dim": asked.head_dim,
        "vocab_size": asked.vocabulary,
        "max_position_embeddings": asked.seqlen,
        "attn_implementation": implementation,
    }
    torch.manual_seed(0)
    with device:
        model: Any = LlamaForCausalLM(LlamaConfig(**sizes))
    model.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    recompute = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)  # 4.56 has one
    recompute({"use_reentrant": False})
    model.lm_head.forward = lambda hidden: hidden
    return model.train()


def loss_in_parts(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The sum of the losses of hidden states [T, width], whose logits are made in parts and anew in the backward."""

    def part(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        logits = linear(hidden, weight).float()
        return cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")

    parts = zip(hidden.split(PART), targets.split(PART), strict=True)
    losses = [checkpoint(part, some, weight, their, use_reentrant=False) for some, their in parts]
    return torch.stack(losses).sum()


class Cell:
    """A model with one kind of attention, and its steps on a number of tokens.

    Args:
        asked: The options, with the cell's `seqlen`.
        subject: The attention implementation, or the strategy of a mesh.
        device: The device.
        mesh: The ranks, by `dp` and `cp`, if there are several.
    """

    def __init__(self, asked: argparse.Namespace, subject: str, device: torch.device, mesh: DeviceMesh | None) -> None:
        self.asked, self.subject, self.device, self.mesh = asked, subject, device, mesh
        alone = "torch_causal" if subject in PYTORCH else subject
        self.model = model_of(asked, "sdpa" if mesh and alone == subject else alone, device)
        if mesh and mesh["dp"].size() > 1:
            for layer in [*self.model.model.layers, self.model]:
                fully_shard(layer, mesh=mesh["dp"])
        self.parallel: ContextParallel | None = None
        if mesh and subject not in PYTORCH:
            self.parallel = context_parallel(self.model, mesh["cp"], subject, kernel=asked.kernel)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=asked.rate, fused=True)

    def step(self, batch: Batch) -> Tensor:
        """Takes a step, and gives the mean loss of the batches of all groups."""
        ends = torch.cat([batch.positions[1:], batch.positions.new_zeros(1)]) == 0
        batch.targets.masked_fill_(ends, IGNORED)
        count = (batch.targets != IGNORED).sum()
        with ExitStack() as within:
            if self.mesh and not self.parallel:
                within.enter_context(pytorch_shards(self.subject, self.mesh["cp"], batch))
            loss = self.backward(batch, count)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.mesh:
            dist.all_reduce(loss)
            loss /= self.mesh["dp"].size()
        return loss

    def backward(self, batch: Batch, count: Tensor) -> Tensor:
        """Adds up the gradients of all ranks of a group, and gives this rank's part of the loss."""
        given: dict[str, Any] = {"input_ids": batch.tokens[None], "position_ids": batch.positions[None]}
        if self.subject in TAKES_BOUNDS:
            bounds = torch.tensor([0, *batch.lengths], device=self.device).cumsum(0, dtype=torch.int32)
            given |= {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
            given |= dict.fromkeys(("max_length_q", "max_length_k"), max(batch.lengths))
        hidden = self.model(**given, use_cache=False).logits[0]
        mine = self.parallel.shard(batch.targets[None])[0] if self.parallel else batch.targets
        loss = loss_in_parts(hidden, self.model.lm_head.weight, mine) / count
        loss.backward()
        if self.parallel:
            self.parallel.sync_gradients()
        elif self.mesh:
            for weight in self.model.parameters():
                grad = getattr(weight.grad, "_local_tensor", weight.grad)  # FSDP2's gradients are DTensors
                dist.all_reduce(grad, group=self.mesh.get_group("cp"))
        return loss.detach().clone()

    def steps(self) -> tuple[list[float], list[float]]:
        """The losses and the seconds of all steps, until the counted ones have taken the cell's time."""
        losses: list[float] = []
        samples: list[float] = []
        for step in range(WARM_UP + self.asked.steps):
            if step > WARM_UP and largest(sum(samples[WARM_UP:]), self.device, self.mesh) > self.asked.seconds:
                break
            groups, group = (self.mesh["dp"].size(), self.mesh["dp"].get_local_rank()) if self.mesh else (1, 0)
            batch = Batch.draw(step * groups + group, self.asked, self.device)
            if step == WARM_UP and self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.device)
            wait(self.device, self.mesh)
            start = time.perf_counter()
            loss = self.step(batch)
            wait(self.device, self.mesh)
            samples.append(time.perf_counter() - start)
            losses.append(loss.item())
        return losses, samples


def wait(device: torch.device, mesh: DeviceMesh | None) -> None:
    """Waits until the device, and those of all ranks, are done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if mesh:
        dist.barrier()


def largest(value: float, device: torch.device, mesh: DeviceMesh | None) -> float:
    """The largest value of all ranks."""
    found = torch.tensor(float(value), device=device, dtype=torch.float64)
    if mesh:
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()


def drawn(step: int, asked: argparse.Namespace) -> masks.Mask:
    """The mask of a step's documents, or of one document as long as the batch."""
    if asked.lengths == "whole":
        return masks.build("causal_document", asked.seqlen, documents=[asked.seqlen])
    about = {"lengths": asked.lengths, "max_share": asked.max_share, "seed": step}
    return masks.sample("causal_document", asked.seqlen, **about)


@dataclass(frozen=True)
class Batch:
    """Packed documents. Each token is the last one plus 3, so that there is something to learn.

    Attributes:
        lengths: Tokens of each document.
        tokens: The tokens: [S].
        targets: The next tokens: [S].
        positions: Positions in their documents: [S].
        documents: The document of each token: [S].
    """

    lengths: tuple[int, ...]
    tokens: Tensor
    targets: Tensor
    positions: Tensor
    documents: Tensor

    @classmethod
    def draw(cls, step: int, asked: argparse.Namespace, device: torch.device) -> Batch:
        """The batch of a step."""
        lengths = torch.tensor(drawn(step, asked).factors["documents"])
        starts = torch.randint(asked.vocabulary, (len(lengths),), generator=torch.Generator().manual_seed(step))
        positions = torch.cat([torch.arange(n) for n in lengths])
        tokens = (starts.repeat_interleave(lengths) + 3 * positions) % asked.vocabulary
        documents = torch.arange(len(lengths)).repeat_interleave(lengths)
        on_device = (x.to(device) for x in (tokens, (tokens + 3) % asked.vocabulary, positions, documents))
        return cls(tuple(lengths.tolist()), *on_device)
