"""launch_kernel: a launch of a Triton kernel, which binds arguments only where no earlier launch was of the same kind.

Triton binds and classifies the arguments of every launch, which takes about 0.1 ms of the host for forty of them. A
compiled kernel depends on the kinds of the arguments alone: types, alignment, and numbers that are 1 or multiples of
16. So one is kept for each combination of kinds, and is called directly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

__all__ = ["launch_kernel"]

_ALIGNMENT = 16  # bytes of pointers, and the divisor of numbers, for which Triton compiles a kernel of its own
#: By the kernel's id, the device and the kinds of arguments: the compiled kernel, its constants, and the kernel itself,
#: so that its id is not used again.
_compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...], Any]] = {}


def launch_kernel(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launches a kernel, as `kernel[grid](*arguments, **constants)` does.

    Args:
        kernel: The kernel. It has no hooks before its run, and reads no globals that change.
        grid: The programs along up to three axes.
        arguments: All arguments that are no constants: tensors, numbers, descriptors and None. The constants follow
            them in the kernel's signature.
        constants: The constants, and options such as `num_warps`.
    """
    if not isinstance(kernel, JITFunction):  # Triton's interpreter has functions of another type
        kernel[grid](*arguments, **constants)
        return
    key = (id(kernel), torch.cuda.current_device(), *map(_kind, arguments), *constants.items())
    if key in _compiled:
        compiled, last, _ = _compiled[key]
        compiled[(*grid, 1, 1)[:3]](*arguments, *last)
        return
    last = tuple(constants[name] for name in kernel.arg_names[len(arguments) :])
    if (compiled := kernel[grid](*arguments, **constants)) is not None:  # a hook of Triton's may forbid a compilation
        _compiled[key] = compiled, last, kernel


def _kind(x: Any) -> Any:
    """The kind of an argument. It may be finer than the classes for which Triton compiles, but never coarser."""
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() % _ALIGNMENT == 0
    if isinstance(x, int):
        return type(x), x == 1, x % _ALIGNMENT == 0, -(2**31) <= x < 2**31, x < 2**63
    if x is None or isinstance(x, float):
        return type(x)
    return type(x), x.base.dtype, *x.block_shape, x.padding, getattr(x, "layout", None)  # a descriptor
