"""FlashMask for LongCA: interval masks in O(S) memory, hidden tiles skipped, in Triton.

The entry point names this module. It imports neither torch nor Triton.
"""

from longca import Backward, KernelManifest, Offer, hookimpl
from longca.manifests.sizes import Size
from longca.masks import Form

__all__ = ["FLASHMASK", "provide_kernel"]

_MOST_INTERVALS = 8

FLASHMASK = KernelManifest(
    name="flashmask",
    family="flashmask",
    title="FlashMask in Triton",
    upstream="https://arxiv.org/abs/2410.01359",
    license="Apache-2.0",
    requires=("triton>=3.4",),
    implementation="longca_flashmask.flashmask:FlashMask",
    offers=(
        Offer(
            form=Form.COLUMN_INTERVALS,
            most=_MOST_INTERVALS,
            max_sizes=((Size.ROW_INTERVALS, _MOST_INTERVALS),),
            unequal_lengths=True,
            backward=Backward.EXTERNAL,
            dtypes=("bfloat16", "float16"),
            head_dims=(64, 128, 256),
            verified_on="==9.0",
            # Triton's own range. The tiles fit each device's shared memory (longca_triton.config.by_shared_memory).
            expected_on=">=8.0,<13",
            deterministic=True,
            metadata="O(S)",
        ),
    ),
)


@hookimpl
def provide_kernel() -> KernelManifest:
    """The kernel of this plugin."""
    return FLASHMASK
