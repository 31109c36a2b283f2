"""`longca verify --function`: a user's function, compared with float64 attention, alone or on the ranks of torchrun."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from longca.errors import LongCAError, RequestError
from longca.limits import shown
from longca_bench.cli.finding_json import finding_as_json
from longca_bench.cli.options import chosen_directions, print_json
from longca_bench.cli.recommend import parse_heads

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca.masks import Mask
    from longca_bench.cli.mask_options import MaskOptions
    from longca_bench.functions.check import FunctionCheck, MaskCheck
    from longca_bench.functions.ranks import Ranks
    from longca_bench.functions.remote import RemoteFunction

__all__ = ["verify_function"]

_MOST_SHOWN = 3  # wrong masks
_HEADS, _HEAD_DIM = "4:2", 64
_LEAST = 1.0  # seconds that a rank waits for another one
#: Visible pairs of the largest mask by device. float64 attention computes each of them, which takes minutes.
_MOST_PAIRS = {"cpu": 2**33, "cuda": 2**40}
#: Numbers of a tensor by device: 1 and 16 GiB in float64. Masks that options do not describe have about _LENGTH tokens.
_MOST_NUMBERS, _LENGTH = {"cpu": 2**27, "cuda": 2**31}, 256


def verify_function(
    text: str, given: Mapping[str, Any], described: MaskOptions, device: Device, timeout: float, *, as_json: bool
) -> None:
    """Verifies a function and prints the answer, on the first rank.

    Args:
        text: The module and the function.
        given: The given options that go with --function, by name.
        described: The options of a mask.
        device: The device.
        timeout: Seconds that the function's import and each call may take.
        as_json: Whether to print JSON.

    Raises:
        RequestError: The function cannot be loaded or called, or an option does not fit.
        VerificationError: The function raised on a rank, or gave no answer in time, or its import ended the worker.
        typer.Exit: The function is wrong. The code is 1.
    """
    from longca_bench.functions.check import examine

    heads = parse_heads(given.get("heads", _HEADS), _HEADS)
    mask = _mask(given.get("mask"), described, heads)
    _check_size(mask, device, heads, given.get("head_dim", _HEAD_DIM))
    chosen_directions(given.get("direction"))
    with _ranks(given, timeout) as ranks, _function(text, device, timeout) as function:
        placement = given.get("placement", "contiguous")
        found = examine(
            function,
            mask,
            device,
            shape=given.get("shape", "thd"),
            direction=given.get("direction", "backward"),
            dtype=given.get("dtype", "float32"),
            heads=heads,
            head_dim=given.get("head_dim", _HEAD_DIM),
            softmax_scale=given.get("scale"),
            rotary=given.get("rotary"),
            equal_lengths=bool(given.get("equal_lengths")),
            seed=described.seed,
            ranks=ranks,
            placement=function.placing(placement) if ":" in placement else placement,
        )
    if ranks is None or ranks.rank == 0:
        print_json(_as_json(found)) if as_json else _print(found)
    if not found.passed:
        raise typer.Exit(1)


def _mask(pattern: str | None, described: MaskOptions, heads: tuple[int, int]) -> Mask | str | None:
    """The one mask that options describe, or the pattern."""
    lengths = {"seqlen": described.seqlen, "seqlen_k": described.seqlen_k}
    given = [*described.given, *(name for name, value in lengths.items() if value is not None)]
    if not given:
        return pattern
    if pattern is None:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise RequestError(f"{options} describe a mask without a pattern; name it, such as --mask causal_document")
    from longca.masks import get_pattern

    return described.mask(pattern, heads[1] if get_pattern(pattern).per_head else None)


def _check_size(mask: Mask | str | None, device: Device, heads: tuple[int, int], head_dim: int) -> None:
    """Refuses a mask that is too large to be verified, or tensors that are."""
    lengths = _LENGTH, _LENGTH
    if mask is not None and not isinstance(mask, str):
        lengths, most = (mask.seqlen_q, mask.seqlen_k), _MOST_PAIRS[device.kind]
        if mask.area > most:
            raise RequestError(
                f"{mask.label} has {mask.area:.2g} visible pairs, and float64 attention on {device.kind} takes at most "
                f"{most:.2g} here; give a shorter --seqlen, because mistakes show at some hundred tokens too"
            )
    numbers = max(length * count for length, count in zip(lengths, heads, strict=True)) * head_dim
    if numbers > _MOST_NUMBERS[device.kind]:
        raise RequestError(
            f"a tensor would have {shown(numbers)} numbers in all heads, and at most {_MOST_NUMBERS[device.kind]} are "
            f"allowed here on {device.kind}; give fewer --heads, a smaller --head-dim or a shorter --seqlen"
        )


@contextmanager
def _ranks(given: Mapping[str, Any], timeout: float) -> Iterator[Ranks | None]:
    """The process group of torchrun's ranks, on CPUs. None on one device."""
    from longca_bench.ranks.job import current_job

    if (job := current_job()) is None:
        if "placement" in given:
            raise RequestError(
                "--placement shares tokens among ranks, and there are none; start it with `torchrun --nproc-per-node 2 "
                "-m longca verify …`, or leave it out"
            )
        yield None
        return
    from datetime import timedelta

    import torch.distributed as dist

    from longca_bench.functions.ranks import Ranks

    job.enter()
    dist.init_process_group("gloo", timeout=timedelta(seconds=max(timeout, _LEAST)))
    try:
        yield Ranks.of()
    finally:
        if not isinstance(sys.exc_info()[1], LongCAError):  # the other ranks may wait, and torchrun ends them
            dist.destroy_process_group()


