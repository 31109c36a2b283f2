"""FlashMask for LongCA: interval masks in O(S) memory, hidden tiles skipped, in Triton.

The entry point names this module. It imports neither torch nor Triton.
"""

from longca import Backward, KernelManifest, Offer, Problem, Reason, Verdict, hookimpl
from longca.masks import Form

__all__ = ["FLASHMASK", "provide_kernel", "supports_mask"]

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


@hookimpl
def supports_mask(kernel: str, problem: Problem) -> Verdict | None:
    """Refuses masks whose queries have too many intervals. The offer limits the intervals of keys alone."""
    count = problem.mask.count(Form.ROW_INTERVALS)
    if count <= _MOST_INTERVALS:
        return None
    asked = f"this {problem.mask.label} takes {count}"
    return Verdict(kernel, None, (Reason("form", asked, f"{kernel} takes at most {_MOST_INTERVALS} row_intervals"),))
