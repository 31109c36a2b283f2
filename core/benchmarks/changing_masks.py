"""A training step whose mask is another one at every step: what planning takes of it, and whether anything recompiles.

    python core/benchmarks/changing_masks.py [--kernels flex fa4] [--seqlens 32768 131072] [--layers 32]
        [--heads 32:8] [--steps 8] [--out results/h200/dense/changing_masks.json]

A step is the attention of all layers: one plan, then every layer's forward, then every layer's backward. Its mask is
drawn from the step's own seed. Each step is taken three times: planning alone, the whole with planning, and the same
with the plan that is there; each from an idle device until the device is done, by the host's clock. The second
minus the third is the cost of planning in a training run. It may be less than planning alone, because a host that is
ahead of its device plans for nothing.

The first steps warm up and are not counted. (Re)compilations are those that torch.compile and Triton report while
counted steps run; warmed-up kernels should have none, however the masks differ.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from plan_costs import attempted, clocked, fresh, training, write_rows

from longca import registry
from longca.kernels.base import Kernel, Plan
from longca.manifests import Device, Problem
from longca.manifests.devices import current_device
from longca.masks import Mask, sample
from longca_bench.measuring.environment import surroundings
from longca_bench.verification.inputs import draw_inputs

PATTERNS = ("causal_document", "prefix_lm_document")
WARM_UP, LEAST_STEPS = 2, 5


class Compilations:
    """Counts what torch.compile and Triton compile, as far as they are loaded."""

    def __init__(self) -> None:
        self._by_triton = 0
        if "triton" in sys.modules or torch.cuda.is_available():
            from triton import knobs

            knobs.compilation.listener = self._heard

    def _heard(self, **_about: Any) -> None:
        """A kernel that this process did not have yet; one that its cache on disk has counts too."""
        self._by_triton += 1

    @property
    def count(self) -> int:
        """Compilations so far."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        graphs = dynamo.counters["stats"]["unique_graphs"] if dynamo else 0
        return int(graphs) + self._by_triton


class Step:
    """The attention of one training step on tensors that stay the same, each layer's output in turn.

    Args:
        kernel: The kernel.
        problem: The problem of every step, apart from the mask.
        layers: Layers that share a plan.
    """

    def __init__(self, kernel: Kernel, problem: Problem, layers: int) -> None:
        self.kernel, self.problem, self.layers = kernel, problem, layers
        self.inputs = draw_inputs(problem, seed=0)

    def plan(self, mask: Mask) -> Plan:
        """A plan for a mask of which nothing but the slices is known."""
        return self.kernel.plan(self.problem.with_mask(fresh(mask)))

    def run(self, plan: Plan) -> None:
        """Every layer's forward, then every layer's backward."""
        x = self.inputs
        for _ in range(self.layers):
            out, lse = self.kernel.forward(x.q, x.k, x.v, plan)
        for _ in range(self.layers):
            self.kernel.backward(x.dout, x.q, x.k, x.v, out, lse, plan)


def measure(
    kernel: str, pattern: str, seqlen: int, device: Device, asked: argparse.Namespace, compilations: Compilations
) -> dict[str, Any]:
    """The seconds of steps of one kernel and pattern."""
    about = {"kernel": kernel, "pattern": pattern, "seqlen": seqlen, "layers": asked.layers, "heads": asked.heads}
    masks = [sample(pattern, seqlen, lengths="auto", seed=seed) for seed in range(WARM_UP + asked.steps)]
    problem = training(masks[0], asked.heads, device, asked.head_dim)
    verdicts = [registry().resolve(kernel, problem.with_mask(mask)) for mask in masks]
    refused = next((verdict for verdict in verdicts if not verdict), None)
    if refused is not None:
        return {**about, "status": "unsupported", "message": " ".join(map(str, refused.reasons))}

    def steps() -> dict[str, Any]:
        step = Step(registry().load(kernel), problem, asked.layers)
        for mask in masks[:WARM_UP]:
            _take(step, mask, device)
        before = compilations.count
        taken = [_take(step, mask, device) for mask in masks[WARM_UP:]]
        return {**_figures(*zip(*taken, strict=True)), "compilations": compilations.count - before}

    return {**about, **attempted(steps, device)}


def _figures(planning: Sequence[float], planned: Sequence[float], reused: Sequence[float]) -> dict[str, Any]:
    """The means of steps, and the share of planning."""
    plan, step, kept = map(statistics.fmean, (planning, planned, reused))
    return {
        "steps": len(planned),
        "plan_seconds": plan,
        "step_seconds": step,
        "reused_seconds": kept,
        "plan_share": plan / step,
        "overhead": step / kept - 1,
        "samples": {"plan": planning, "step": planned, "reused": reused},
    }


def _take(step: Step, mask: Mask, device: Device) -> tuple[float, float, float]:
    """Seconds of planning alone, of the step with planning, and of the step on a plan that is there."""

    def whole() -> Plan:
        plan = step.plan(mask)
        step.run(plan)
        return plan

    alone, *_ = clocked(lambda: step.plan(mask), device)
    planned, plan, _ = clocked(whole, device)
    reused, *_ = clocked(lambda: step.run(plan), device)
    return alone, planned, reused


def line(row: dict[str, Any]) -> str:
    """A row of the printed table."""
    name = f"{row['kernel']:12}{row['pattern']:20}{row['seqlen']:>8}"
    if row["status"] != "ok":
        return f"{name}  {row['status']}: {row['message']}"
    times = "".join(f"{row[field] * 1e3:>11.2f}" for field in ("step_seconds", "reused_seconds", "plan_seconds"))
    return f"{name}{times}{row['plan_share']:>11.2%}{row['overhead']:>11.2%}{row['compilations']:>10}"


def main() -> None:
    """Measures, prints a table, and writes the record where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=[name for name in registry().kernels if name != "naive"])
    parser.add_argument("--patterns", nargs="+", default=list(PATTERNS))
    parser.add_argument("--seqlens", nargs="+", type=int, default=[2**15, 2**17])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--heads", default="32:8", help="query heads and KV heads")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--steps", type=int, default=LEAST_STEPS, help=f"steps that count; at least {LEAST_STEPS}")
    parser.add_argument("--out", type=Path, help="JSON file to write the record to")
    asked = parser.parse_args()
    if asked.steps < LEAST_STEPS:
        parser.error(f"--steps must be at least {LEAST_STEPS}")
    device, compilations = current_device(), Compilations()
    heads = ("ms a step", "plan kept", "plan alone", "share", "overhead", "compiled")
    print(f"{'kernel':12}{'mask':20}{'tokens':>8}" + "".join(f"{head:>11}" for head in heads))
    rows = []
    for seqlen in asked.seqlens:
        for pattern in asked.patterns:
            for kernel in asked.kernels:
                rows.append(measure(kernel, pattern, seqlen, device, asked, compilations))
                print(line(rows[-1]), flush=True)
    if asked.out:
        write_rows(asked.out, {"environment": surroundings(registry(), device)}, rows)


if __name__ == "__main__":
    main()
