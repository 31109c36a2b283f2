"""torchtitan's trainer with LongCA: its attention in every layer, exact masks, and shards by its layout.

torchtitan runs `llama3_8b_longca` of your config registry as it runs its own functions.
"""

from dataclasses import dataclass, fields, replace

import torch
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.distributed.spmd_types import annotate_input_spmd_types
from torchtitan.models.llama3.config_registry import llama3_8b
from torchtitan.trainer import Trainer

from longca.integrations.torchtitan import LongCAAttention, prepare_batch


class LongCATrainer(Trainer):
    """torchtitan's trainer. LongCA makes the masks of a batch, and shards the batch under context parallelism."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        """The settings of torchtitan's trainer."""

    def post_dataloading_process(self, input_dict: dict, labels: torch.Tensor) -> tuple:
        """A rank's inputs and labels, and the model's other arguments."""
        dtype = TORCH_DTYPE_MAP[self.config.training.mixed_precision_param]
        inputs, labels, arguments = prepare_batch(self.model_parts, input_dict, labels, dtype=dtype)
        self.ntokens_seen += labels.numel()
        if self.config.parallelism.spmd_backend == "spmd_types":
            return annotate_input_spmd_types(self.parallel_dims, inputs, labels, arguments)
        return inputs, labels, arguments


def with_longca(config: Trainer.Config, **settings: str) -> LongCATrainer.Config:
    """A trainer's config with LongCA in every layer.

    Args:
        config: The config of a model of torchtitan, such as `llama3_8b()`.
        **settings: `kernel`, `strategy` and `placement` of `LongCAAttention.Config`.
    """
    for layer in config.model_spec.model.layers:
        window = getattr(layer.attention.inner_attention, "window_size", (-1, 0))
        layer.attention.inner_attention = LongCAAttention.Config(window_size=window, **settings)
    # LongCA reads positions and plans on the host, and its validator would need the same hook as the trainer.
    training = replace(config.training, disable_cuda_graphs=True)
    validator = replace(config.validator, enable=False)
    given = {field.name: getattr(config, field.name) for field in fields(config) if field.init}
    return LongCATrainer.Config(**{**given, "training": training, "validator": validator})


def llama3_8b_longca() -> LongCATrainer.Config:
    """torchtitan's Llama 3 of 8 billion parameters with LongCA."""
    return with_longca(llama3_8b(), kernel="fa3", strategy="ring_p2p")
