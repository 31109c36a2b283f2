"""An example plugin for LongCA: one kernel, `online`.

The entry point names this module, so every listing of kernels imports it. It has the manifest and the hook, and imports
neither torch nor the kernel.
"""

from longca import Backward, KernelManifest, Offer, hookimpl
from longca.masks import Form

__all__ = ["ONLINE", "provide_kernel"]

ONLINE = KernelManifest(
    name="online",
    family="example",
    title="Blockwise attention with an online softmax",
    upstream="https://arxiv.org/abs/2205.14135",
    license="Apache-2.0",
    implementation="longca_example.online:Online",
    workspace="longca_example.memory:workspace",
    plan_bytes="longca_example.memory:plan_bytes",
    offers=(
        Offer(
            form=Form.ROW_INTERVALS,
            most=2,
            unequal_lengths=True,
            backward=Backward.EXTERNAL,
            dtypes=("float64", "float32", "bfloat16", "float16"),
            cpu=True,
            verified_on=">=5.0",
            deterministic=True,
            metadata="O(S)",
        ),
    ),
)


@hookimpl
def provide_kernel() -> KernelManifest:
    """The manifest of online."""
    return ONLINE
