"""The manifest and the hook. Every listing of kernels imports this module, so it does not import torch."""

from longca import Backward, KernelManifest, Offer, hookimpl
from longca.masks import Form


@hookimpl
def provide_kernel() -> KernelManifest:
    """The manifest of first."""
    return KernelManifest(
        name="first",
        family="first",
        title="Softmax attention in blocks of queries",
        upstream="https://arxiv.org/abs/1706.03762",
        license="Apache-2.0",
        implementation="longca_first.kernel:First",
        offers=(
            Offer(
                form=Form.ROW_INTERVALS,
                unequal_lengths=True,
                backward=Backward.EXTERNAL,
                dtypes=("float32", "bfloat16"),
                cpu=True,
                verified_on=">=5.0",
                deterministic=True,
                metadata="O(S)",
            ),
        ),
    )
