"""Block-sparse attention for Hopper, with its copies and its arithmetic in warps of their own. It has no backward yet.

This module has the manifest alone. It imports neither torch nor Triton.
"""

from longca import KernelManifest, Offer
from longca.masks import Form

__all__ = ["BSA_GLUON"]

BSA_GLUON = KernelManifest(
    name="bsa_gluon",
    family="bsa",
    title="Block-sparse attention in Gluon, for Hopper",
    upstream="https://arxiv.org/abs/2510.17896",
    license="Apache-2.0",
    # Gluon is Triton's language for a GPU's own instructions. It changes from version to version.
    requires=("triton>=3.6,<3.10",),
    implementation="longca_vsa.bsa_gluon.kernel:BlockSparseGluon",
    offers=(
        Offer(
            form=Form.BLOCK_SPARSE,
            block_sizes=(64, 128, 256),
            # The rows of a tile of 128 are queries of a block, under each head of a group that shares a mask.
            heads_per_mask=(1, 2, 4, 8, 16, 32, 64),
            min_block_rows=128,
            mask_heads="query",
            unequal_lengths=True,
            dtypes=("bfloat16", "float16"),
            head_dims=(128,),
            verified_on="==9.0",
            deterministic=True,
            metadata="O(blocks)",
            fills_buffers=False,
        ),
    ),
)
