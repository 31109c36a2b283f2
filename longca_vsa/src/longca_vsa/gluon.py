"""What the kernels in Gluon share. Gluon is Triton's language for a GPU's own instructions."""

from __future__ import annotations

from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.language.nvidia.hopper import tma

__all__ = ["ROWS", "load", "store"]

#: The layout of a matrix of 16-bit elements in shared memory, as the tensor cores read it: the widest swizzle.
ROWS = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)

# Triton 3.9 has other names for them.
load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
