"""Small records of block-sparse masks, made by hand, and the parts of the page that are built from them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from longca_bench.measuring.records import Record

from .docs_pages import docs_module, write_runs

#: TFLOP/s at 32 K tokens, half kept, forward: by kernel, block (0 for variable ones) and KV heads.
SPEEDS = {
    ("vsa", 64, 64): 500.0, ("vsa_triton", 64, 64): 400.0,
    ("bsa", 64, 64): 480.0, ("bsa", 128, 64): 600.0, ("bsa", 0, 64): 300.0,
    ("bsa", 64, 8): 550.0, ("bsa", 128, 8): 500.0, ("bsa", 0, 8): 400.0,
    ("fa4", 128, 8): 700.0,
}  # fmt: skip
#: Backward throughput over that.
BACKWARD = 0.8


def page() -> ModuleType:
    """The page's module."""
    return docs_module("sparse_page")


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


def fill_row(block: int, kv: int, fill: float) -> dict[str, Any]:
    computed = round(1000 / fill)
    rows = 128 if block or kv == 8 else 64
    return {
        "factors": {"kept": 0.5} | ({"block": block} if block else {}), "seqlen": 32768, "heads_q": 64, "heads_kv": kv,
        "visible": 1000, "computed": dict.fromkeys(("forward", "dkdv", "dq"), computed),
        "tiles": {"forward": [rows, 64], "dkdv": [64, 64], "dq": [rows, 64]},
        "fill": {"forward": fill, "backward": fill, "dkdv": fill, "dq": fill},
    }  # fmt: skip


FILLS = [fill_row(128, 8, 1.0), fill_row(0, 8, 0.8), fill_row(128, 64, 1.0), fill_row(0, 64, 0.5)]


def write(folder: Path, *runs: list[Record], metadata: list[dict[str, Any]] | None = None) -> Any:
    """A folder of results as the page takes it; gives its places."""
    write_runs(folder, *runs)
    (folder / "fill.json").write_text(json.dumps({"rows": FILLS}), encoding="utf-8")
    if metadata is not None:
        (folder / "metadata.json").write_text(json.dumps({"rows": metadata}), encoding="utf-8")
    return page().Places(folder, folder / "fill.json", folder / "charts")


def tuning(folder: Path) -> None:
    """Records of tuning: the forward 40 ms on uniform and 55 on variable blocks, dk and dv 60 and 90."""
    folder.mkdir(parents=True)
    for name, factor in (("tune-gqa128", 1.0), ("tune-var", 1.375)):
        rows = [{"kernel": kernel, "time_ms": time * factor} for kernel in ("forward", "dq") for time in (40.0, 30.0)]
        (folder / f"{name}.json").write_text(json.dumps({"results": rows}), encoding="utf-8")
    about = ((None, 64, 1, 1.0), (None, 128, 8, 2.0), (None, 128, 1, 60.0), (128, None, 8, 3.0), (128, None, 1, 90.0))
    names = ("variable", "block", "heads_a_launch", "dkdv_ms")
    launches = [{"heads": [64, 8], **dict(zip(names, row, strict=True))} for row in about]
    (folder / "launches.json").write_text(json.dumps({"rows": launches}), encoding="utf-8")


def part(name: str, places: Any) -> str:
    text: str = page().fill(f"<!-- measured: {name} -->", places)
    return text


def cells(text: str, first: str) -> list[str]:
    """The cells of the row that begins with a name."""
    (row,) = re.findall(rf"^\| {re.escape(first)} \| (.*) \|$", text, re.MULTILINE)
    return row.split(" | ")
