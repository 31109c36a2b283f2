"""`longca verify --function`: a user's function, compared with float64 attention, alone or on the ranks of torchrun."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.errors import RequestError
from longca.manifests import Problem
from longca.parsing import parse_head_dim, parse_heads
from longca_bench.cli.options import chosen_directions, flag, masks, option, print_json
from longca_bench.cli.verification_json import finding_as_json

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca.masks import Mask
    from longca_bench.cli.mask_options import MaskOptions
    from longca_bench.functions.check import FunctionCheck
    from longca_bench.functions.ranks import Ranks
    from longca_bench.ranks.job import Job

__all__ = ["FunctionOptions", "of_function", "verify_function"]

_MOST_SHOWN = 3  # wrong masks
_LEAST = 1.0  # seconds that a rank waits for another one
#: Visible pairs of the largest mask by device. float64 attention computes each of them, which takes minutes.
_MOST_PAIRS = {"cpu": 2**33, "cuda": 2**40}

of_function = partial(option, rich_help_panel="A function of yours")


@dataclass(frozen=True)
class FunctionOptions:
    """The options of `longca verify` that go with --function."""

    shape: Annotated[str | None, of_function("thd, bhsd or bshd. (default: thd)", "SHAPE")] = None
    mask: Annotated[
        str | None,
        of_function("Only masks of this pattern, or the mask of its options. (default: all)", complete=masks),
    ] = None
    equal_lengths: Annotated[bool, of_function("Only as many queries as keys.", None, "--equal-lengths")] = False
    direction: Annotated[
        str | None, of_function("forward, or backward or training for both. (default: training)", "NAME")
    ] = None
    dtype: Annotated[str | None, of_function("Data type of its tensors. (default: float32)", "NAME")] = None
    heads: Annotated[str | None, of_function("Query heads and KV heads. (default: 4:2)", "HQ:HKV")] = None
    head_dim: Annotated[str | None, of_function("Head dim, such as 64, or 192:128. (default: 64)", "N[:NV]")] = None
    scale: Annotated[float | None, of_function("Factor on the scores. (default: 1/√head dim)", "X")] = None
    softcap: Annotated[float | None, of_function("Bound on the scores. (default: none)", "C")] = None
    placement: Annotated[
        str | None, of_function("The tokens of each rank under torchrun. (default: contiguous)", "NAME|MODULE:FUNCTION")
    ] = None


def verify_function(
    text: str, given: FunctionOptions, described: MaskOptions, device: Device, timeout: float, *, as_json: bool
) -> None:
    """Verifies a function and prints the answer, on the first rank."""
    from longca.manifests.offers import parse_dtype
    from longca_bench.functions.check import Examination
    from longca_bench.ranks.job import current_job

    heads = parse_heads("4:2" if given.heads is None else given.heads)
    dim, dim_v = parse_head_dim(given.head_dim or "64")
    mask, job = _mask(given.mask, described, heads, device), current_job()
    if job is None and given.placement is not None:
        raise RequestError(
            "--placement shares tokens among ranks, and there are none; start it with `torchrun --nproc-per-node 2 "
            "-m longca verify …`, or leave it out"
        )
    asked: dict[str, Any] = {
        "heads_q": heads[0],
        "heads_kv": heads[1],
        "head_dim": dim,
        "head_dim_v": dim_v,
        "dtype": parse_dtype(given.dtype or "float32"),
        "device": device,
        "direction": chosen_directions(given.direction or "training")[-1],
        "softmax_scale": given.scale,
        "softcap": given.softcap,
    }
    more: dict[str, Any] = {"equal_lengths": given.equal_lengths, "seed": described.seed or 0}
    shape = given.shape or "thd"
    if job is None:
        parameters, kernel = _in_worker(text, shape, device, timeout)
        found = Examination(text, parameters, kernel, asked, **more).run(mask)
    else:
        with _on_ranks(job, device, timeout) as ranks:
            parameters, kernel = _in_process(text, shape, given.placement or "contiguous")
            found = Examination(text, parameters, kernel, asked, ranks, **more).run(mask)
    if job is None or job.rank == 0:
        print_json(_as_json(found)) if as_json else _print(found, _problem(mask, asked, found))
    if not found.passed:
        raise typer.Exit(1)


def _mask(pattern: str | None, described: MaskOptions, heads: tuple[int, int], device: Device) -> Mask | str | None:
    """The one mask that options describe, or the pattern."""
    lengths = {"seqlen": described.seqlen, "seqlen_k": described.seqlen_k}
    given = [*described.given, *(name for name, value in lengths.items() if value is not None)]
    from longca.masks import PATTERNS

    if not given and (pattern is None or pattern in PATTERNS):
        return pattern
    if pattern is described.tree is None:
        options = " and ".join(map(flag, given))
        raise RequestError(f"{options} describe a mask without a pattern; name it, such as --mask causal_document")
    mask = described.mask(described.named(pattern), heads[1])
    if mask.area > (most := _MOST_PAIRS[device.kind]):
        raise RequestError(
            f"{mask.label} has {mask.area:.2g} visible pairs, and float64 attention on {device.kind} takes at most "
            f"{most:.2g} here; give a shorter --seqlen, because mistakes show at some hundred tokens too"
        )
    return mask


def _problem(mask: Mask | str | None, asked: Mapping[str, Any], found: FunctionCheck) -> str:
    """The problem in words: of the one mask that options describe, or of the masks that were examined."""
    from longca.masks import Mask, get_pattern

    directions = "forward and backward" if asked["direction"] == "backward" else "forward"
    if isinstance(mask, Mask):
        return Problem(mask=mask, **asked).describe(directions)
    masks = f"{len(found.masks)} masks" + (f" of {mask}" if mask else " of all patterns")
    return Problem(mask=get_pattern(mask or "causal"), **asked).describe(directions, mask=masks)


def _in_worker(text: str, shape: str, device: Device, timeout: float) -> tuple[tuple[str, ...], Any]:
    """The parameters of a function, and the function as a kernel in a worker."""
    from longca.plugins import Registry
    from longca_bench.conformance.isolation import Isolation
    from longca_bench.functions.check import BATCH
    from longca_bench.functions.function_plugin import install
    from longca_bench.functions.user_function import UserFunction, load

    name = install(text, shape, BATCH)
    registry, isolation = Registry(), Isolation(timeout=timeout)
    return UserFunction.of(load(text), text).parameters, lambda _: isolation.kernel(registry, name, device)


def _in_process(text: str, shape: str, placement: str) -> tuple[tuple[str, ...], Any]:
    """The parameters of a function, and the function as a kernel of this rank."""
    from longca_bench.functions.check import BATCH
    from longca_bench.functions.function_kernel import FunctionKernel, Shape
    from longca_bench.functions.user_function import UserFunction, load

    function, of = UserFunction.of(load(text), text), Shape.named(shape)
    placed = load(placement) if ":" in placement else placement
    return function.parameters, lambda ranks: FunctionKernel(function, of, BATCH, ranks, placed)


@contextmanager
def _on_ranks(job: Job, device: Device, timeout: float) -> Iterator[Ranks]:
    """The process group of torchrun's ranks."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from longca_bench.functions.ranks import Ranks

    job.enter()
    if device.kind == "cuda":
        torch.cuda.set_device(job.local_rank)
    backend = "cpu:gloo,cuda:nccl" if device.kind == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=max(timeout, _LEAST)))
    yield Ranks.of()
    dist.destroy_process_group()  # not after an error: the other ranks may wait, and torchrun ends them


