"""LongCA as an attention implementation of Hugging Face transformers.

    from longca_transformers import register

    register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="longca")

Both interfaces of transformers are registered, that of attention and that of masks, so that no mask is lost. A layer
gets its mask as slices (`LayerMask`): causal, sliding windows, chunks, packed sequences, padding, and any other mask
function of a model, which is then evaluated. LongCA refuses by name what it cannot compute, before the first step.
`check` refuses a model that transformers computes without LongCA.
`context_parallel` spreads the batches of a model over the ranks of a device mesh.
"""

from __future__ import annotations

from functools import partial

from longca.kernels.attention import check_kernel
from longca_transformers.context_parallel import ContextParallel, context_parallel
from longca_transformers.interfaces import add_attention
from longca_transformers.layer_masks import LayerMask, make_layer_mask
from longca_transformers.layers import attend
from longca_transformers.model_check import check
from longca_transformers.own_masks import using

__all__ = ["ContextParallel", "LayerMask", "check", "context_parallel", "register", "using"]


def register(name: str = "longca", *, kernel: str = "auto", require_documents: bool = False) -> None:
    """Registers LongCA with transformers. A second call with a name replaces the first.

    Args:
        name: The name for `attn_implementation`. Names for several kernels may be registered.
        kernel: Name of a kernel or pair, or `auto`, as in `longca.attention`.
        require_documents: Refuse a training batch of one row that has no boundaries of documents, for data that are
            always packed. Without boundaries, all documents would be one causal sequence, and the loss would be wrong.

    Raises:
        MissingPackageError: transformers is missing or too old.
        RequestError: The kernel is no name.
        UnknownNameError: Nobody provides the kernel.
    """
    check_kernel(kernel)
    add_attention(name, partial(attend, kernel=kernel, require_documents=require_documents), make_layer_mask)
