"""The host time that `longca.attention` adds to a kernel: microseconds of a call with a known mask.

    python core/benchmarks/host_cost.py [--kernels sdpa fa4] [--seqlen 16] [--heads 4:2] [--head-dim 64]
        [--samples 500] [--out results/cpu/host_cost.json]

A sample is the attention of eight layers with one short mask, each layer's output the next one's queries. The host's
clock runs from the first call to the last return. The device is idle at the start, and the wait for it is not timed.
Figures are those of one call. Three ways take turns, so that drift cancels:

- `bare` calls the kernel with its plan.
- `function` wraps the kernel in a `torch.autograd.Function` that does nothing else. Autograd itself takes this time.
- `attention` calls `longca.attention`, in eager mode or with all layers in one compiled graph.

The passes are `inference`, a forward without gradients, `forward`, which keeps tensors for a backward, and `backward`.
`added` is attention's median less the bare median. A CPU computes within the call, so its figures are differences of
larger times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rows import attempted, training, write_rows
from torch import Tensor

import longca
from longca import registry
from longca.kernels.base import Kernel, Plan
from longca.manifests import Problem
from longca.manifests.devices import current_device
from longca.masks import Mask, build
from longca_bench.measuring.environment import surroundings
from longca_bench.verification.inputs import draw_inputs

PASSES = ("inference", "forward", "backward")
MODES = ("eager", "compiled")
WARM_UP, LAYERS = 20, 8

#: The attention of one layer.
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class Bare(torch.autograd.Function):
    """A kernel with a plan, and nothing around it."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, plan: Plan) -> Tensor:
        """The kernel's out."""
        out, lse = kernel.forward(q, k, v, plan)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.kernel, ctx.plan = kernel, plan
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """The kernel's gradients."""
        return *ctx.kernel.backward(dout, *ctx.saved_tensors, ctx.plan), None, None


class Calls:
    """The attention of all layers on one kernel. Each method returns its seconds.

    Args:
        name: The kernel.
        problem: The problem in training.
    """

    def __init__(self, name: str, problem: Problem) -> None:
        self.kernel: Kernel = registry().load(name)
        self.plan = self.kernel.plan(problem)
        drawn = [draw_inputs(problem, seed=layer) for layer in range(LAYERS)]
        self.q, self.dout, self.kv = drawn[0].q, drawn[0].dout, [(x.k, x.v) for x in drawn]
        self.leaves = [x.clone().requires_grad_() for x in (self.q, *(x for pair in self.kv for x in pair))]
        eager = layers_of(attention_by(name, problem.concrete_mask))
        self.function = layers_of(lambda *qkv: Bare.apply(*qkv, self.kernel, self.plan))  # type: ignore[no-untyped-call]
        self.attention: dict[str, Callable[..., Tensor]] = {
            "eager": eager,
            "compiled": torch.compile(eager, fullgraph=True),
        }

    def bare(self, what: str) -> float:
        """The kernel alone, on the same queries in each layer."""
        if what != "backward":
            return seconds_of_a_layer(lambda: [self.kernel.forward(self.q, k, v, self.plan) for k, v in self.kv])
        kept = [(self.q, k, v, *self.kernel.forward(self.q, k, v, self.plan)) for k, v in self.kv]
        return seconds_of_a_layer(lambda: [self.kernel.backward(self.dout, *layer, self.plan) for layer in kept])

    def differentiable(self, what: str, layers: Callable[..., Tensor]) -> float:
        """A differentiable function of all layers' tensors."""
        if what == "inference":
            with torch.no_grad():
                return seconds_of_a_layer(lambda: layers(*self.leaves))
        if what == "forward":
            return seconds_of_a_layer(lambda: layers(*self.leaves))
        out = layers(*self.leaves)
        return seconds_of_a_layer(lambda: torch.autograd.grad(out, self.leaves, self.dout))


