"""Block-sparse attention for every block size, with grouped heads and a backward, in Triton.

This module has the manifest alone. It imports neither torch nor Triton.
"""

from longca import Backward, KernelManifest, Offer
from longca.masks import Form

__all__ = ["BSA"]

BSA = KernelManifest(
    name="bsa",
    family="bsa",
    title="Block-sparse attention in Triton",
    upstream="https://arxiv.org/abs/2510.17896",
    license="Apache-2.0",
    requires=("triton>=3.4",),
    implementation="longca_vsa.bsa.kernel:BlockSparseAttention",
    offers=(
        Offer(
            form=Form.BLOCK_SPARSE,
            block_sizes=None,
            variable_blocks=True,
            mask_heads="query",
            unequal_lengths=True,
            backward=Backward.EXTERNAL,
            dtypes=("bfloat16", "float16"),
            head_dims=(64, 128, 256),
            verified_on="==9.0",
            # Triton's own range. The tiles fit each device's shared memory (longca_triton.config.by_shared_memory).
            expected_on=">=8.0,<13",
            deterministic=True,
            metadata="O(blocks)",
        ),
    ),
)
