"""Small records of block-sparse masks, made by hand."""

from __future__ import annotations

from typing import Any

from longca_bench.measuring.records import Record

from .runs import FINDINGS

#: TFLOP/s at 32 K tokens, half kept, forward: by kernel, block (0 for variable ones) and KV heads.
SPEEDS = {
    ("vsa", 64, 64): 500.0, ("vsa_triton", 64, 64): 400.0,
    ("bsa", 64, 64): 480.0, ("bsa", 128, 64): 600.0, ("bsa", 0, 64): 300.0,
    ("bsa", 64, 8): 550.0, ("bsa", 128, 8): 500.0, ("bsa", 0, 8): 400.0,
    ("fa4", 128, 8): 700.0,
}  # fmt: skip
#: Backward throughput over that.
BACKWARD = 0.8


def record(kernel: str, block: int | None, kv: int, tflops: float | None, **fields: Any) -> Record:
    """A record on half-kept blocks; block 0 for variable ones, None for full attention."""
    kept = fields.pop("kept", 0.5)
    pattern, factors = {
        None: ("full", {}),
        0: ("variable_block_sparse", {"kept": kept}),
    }.get(block, ("uniform_block_sparse", {"block": block, "kept": kept}))
    share = kept if factors else 1.0
    flops = int(share * 1e15)
    seconds = tflops and flops / tflops / 1e12
    about = {
        "case": f"{kernel}-{block}-{kv}-{kept}-{fields}", "suite": "half", "suite_version": 1,
        "suite_digest": "1" * 16, "status": "ok" if tflops else "unsupported", "message": "" if tflops else "no.",
        "kernel": kernel, "distribution": "d", "distribution_version": "1", "device": "Some GPU", "pattern": pattern,
        "factors": factors, "seqlen": 32768, "lengths": "auto", "seed": 0, "heads_q": 64, "heads_kv": kv,
        "head_dim": 128, "dtype": "bfloat16", "direction": "forward", "mask_digest": f"{block}-{kept}-{kv}", "area": 1,
        "density": share, "tile_efficiency": 1.0, "flops": flops, "finished": "2026-01-01T00:00:00+00:00",
        "plan_seconds": 2e-3, "metadata_bytes": 2**20, "peak_bytes": 2**30, "tflops": tflops, "median": seconds,
        "samples": (seconds,) if seconds else (),
        "findings": FINDINGS if seconds else (),
    }  # fmt: skip
    return Record.model_validate({**about, **fields})


def half(factor: float = 1.0) -> list[Record]:
    """A run of every kernel at half kept, both directions."""
    return [
        record(*about, speed * factor * (1 if direction == "forward" else BACKWARD), direction=direction)
        for about, speed in SPEEDS.items()
        for direction in ("forward", "backward")
    ]


def curve(kernel: str, *speeds: tuple[float, float], block: int = 64) -> list[Record]:
    """A kernel's records by share kept, beside dense attention of 1000 TFLOP/s: 1 s."""
    points = [record(kernel, block, 8, tflops, kept=kept) for kept, tflops in speeds]
    return [record("fa3", None, 8, 1000.0), *points]
