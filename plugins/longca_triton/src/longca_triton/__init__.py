"""Building blocks of kernels of FlashAttention's kind that are written in Triton, for plugins.

- `config`: the configurations that kernels are compiled with.
- `kernel`: the adapter, `forward` and `backward` around four launches.
- `loops`: the loops of the forward, of dk and dv, and of dq. A plugin says which columns a program visits.
- `prepare`: the launch before the backward's loops.
- `softmax` and `tiles`: Triton functions for the softmax, and for loading and storing tiles.
- `descriptors`: tensors as pointers with strides, or as descriptors for the tensor memory accelerator.
- `memory`: bytes that a backward takes, for manifests.
- `tuning`: timing configurations on a GPU.
- `checking`: comparing kernels with attention by the book, under Triton's interpreter and on a GPU.

This module imports nothing. Only `descriptors`, `loops`, `prepare`, `softmax` and `tiles` import Triton. Import these
where a kernel is launched, so that listing and planning need no Triton.
"""
