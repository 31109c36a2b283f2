"""What the field knows to do about a failure."""

from __future__ import annotations

__all__ = ["advice"]


def advice(status: str, message: str, form: str | None) -> str:
    """A sentence or two on what to do about a status; empty where there is nothing to do.

    Args:
        status: A record's status.
        message: What went wrong.
        form: The form of the offer that covers the problem.
    """
    if status == "oom" and form == "dense":
        return "A dense mask grows with the square of the sequence. Take a fused kernel that takes the mask's own form."
    if status == "oom" and form == "block_sparse":
        return "Block-sparse plans grow with the number of blocks. Take larger blocks, or fewer heads with own masks."
    if status == "oom":
        return "Take a shorter sequence, fewer heads or a smaller dtype, or see who else uses the device."
    if status == "timeout":
        return "Raise --timeout if it is only slow; a kernel that hangs on one shape is worth a report upstream."
    if status == "crashed" and "SIGKILL" in message:
        return "Nothing of LongCA's ended it; the system does so where memory runs out. See dmesg, or set --memory."
    if status == "crashed":
        return "Run the case alone, with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer, to see where."
    if status == "wrong":
        return "`longca verify --kernel` shows whether it is wrong on small masks too. Do not train with it."
    if status == "error":
        return "`longca doctor` says whether what the kernel needs is here."
    if status == "suspect":
        return "It is faster than the device can be, so something was not done. It is never ranked."
    return ""