@contextmanager
def _function(text: str, device: Device, timeout: float) -> Iterator[RemoteFunction]:
    """The function in a worker, which ends with the block. On ranks the workers join each other."""
    import torch

    from longca.kernels.base import torch_device
    from longca_bench.conformance.road import workers_on
    from longca_bench.functions.remote import RemoteFunction
    from longca_bench.ranks.job import current_job

    job, place = current_job(), torch_device(device)
    if job is not None and place.type == "cuda":
        place = torch.device("cuda", job.local_rank)
        torch.cuda.set_device(place)
    workers = workers_on(place)
    try:
        yield RemoteFunction(workers, text, timeout, job)
    finally:
        workers.end()


def _print(found: FunctionCheck) -> None:
    from longca_bench.reports.text import console, marks, safe

    out, (yes, no, _) = console(), marks()
    results = ", ".join(dict.fromkeys(finding.tensor for each in found.masks for finding in each.findings))
    masks = f"{len(found.masks)} mask{'s' * (len(found.masks) != 1)}"
    about = f"{found.dtype} (tried on {'; '.join(found.groups)})" if found.groups else found.dtype
    if found.passed:
        nearest = max(found.masks, key=_closeness)
        out.print(f"{yes} {safe(found.name)} is right on {masks}: {results} in {about}", soft_wrap=True)
        out.print(f"nearest to its limit: {safe(_worst(nearest))}", soft_wrap=True)
        for limit in found.limits:
            out.print(f"limit: it is wrong where {limit}", soft_wrap=True)
        return
    out.print(f"{no} {safe(found.name)} is wrong on {len(found.failures)} of {masks} in {about}", soft_wrap=True)
    for sentence in found.sentences:
        out.print(f"[red]{safe(sentence)}[/]", soft_wrap=True)
    rows = [each for each in found.failures if each.worst is not None]
    for each in rows[:_MOST_SHOWN]:
        out.print(f"worst row: {safe(_worst(each))}", soft_wrap=True)
    if len(rows) > _MOST_SHOWN:
        out.print(f"and {len(rows) - _MOST_SHOWN} more; --json lists all of them", soft_wrap=True)


def _closeness(check: MaskCheck) -> float:
    return 0.0 if check.worst is None else check.worst.closeness


def _worst(check: MaskCheck) -> str:
    return f"{check.label}: {check.worst}"


def _as_json(found: FunctionCheck) -> dict[str, Any]:
    return {
        "function": found.name,
        "dtype": found.dtype,
        "passed": found.passed,
        "groups": list(found.groups),
        "limits": list(found.limits),
        "sentences": found.sentences,
        "mistakes": [
            {
                "mistake": str(mistake),
                "says": mistake.says,
                "detail": masks[0].mistakes[mistake] or None,
                "masks": [each.label for each in masks],
            }
            for mistake, masks in found.mistakes.items()
        ],
        "masks": [
            {
                "mask": each.label,
                "passed": each.passed,
                "error": each.error or None,
                "findings": [finding_as_json(each.label, finding) for finding in each.findings],
            }
            for each in found.masks
        ],
    }
