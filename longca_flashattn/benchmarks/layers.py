"""Layers of fa2 and fa3 beside fa4's intervals in one run: merged varlen calls on masks that fa2 and fa3 do not know.

    python longca_flashattn/benchmarks/layers.py [--seqlens 32768] [--heads 64:8] [--out FILE.json]

The manifests offer as many layers as were measured here. More than three are offered as not verified. A ratio above 1
means that layers are slower than fa4. `fa3` merges the results of all layers. In `fa3 rows` a layer writes only its own
rows of the results, where no other layer has them. `fa3 copies` and `fa4 copies` are one call over copies of keys, for
layers that can be one. The registry's fa3 is `fa3 copies` where layers can be one call and share rows, else `fa3 rows`.
The registry's fa4 makes no copies.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from longca import Problem, masks, registry
from longca.manifests import Direction
from longca.manifests.devices import current_device
from longca.masks import Form
from longca_bench.measuring.environment import surroundings
from longca_bench.verification.inputs import Inputs, draw_inputs
from longca_flashattn.fa3 import FlashAttention3
from longca_flashattn.fa4 import NativeMasks
from longca_flashattn.joined_keys import join_keys


class AllRows(FlashAttention3):
    """fa3 whose layers compute all rows, so that all of their results are merged."""

    skips_rows = joins_keys = False


class OwnRows(FlashAttention3):
    """fa3 whose layers are several calls, which write their own rows where they are alone on them."""

    joins_keys = False


class OneCall(FlashAttention3):
    """fa3 with one call over copies of keys, for layers that are alone on their rows too."""

    skips_rows = False


class OneCallOfFA4(NativeMasks):
    """The same of fa4."""

    joins_keys = True


KERNELS: dict[str, Callable[[], Any]] = {
    **{name: partial(registry().load, name) for name in ("fa4", "fa2")},
    "fa3": AllRows,
    "fa3 rows": OwnRows,
}
COPIES: dict[str, Callable[[], Any]] = {"fa3 copies": OneCall, "fa4 copies": OneCallOfFA4}
PATTERNS = (
    "block_causal_document",
    "prefix_lm_causal",
    "prefix_lm_document",
    "shared_question",
    "global_sliding_window",
    "causal_blockwise",
)
REPEATS = 9


def milliseconds(call: Callable[[], object]) -> float:
    """Median time of a call on the device."""
    samples = []
    for _ in range(REPEATS + 2):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        stop.synchronize()
        samples.append(start.elapsed_time(stop))
    return statistics.median(samples[2:])


def measure(problem: Problem, name: str, x: Inputs) -> dict[str, Any]:
    """One kernel on one problem, both directions."""
    kernel = (KERNELS | COPIES)[name]()
    plan = kernel.plan(problem)
    out, lse = kernel.forward(x.q, x.k, x.v, plan)
    return {
        "form": str(plan.form),
        "forward_ms": milliseconds(lambda: kernel.forward(x.q, x.k, x.v, plan)),
        "backward_ms": milliseconds(lambda: kernel.backward(x.dout, x.q, x.k, x.v, out, lse, plan)),
    }


def main() -> None:
    """Measures, prints a table, and writes the record if --out is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlens", nargs="+", type=int, default=[2**15])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--heads", default="64:8", help="query heads and KV heads")
    parser.add_argument("--out", type=Path, help="JSON file to write the record to")
    asked = parser.parse_args()
    heads_q, heads_kv = map(int, asked.heads.split(":"))
    rows: list[dict[str, Any]] = []
    inputs: Inputs | None = None  # one set for all masks of a length
    print(
        f"{'mask':24}{'tokens':>8}{'layers':>8}"
        + "".join(f"{name + way:>14}" for name in KERNELS | COPIES for way in "↑↓")
    )
    for seqlen in asked.seqlens:
        for pattern in PATTERNS:
            for seed in asked.seeds:
                mask = masks.sample(pattern, seqlen, lengths="auto", seed=seed)
                problem = Problem(
                    mask=mask,
                    heads_q=heads_q,
                    heads_kv=heads_kv,
                    head_dim=128,
                    dtype="bfloat16",
                    device=current_device(),
                    direction=Direction.BACKWARD,
                )
                about = {"pattern": pattern, "seqlen": seqlen, "seed": seed, "layers": mask.count(Form.LAYERS)}
                if inputs is None or len(inputs.q) != seqlen:
                    inputs = draw_inputs(problem, seed=0)
                names = KERNELS | COPIES if join_keys(mask.head(0).layers) else KERNELS
                found = {name: measure(problem, name, inputs) for name in names}
                rows.append({**about, "kernels": found})
                cells = (found[name][way] for name in names for way in ("forward_ms", "backward_ms"))
                print(
                    f"{pattern:24}{seqlen:>8}{about['layers']:>8}" + "".join(f"{ms:>14.2f}" for ms in cells), flush=True
                )
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"environment": surroundings(registry(), current_device()), "heads": asked.heads, "rows": rows}
        asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
