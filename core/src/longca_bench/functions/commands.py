"""Commands of `longca verify --function` to the worker that calls the function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.masks import Mask
from longca_bench.measuring.arena import Where

if TYPE_CHECKING:  # a worker on one device imports nothing of ranks
    from longca_bench.functions.calling import Call
    from longca_bench.ranks.job import Job

__all__ = ["FUNCTION", "CallFunction", "LoadFunction", "PlaceTokens"]

#: The name in an answer's methods under which the parameters of a function are.
FUNCTION = "function"


@dataclass(frozen=True)
class LoadFunction:
    """A function to import.

    Attributes:
        text: The module and the function.
        folder: The folder that is searched first.
        job: The worker's place among the workers of all ranks, which it joins. None on one device.
        timeout: Seconds that a rank waits for another one.
    """

    text: str
    folder: str
    job: Job | None
    timeout: float


@dataclass(frozen=True)
class PlaceTokens:
    """A placement function to ask for the tokens of each rank.

    Attributes:
        text: The module and the function.
        mask: The mask of all tokens.
        size: Number of ranks.
        landing: Where the tokens of all ranks go, one rank after another: int64 [tokens].
    """

    text: str
    mask: Mask
    size: int
    landing: Where


@dataclass(frozen=True)
class CallFunction:
    """A call of the function.

    Attributes:
        call: The call.
        tensors: `q`, `k`, `v` and `dout`.
        landing: Where the results go, by their names.
    """

    call: Call
    tensors: dict[str, Where]
    landing: dict[str, Where]
