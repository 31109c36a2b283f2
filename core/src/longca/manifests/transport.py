"""Transport: the way in which a strategy moves tensors between ranks."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Transport"]


class Transport(StrEnum):
    """The way in which a strategy moves tensors between ranks.

    Attributes:
        AUTO: The strategy chooses for each axis of its mesh, and logs the reason.
        COLLECTIVES: Calls of torch.distributed.
        COPY_ENGINE: Writes into the memory of peers. On GPUs, the copy engines make them.
    """

    AUTO = "auto"
    COLLECTIVES = "collectives"
    COPY_ENGINE = "copy_engine"
