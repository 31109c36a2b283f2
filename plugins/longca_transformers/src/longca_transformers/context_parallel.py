"""context_parallel: a transformers model whose batches are spread over the ranks of a device mesh.

Every rank gives the same batch. A hook before the model's forward cuts it into this rank's tokens, and a hook after it
adds the losses of all ranks. Layers attend across ranks by `longca.attention` under a strategy.
"""

from __future__ import annotations

import inspect
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from longca.errors import RequestError
from longca.kernels.ahead import Prefetch
from longca.kernels.attention import check_kernel, check_mesh
from longca.masks import build
from longca.parallel.layouts import layout
from longca.parallel.meshes import check_member
from longca_transformers.interfaces import add_attention
from longca_transformers.parallel_setup import Setup, check_model, heads_of
from longca_transformers.sharded_batch import ShardedBatch, tokens_of
from longca_transformers.sharded_layers import CURRENT, attend_sharded, take_sharded_mask
from longca_transformers.sharded_masks import layer_windows, placed_ahead

NAME = "longca_context_parallel"
#: The models under `context_parallel` now. Several may share a configuration, which has the name of their attention.
_UNDER: WeakSet[ContextParallel] = WeakSet()


class ContextParallel:
    """A model under context parallelism. `context_parallel` makes it."""

    def __init__(self, model: Any, setup: Setup) -> None:
        self._model, self._setup = model, setup
        self._latest: ShardedBatch | None = None
        others = [cp for cp in _UNDER if cp._model.config is model.config]
        self._before: str = others[0]._before if others else model.config._attn_implementation
        self._signature = inspect.signature(model.forward)
        model.set_attn_implementation(NAME)
        self._hooks = (
            model.register_forward_pre_hook(self._enter, with_kwargs=True),
            model.register_forward_hook(self._leave, always_call=True),
        )
        _UNDER.add(self)

    def prefetch(self, **batch: Any) -> Prefetch:
        """Places the tokens of a later batch on a side thread, while this batch is trained. All ranks call it alike.

        Call it under the same `torch.autocast` as the model. It starts no collective.

        Args:
            **batch: The arguments of the later call. Its tensors may be on the host, where they are read. Give the
                mask of a later `using(mask)` as `longca_mask=mask`.

        Returns:
            A handle. `wait()` waits until the tokens are placed. The call waits by itself.

        Raises:
            RequestError: The masks or the bounds of the batch do not fit, or there are no tokens or no documents.
        """
        given = {name: value for name, value in batch.items() if value is not None}
        return placed_ahead(given, tokens_of(given), self._setup)

    def shard(self, x: Tensor) -> Tensor:
        """This rank's tokens of a tensor of the latest batch, such as weights of a loss of your own.

        Args:
            x: A tensor of the whole batch: [rows, tokens, ...].

        Returns:
            [1, Tl, ...], in the order of this rank's logits.

        Raises:
            RequestError: The model was not called yet, or the tensor has another shape than the batch.
        """
        if self._latest is None:
            raise RequestError("the model was not called yet, and each batch has its own layout; call the model first")
        return self._latest.shard(x)

    def loss(self, part: Tensor) -> Tensor:
        """The loss of the whole batch, from this rank's part of a loss of your own. It is a collective call.

        The gradient is that of this rank's part.

        Args:
            part: A scalar: the sum over this rank's tokens, divided by a number of the whole batch.
        """
        return part + (self._setup.total(part) - part.detach())

    def sync_gradients(self) -> None:
        """Sums the gradients of all parameters over the ranks of the mesh. Call it once before each optimizer step.

        Call it before gradients are clipped. With FSDP2 on another dim of the mesh it sums this rank's shards.

        Raises:
            RequestError: DDP or FSDP averages the gradients already.
        """
        if self._setup.averaged:
            raise RequestError(
                "the gradients are averaged by DDP or FSDP, because averaged=True was given; leave sync_gradients away"
            )
        parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        device = self._setup.mesh.device_type
        # A rank whose tokens reach no expert has no gradient of it, and others may have one.
        has = self._setup.total(torch.tensor([float(p.grad is not None) for p in parameters], device=device))
        found = []
        for parameter, ranks in zip(parameters, has.tolist(), strict=True):
            if ranks and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if ranks:
                found.append(parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad)
        for group in self._setup.groups:
            for work in [dist.all_reduce(grad, group=group, async_op=True) for grad in found]:
                work.wait()

    def remove(self) -> None:
        """Gives the model back as it was.

        A model that shares its configuration with another model under `context_parallel` gets its attention back when
        `remove` of the other one is called too. Until then its calls are refused.
        """
        for hook in self._hooks:
            hook.remove()
        _UNDER.discard(self)
        if not any(cp._model.config is self._model.config for cp in _UNDER):
            self._model.set_attn_implementation(self._before)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # layouts and process groups are no tensors
    def _enter(self, _model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        """Cuts the batch of a call."""
        if (found := self._model.config._attn_implementation) != NAME:
            raise RequestError(
                f"the model's attn_implementation was changed to {found!r} under context_parallel, so that each rank "
                f"would attend to its own tokens alone; call remove() first, or set it to {NAME!r} again"
            )
        bound = self._signature.bind_partial(*args)
        given = {**bound.arguments, **kwargs}
        self._latest = ShardedBatch.of(given, self._setup)
        CURRENT.set(self._latest)
        return (), self._latest.arguments

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _leave(self, _model: Any, _args: tuple[Any, ...], output: Any) -> Any:
        """Adds the losses of all ranks. The gradients of all outputs are those of this rank's part."""
        batch = CURRENT.get()
        CURRENT.set(None)
        if output is None or batch is None:
            return output
        if "labels" in batch.arguments:
            loss = self.loss(output["loss"] if isinstance(output, dict) else output[0])
            if isinstance(output, dict):
                output["loss"] = loss
            else:
                output = (loss, *output[1:])
        return tree_map_only(Tensor, lambda x: self._scaled(batch.whole(x)), output)

    def _scaled(self, x: Tensor) -> Tensor:
        """An output whose gradient makes up for an average over the ranks, however a loss is made of it."""
        if not self._setup.averaged or not x.requires_grad:
            return x
        x, ranks = x.view_as(x), self._setup.mesh.size()  # outputs are made of one another, as a loss is of logits
        x.register_hook(lambda gradient: None if gradient is None else gradient * ranks)
        return x


def context_parallel(
    model: Any,
    mesh: DeviceMesh,
    strategy: str = "auto",
    *,
    placement: str = "auto",
    kernel: str = "auto",
    averaged: bool = False,
    require_documents: bool = False,
) -> ContextParallel:
    """Spreads the batches of a decoder-only model over the ranks of a device mesh. It is a collective call.

    All ranks call the model with the same whole batch. The model returns the logits of this rank's tokens [1, Tl, V],
    and the loss of the whole batch on every rank. An output of one number for each token, such as the `log_probs` of
    TRL, is that of the whole batch too. Gradients are those of this rank's tokens, until `sync_gradients` sums them.

    Args:
        model: A model of transformers with a head for causal language modelling.
        mesh: A device mesh with dims named as the strategy's axes. One dim may have any name, and may be a part of a
            larger mesh: `mesh["cp"]`.
        strategy: Name of a context-parallel strategy. `auto` takes the one that is predicted fastest for the batch.
        placement: The way to place tokens on ranks, as in `longca.layout`.
        kernel: Name of the kernel or pair, as in `longca.attention`.
        averaged: Whether DDP or FSDP averages the gradients over this mesh too. The gradients of all outputs are then
            multiplied by the number of ranks, so that the average is the sum, and `sync_gradients` is not needed.
        require_documents: As in `register`.

    Raises:
        MissingPackageError: transformers is missing or too old.
        RequestError: No device mesh, one of other axes, or one without this process.
        UnknownNameError: Nobody provides the strategy, the placement or the kernel.
        UnsupportedError: The strategy cannot split the heads, or the model computes what ranks cannot compute together.
    """
    check_kernel(kernel)
    mesh = check_mesh(strategy, mesh)
    check_member(mesh)
    check_model(model)
    # A configuration tells nothing, because models may share it.
    if any(isinstance(getattr(hook, "__self__", None), ContextParallel) for hook in model._forward_pre_hooks.values()):
        name = type(model).__name__
        raise RequestError(f"this {name} is under context_parallel already; call remove() of the earlier one first")
    add_attention(NAME, attend_sharded, take_sharded_mask)
    heads, head_dims = heads_of(model)
    setup = Setup(
        mesh=mesh,
        strategy=strategy,
        placement=placement,
        kernel=kernel,
        heads=heads,
        head_dims=head_dims,
        model=model,
        windows=layer_windows(model.config.get_text_config()),
        averaged=averaged,
        require_documents=require_documents,
    )
    # Heads and axes that do not fit are refused at once.
    layout([(build("causal", 128 * mesh.size()), 1.0)], **{**setup.layout_options, "kernel": "auto"})
    return ContextParallel(model, setup)
