"""Tile shapes, warps and pipeline stages of the three kernels, by head dimension and compute capability."""

from __future__ import annotations

from longca_triton.config import Config, Configs, by_shared_memory

__all__ = ["choose"]

_LARGE = {
    64: Configs(Config(64, 128, 4, 2, True), Config(64, 64, 4, 3, True), Config(64, 64, 4, 2, True)),
    128: Configs(Config(128, 64, 4, 2, True), Config(64, 64, 4, 2, True), Config(128, 64, 8, 3, True)),
    256: Configs(Config(128, 64, 8, 2, True), Config(64, 64, 8, 1, True), Config(64, 64, 4, 2, True)),
}
_MEDIUM = {
    64: Configs(Config(128, 64, 4, 3), Config(32, 64, 4, 2), Config(64, 64, 4, 2)),
    128: Configs(Config(128, 64, 8, 3), Config(64, 64, 8, 2), Config(64, 64, 8, 2)),
    256: Configs(Config(64, 64, 8, 2), Config(32, 64, 8, 1), Config(64, 32, 8, 2)),
}
_SMALL = {
    64: Configs(Config(128, 64, 4, 2), Config(32, 64, 4, 2), Config(64, 64, 4, 2)),
    128: Configs(Config(128, 32, 8, 2), Config(32, 64, 8, 2), Config(64, 32, 4, 2)),
    256: Configs(Config(64, 32, 8, 1), Config(32, 32, 8, 1), Config(32, 32, 8, 1)),
}


def choose(head_dim: int, capability: tuple[int, int] | None) -> Configs:
    """The configurations for a head dimension of 64, 128 or 256 on a device."""
    return by_shared_memory(capability, large=_LARGE, medium=_MEDIUM, small=_SMALL)[head_dim]
