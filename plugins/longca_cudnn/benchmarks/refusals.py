"""Finds by trial the problems that cuDNN refuses or gets wrong. The manifest's offers are compared with this record.

    python plugins/longca_cudnn/benchmarks/refusals.py --out refusals.json

The script tries every form, kind of window and relation of lengths with every head dimension, data type, number of KV
heads and direction. It does not ask the manifest. Each result is compared with float64 attention. Each form and pair of
lengths has its own process, so a crash affects no other.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from longca import Problem
from longca.errors import UnsupportedError
from longca.kernels.base import Plan, device_of
from longca.masks import Form, Slice, SliceMask
from longca_bench.verification.inputs import Inputs, draw_inputs
from longca_bench.verification.reference import reference
from longca_bench.verification.verify import check_backward, check_counts, check_forward
from longca_cudnn.kernel import CuDNN

LENGTHS = ((203, 203), (77, 203), (203, 77))
HEADS = ((3, 3), (8, 1))
#: Kinds of masks: the form, and how far a query sees to the left and the right of its document's diagonal.
KINDS: dict[str, tuple[Form, int | None, int | None]] = {
    "full": (Form.FULL, None, None),
    "causal": (Form.CAUSAL, None, 0),
    "window left and right": (Form.WINDOW, 40, 40),
    "window uneven": (Form.WINDOW, 40, 9),
    "window causal": (Form.WINDOW, 40, 0),
    "window left alone": (Form.WINDOW, 40, None),
    "window right alone": (Form.WINDOW, None, 9),
    "documents full": (Form.VARLEN, None, None),
    "documents causal": (Form.VARLEN, None, 0),
    "documents window": (Form.VARLEN, 10, 10),
    "documents window causal": (Form.VARLEN, 10, 0),
}


@dataclass
class Case:
    """One combination that was tried.

    Attributes:
        kind: A key of `KINDS`.
        lengths: Queries and keys.
        heads: Query heads and KV heads.
        head_dim: Head dimension.
        dtype: Data type.
        direction: `forward`, or `backward` for both.
        deterministic: Whether equal bits were asked for.
        result: `accepted`, `refused`, `wrong` or `failed`. It is `not run` after a failure that ended the process.
        message: The reason for a result other than `accepted`.
    """

    kind: str
    lengths: tuple[int, int]
    heads: tuple[int, int]
    head_dim: int
    dtype: str
    direction: str
    deterministic: bool
    result: str = "not run"
    message: str = ""


def cases(kind: str, lengths: tuple[int, int], head_dims: list[int], dtypes: list[str]) -> Iterator[Case]:
    """Every combination for one kind of masks at one pair of lengths."""
    directions = (("forward", False), ("backward", False), ("backward", True))
    for heads, head_dim, dtype, (direction, strict) in itertools.product(HEADS, head_dims, dtypes, directions):
        yield Case(kind, lengths, heads, head_dim, dtype, direction, strict)


def mask_of(kind: str, lengths: tuple[int, int]) -> SliceMask:
    """One document, or five documents of which one is a single query and one a single key."""
    form, left, right = KINDS[kind]
    (seqlen_q, seqlen_k), cuts_q, cuts_k = lengths, [0], [0]
    if form is Form.VARLEN:
        cuts_q += [1, seqlen_q // 3, seqlen_q // 2, seqlen_q - 9]
        cuts_k += [1, seqlen_k // 4, seqlen_k // 4 + 1, seqlen_k // 2]
    slices = []
    for (q0, q1), (k0, k1) in zip(
        itertools.pairwise([*cuts_q, seqlen_q]), itertools.pairwise([*cuts_k, seqlen_k]), strict=True
    ):
        slices.append(
            Slice(
                q0,
                q1,
                k0,
                k1,
                **({} if left is None else {"lo": k1 - q1 - left}),
                **({} if right is None else {"hi": k1 - q1 + right}),
            )
        )
    return SliceMask(slices, seqlen_q, seqlen_k)


def attempt(case: Case) -> Case:
    """Tries one combination and stores the result in it."""
    problem = Problem(
        mask=mask_of(case.kind, case.lengths),
        heads_q=case.heads[0],
        heads_kv=case.heads[1],
        head_dim=case.head_dim,
        dtype=case.dtype,  # type: ignore[arg-type]
        device=device_of(torch.empty(1, device="cuda")),
        direction=case.direction,  # type: ignore[arg-type]
        deterministic=case.deterministic,
    )
    kernel = CuDNN()
    try:
        plan = kernel.plan_as(problem, KINDS[case.kind][0])
        case.message = flaws(kernel, problem, plan)
        case.result = "wrong" if case.message else "accepted"
    except UnsupportedError as error:
        case.result, case.message = "refused", str(error)
    except Exception as error:  # the script records any exception of cuDNN
        case.result, case.message = "failed", f"{type(error).__name__}: {error}"
    return case


def flaws(kernel: Any, problem: Problem, plan: Plan) -> str:
    """Describes the faults of the results. Empty if there are none."""
    inputs = draw_inputs(problem, seed=0)
    expected = reference(problem, inputs)
    found, out, lse = check_forward(kernel, plan, inputs, expected)
    found += check_counts(kernel, plan, inputs)
    if problem.direction == "backward":
        found += check_backward(kernel, plan, inputs, out, lse, expected)
    said = [str(finding) for finding in found.failures]
    if problem.deterministic and differs(kernel, plan, inputs):
        said.append("equal inputs gave other bits")
    return "; ".join(said)


def differs(kernel: Any, plan: Plan, inputs: Inputs) -> bool:
    """Whether one of several runs gives other bits than the first."""
    results = []
    for _ in range(4):
        again = inputs.clone()
        out, lse = kernel.forward(again.q, again.k, again.v, plan)
        results.append((out, lse, *kernel.backward(again.dout, again.q, again.k, again.v, out, lse, plan)))
    return any(not torch.equal(x, y) for run in results[1:] for x, y in zip(results[0], run, strict=True))


def run_chunk(arguments: argparse.Namespace, kind: str, lengths: tuple[int, int]) -> list[Case]:
    """Tries every combination of a chunk in its own process."""
    options = ["--head-dims", *map(str, arguments.head_dims), "--dtypes", *arguments.dtypes]
    command = [sys.executable, __file__, "--chunk", kind, *map(str, lengths), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = [Case(**json.loads(line)) for line in lines]
    rest = list(cases(kind, lengths, arguments.head_dims, arguments.dtypes))[len(found) :]
    if rest:
        last = done.stderr.strip().splitlines()[-1:]
        rest[0].result, rest[0].message = "failed", f"exit status {done.returncode}: {last}"
    print(f"{kind}, {lengths[0]} × {lengths[1]}: {dict(Counter(case.result for case in [*found, *rest]))}", flush=True)
    return [*found, *rest]


def main() -> None:
    """Tries everything, prints the combinations that were not accepted, and writes all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--head-dims", nargs="+", type=int, default=[64, 96, 128, 192, 256])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16"])
    parser.add_argument("--chunk", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.chunk:
        kind, *lengths = arguments.chunk
        for case in cases(kind, (int(lengths[0]), int(lengths[1])), arguments.head_dims, arguments.dtypes):
            print(json.dumps(asdict(attempt(case))), flush=True)
        return
    import cudnn

    with ThreadPoolExecutor(arguments.workers) as pool:
        chunks = itertools.product(arguments.kinds, LENGTHS)
        found = list(itertools.chain(*pool.map(lambda chunk: run_chunk(arguments, *chunk), chunks)))
    for result in ("refused", "wrong", "failed", "not run"):
        for case in found:
            if case.result == result:
                flag = ", deterministic" if case.deterministic else ""
                where = f"{case.kind}, {case.lengths}, heads {case.heads} of {case.head_dim}, {case.dtype}"
                print(f"{result}: {where}, {case.direction}{flag}: {case.message[:300]}")
    print(f"{len(found)} tried: {dict(Counter(case.result for case in found))}")
    environment = {
        "device": torch.cuda.get_device_name(),
        "cudnn": cudnn.backend_version_string(),
        "frontend": cudnn.__version__,
        "torch": torch.__version__,
    }
    if arguments.out:
        document = {"environment": environment, "cases": [asdict(case) for case in found]}
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
