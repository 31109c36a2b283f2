"""The parts of the host time of a call of `longca.attention` with a known mask: microseconds of a call, on any machine.

    python core/benchmarks/host_parts.py [--seqlen 16] [--heads 4:2] [--head-dim 64] [--samples 2000]
        [--out results/cpu/host_parts.json]

Samples are those of `host_cost.py`: the attention of eight layers. The kernel allocates its results and computes
nothing. Each step does all that the step before it does, and the part that it is named for. `added` is its median less
the median of the step before. The steps of a call take turns.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from host_cost import (
    LAYERS,
    Attention,
    Bare,
    attention_by,
    layers_of,
    micros_by_turns,
    parsed,
    parser_of,
    seconds_of_a_layer,
)
from plan_costs import write_rows
from torch import Tensor

from longca import registry
from longca.kernels import operators
from longca.kernels.base import Kernel, Plan
from longca.kernels.direct import LongCAAttention
from longca.kernels.planned import Planned, Settings, planned
from longca.masks import Mask
from longca_bench.measuring.environment import surroundings
from longca_bench.verification.inputs import draw_inputs

CALLS = ("eager forward", "eager inference", "compiled inference")
#: The kernel that plans. `allocate` stands in the place of its forward.
NAME = "naive"
ASKED = (NAME, None, False, False)


def allocate(q: Tensor, _k: Tensor, _v: Tensor, *_others: Any) -> tuple[Tensor, Tensor]:
    """Results of a kernel, with any values."""
    return torch.empty_like(q), torch.empty((q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device)


def eager(mask: Mask, kernel: Kernel, plan: Plan, *, is_training: bool) -> dict[str, Attention]:
    """The steps of an eager call."""
    function: Any = Bare.apply
    ours: Any = LongCAAttention.apply

    def ready(q: Tensor, k: Tensor, v: Tensor) -> Planned:
        return planned(mask, q, k, v, Settings(*ASKED), is_training)

    attention = attention_by(NAME, mask)
    if not is_training:
        return {
            "kernel": lambda q, k, v: kernel.forward(q, k, v, plan)[0],
            "plan lookup": lambda q, k, v: (found := ready(q, k, v)).kernel.forward(q, k, v, found.plan)[0],
            "around the kernel": lambda q, k, v: ready(q, k, v).forward(q, k, v)[0],
            "checks of arguments": attention,
        }
    return {
        "kernel": lambda q, k, v: kernel.forward(q, k, v, plan)[0],
        "autograd function": lambda q, k, v: function(q, k, v, kernel, plan),
        "plan lookup": lambda q, k, v: function(q, k, v, (found := ready(q, k, v)).kernel, found.plan),
        "around the kernel": lambda q, k, v: ours(q, k, v, ready(q, k, v), Settings(*ASKED))[0],
        "checks of arguments": attention,
    }


def compiled(mask: Mask, library: torch.library.Library) -> dict[str, Attention]:
    """The steps of a call in a compiled graph. All operators have the arguments of `longca::attention`."""

    def looked_up(q: Tensor, k: Tensor, v: Tensor, key: Tensor, *asked: Any) -> tuple[Tensor, Tensor]:
        found = planned(int(key), q, k, v, Settings(*asked[:-1]), asked[-1])
        return found.kernel.forward(q, k, v, found.plan)

    schema = operators.attention._opoverload._schema
    signature = str(schema)[len(schema.name) :]
    library.define(f"step_operator{signature}")
    library.impl("step_operator", allocate, "CompositeExplicitAutograd")
    torch.library.register_fake("longca::step_operator", allocate, lib=library)
    for name, function in (("step_checks", allocate), ("step_lookup", looked_up)):
        made = torch.library.custom_op(f"longca::{name}", function, mutates_args=(), schema=signature)
        made.register_fake(allocate)
        operators.quicken(made, function, 3)
    ops, asked = torch.ops.longca, (torch.from_numpy(mask.key_array), *ASKED, False)
    return {
        "graph": lambda q, k, _v: q + k[0, 0],
        "operator with the kernel": lambda q, k, v: ops.step_operator(q, k, v, *asked)[0],
        "checks of tensors": lambda q, k, v: ops.step_checks(q, k, v, *asked)[0],
        "plan lookup": lambda q, k, v: ops.step_lookup(q, k, v, *asked)[0],
        "around the kernel": lambda q, k, v: ops.attention(q, k, v, *asked)[0],
        "guards": attention_by(NAME, mask),
    }


def measure(call: str, steps: dict[str, Attention], given: list[Tensor], samples: int) -> list[dict[str, Any]]:
    """The rows of a call: one for each step."""
    wrap = torch.compile(fullgraph=True) if call.startswith("compiled") else lambda layers: layers
    calls = {part: partial(wrap(layers_of(step)), *given) for part, step in steps.items()}
    ways = {part: partial(seconds_of_a_layer, call) for part, call in calls.items()}
    rows, before = [], 0.0
    for part, values in micros_by_turns(ways, samples).items():
        median = statistics.median(values)
        rows.append({"call": call, "part": part, "added": median - before, "until": median, "least": min(values)})
        before = median
    return rows


def main() -> None:
    """Measures, prints a table, and writes the record where asked to."""
    parser = parser_of(__doc__, samples=2000)
    parser.add_argument("--calls", nargs="+", choices=CALLS, default=list(CALLS))
    asked, problem = parsed(parser)
    kernel, mask = registry().load(NAME), problem.concrete_mask
    plan = kernel.plan(problem)
    drawn = [draw_inputs(problem, seed=layer) for layer in range(LAYERS)]
    given = [drawn[0].q, *(x for each in drawn for x in (each.k, each.v))]
    rows = []
    print(f"{'call':20}{'part':26}{'added µs':>10}{'until':>8}{'least':>8}")
    with torch.library._scoped_library("longca", "FRAGMENT") as library, patch.object(kernel, "forward", allocate):
        for call in asked.calls:
            is_training = call.endswith("forward")
            steps = (
                compiled(mask, library)
                if call.startswith("compiled")
                else eager(mask, kernel, plan, is_training=is_training)
            )
            with torch.set_grad_enabled(is_training):
                found = measure(call, steps, [x.requires_grad_(is_training) for x in given], asked.samples)
            rows += found
            for row in found:
                print(
                    f"{call:20}{row['part']:26}{row['added']:>10.1f}{row['until']:>8.1f}{row['least']:>8.1f}",
                    flush=True,
                )
    if asked.out:
        about = {"environment": surroundings(registry(), problem.device), "samples": asked.samples}
        write_rows(asked.out, about, rows)


if __name__ == "__main__":
    main()