def _print(found: FunctionCheck, problem: str) -> None:
    from longca_bench.reports.text import console, marks, print_problem, safe

    out, (yes, no, _) = console(), marks()
    print_problem(out, problem)
    masks = f"{len(found.masks)} mask{'s' * (len(found.masks) != 1)}"
    rows = [(each.label, each.worst) for each in found.masks if each.worst is not None]
    if found.passed:
        results = ", ".join(dict.fromkeys(finding.tensor for each in found.masks for finding in each.findings))
        out.print(f"{yes} {safe(found.name)} is right on {masks}: {results} in {found.dtype}", soft_wrap=True)
        label, nearest = max(rows, key=lambda row: row[1].closeness)
        out.print(f"nearest to its limit: {safe(f'{label}: {nearest}')}", soft_wrap=True)
        for limit in found.limits:
            out.print(f"limit: it is wrong where {limit}", soft_wrap=True)
        return
    out.print(f"{no} {safe(found.name)} is wrong on {len(found.failures)} of {masks} in {found.dtype}", soft_wrap=True)
    for sentence in found.sentences:
        out.print(f"[red]{safe(sentence)}[/]", soft_wrap=True)
    wrong = [(label, worst) for label, worst in rows if not worst.passed]
    for label, worst in wrong[:_MOST_SHOWN]:
        out.print(f"worst row: {safe(f'{label}: {worst}')}", soft_wrap=True)
    if len(wrong) > _MOST_SHOWN:
        out.print(f"and {len(wrong) - _MOST_SHOWN} more; --json lists all of them", soft_wrap=True)


def _as_json(found: FunctionCheck) -> dict[str, Any]:
    return {
        "function": found.name,
        "dtype": found.dtype,
        "passed": found.passed,
        "limits": list(found.limits),
        "sentences": found.sentences,
        "masks": [
            {
                "mask": each.label,
                "passed": each.passed,
                "error": each.error or None,
                "mistake": each.mistake or None,
                "findings": [finding_as_json(each.label, finding) for finding in each.findings],
            }
            for each in found.masks
        ],
    }