def attention_by(name: str, mask: Mask) -> Attention:
    """`longca.attention` by a kernel, with a mask."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = longca.attention(q, k, v, mask, kernel=name)
        assert isinstance(out, Tensor)
        return out

    return attention


def layers_of(attend: Attention) -> Callable[..., Tensor]:
    """Attention layer by layer. Each layer's output is the next one's queries."""

    def layers(q: Tensor, *kv: Tensor) -> Tensor:
        for k, v in zip(kv[::2], kv[1::2], strict=True):
            q = attend(q, k, v)
        return q

    layers.__code__ = layers.__code__.replace()  # a compiler looks through all graphs of a code object at each call
    return layers


def seconds_of_a_layer(call: Callable[[], object]) -> float:
    """Seconds of a layer until a call returns, from an idle device. The result is freed after the clock stopped."""
    _settle()
    start = time.perf_counter()
    kept = call()
    seconds = time.perf_counter() - start
    _settle()
    del kept
    return seconds / LAYERS


def micros_by_turns(ways: Mapping[str, Callable[[], float]], samples: int) -> dict[str, list[float]]:
    """Microseconds of each way. The ways give seconds, and take turns. Some turns come before, to warm up."""
    micros: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(WARM_UP + samples):
        for way, call in ways.items():
            seconds = call()
            if turn >= WARM_UP:
                micros[way].append(seconds * 1e6)
    return micros


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(name: str, mode: str, problem: Problem, samples: int) -> list[dict[str, Any]]:
    """A kernel's rows in one mode: one for each pass. A kernel that does not take the problem has errors."""
    about = {"kernel": name, "mode": mode, "seqlen": problem.concrete_mask.seqlen_q}

    def timed(what: str) -> dict[str, Any]:
        registry().resolve(name, problem).check()
        own = Calls(name, problem)
        ways = {
            "bare": partial(own.bare, what),
            "function": partial(own.differentiable, what, own.function),
            "attention": partial(own.differentiable, what, own.attention[mode]),
        }
        micros = micros_by_turns(ways, samples)
        medians = {way: statistics.median(values) for way, values in micros.items()}
        least = {way: min(values) for way, values in micros.items()}
        return {**medians, "added": medians["attention"] - medians["bare"], "least": least, "samples": samples}

    return [
        {**about, "pass": what, **attempted(lambda what=what: timed(what), problem.device)}  # type: ignore[misc]
        for what in PASSES
    ]


def line(row: dict[str, Any]) -> str:
    """A row of the printed table."""
    name = f"{row['kernel']:12}{row['mode']:10}{row.get('pass', ''):10}"
    if row["status"] != "ok":
        return f"{name}  {row['status']}: {row['message']}"
    return name + "".join(f"{row[way]:>11.1f}" for way in ("bare", "function", "attention", "added"))


def parser_of(about: str | None, samples: int) -> argparse.ArgumentParser:
    """A parser of the problem, the number of samples and the record's file.

    Args:
        about: The benchmark's description.
        samples: The number of samples without the option.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlen", type=int, default=16)
    parser.add_argument("--heads", default="4:2", help="query heads and KV heads")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--samples", type=int, default=samples, help="timed samples of each way")
    parser.add_argument("--out", type=Path, help="JSON file to write the record to")
    return parser


def parsed(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, Problem]:
    """The arguments, and their problem on this machine. PyTorch takes one thread from here on."""
    asked = parser.parse_args()
    if asked.samples < 1:
        parser.error("--samples must be at least 1")
    torch.set_num_threads(1)
    return asked, training(build("causal", asked.seqlen), asked.heads, current_device(), asked.head_dim)


def main() -> None:
    """Measures, prints a table, and writes the record where asked to."""
    parser = parser_of(__doc__, samples=500)
    parser.add_argument("--kernels", nargs="+", default=["sdpa"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    asked, problem = parsed(parser)
    heads = ("bare µs", "function", "attention", "added")
    print(f"{'kernel':12}{'mode':10}{'pass':10}" + "".join(f"{head:>11}" for head in heads))
    rows = []
    for kernel in asked.kernels:
        for mode in asked.modes:
            found = measure(kernel, mode, problem, asked.samples)
            rows += found
            print("\n".join(map(line, found)), flush=True)
    if asked.out:
        write_rows(asked.out, {"environment": surroundings(registry(), problem.device)}, rows)


if __name__ == "__main__":
    main()
