"""LongCA as the inner attention of torchtitan's decoders, on one device and under context parallelism.

    layer.attention.inner_attention = LongCAAttention.Config(kernel="auto")

`prepare_batch` makes the masks of a batch from its positions, and shards the batch by LongCA's layout. torchtitan's
`Trainer.post_dataloading_process` calls it (docs/torchtitan.md has the trainer). LongCA refuses by name what it cannot
compute.

Source: torchtitan 0.3.0 and its main of August 2026 (b5bcd76), models/common/attention.py (`VarlenAttention`, whose
windows these are), protocols/module.py (`Module.parallelize`) and trainer.py (`Trainer.post_dataloading_process`).
"""

from longca.errors import MissingPackageError

try:
    from longca.integrations.torchtitan.batches import prepare_batch
    from longca.integrations.torchtitan.inner_attention import BatchMasks, LongCAAttention
except ModuleNotFoundError as error:
    if error.name != "torchtitan":
        raise
    raise MissingPackageError("torchtitan", "longca.integrations.torchtitan") from None

__all__ = ["BatchMasks", "LongCAAttention", "prepare_batch"]
