"""SharedPlacement: a placement's name, with the masks of all layers that share it."""

from __future__ import annotations

from collections.abc import Sequence

from longca.masks import Mask

__all__ = ["SharedPlacement"]


class SharedPlacement(str):
    """The name of a placement that is balanced for several masks at once.

    A strategy's layout function gets it as its `placement`, once for each of the masks. It places tokens by the
    weighted sum of the masks' visible pairs, so that the shards of all layouts are equal.

    Args:
        name: The placement's name.
        weighed: The masks of one length, each with its weight.
    """

    weighed: tuple[tuple[Mask, float], ...]

    def __new__(cls, name: str, weighed: Sequence[tuple[Mask, float]]) -> SharedPlacement:
        """The name as a string."""
        made = super().__new__(cls, name)
        made.weighed = tuple(weighed)
        return made
