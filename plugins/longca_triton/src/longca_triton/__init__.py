"""Building blocks of kernels of FlashAttention's kind that are written in Triton, for those of any distribution.

- `config`: how kernels are compiled.
- `kernel`: the adapter: what `plan`, `forward` and `backward` do around four launches.
- `buffers`: where kernels write, and on which device they are launched.
- `descriptors`: tensors as pointers with strides, or as descriptors for the tensor memory accelerator.
- `prepare`: the launch before the backward's.
- `softmax` and `tiles`: functions that kernels call: the softmax as tiles pass by, and loading tiles.
- `tuning` and `tuning_results`: timing configurations on a GPU.
- `checking`: holding kernels against attention by the book, under Triton's interpreter.

Nothing is imported here. Only `descriptors`, `prepare`, `softmax` and `tiles` bring in Triton; import these where a
kernel is launched, so that everything else can be looked at without it.
"""
