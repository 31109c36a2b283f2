"""`longca run`: verifies and measures a suite or one problem."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longca.errors import RequestError
from longca.limits import MAX_GIB, MAX_SECONDS
from longca_bench.cli.mask_options import PANEL, MaskOptions, say_lengths, takes_mask
from longca_bench.cli.options import (
    AsJson,
    NoPlugin,
    chosen_device,
    chosen_directions,
    count_workers,
    finite,
    open_registry,
)
from longca_bench.cli.progress import say_duration
from longca_bench.cli.run_advised import advised, print_advised
from longca_bench.cli.run_request import ChosenKernels, Described, Request, chosen_suite
from longca_bench.measuring.options import DEADLINE, Options, let_threads_sleep

if TYPE_CHECKING:
    from collections.abc import Callable

    from longca.manifests import Device
    from longca.plugins import Registry
    from longca_bench.measuring.outcome import Outcome
    from longca_bench.ranks.leader import Leader

__all__ = ["run"]

_MANY_PAIRS = 100


@takes_mask("seqlen", "seqlen_k", "seed")
def run(
    context: typer.Context,
    suite: Annotated[str, typer.Argument(help="A suite's name, a TOML file of one, or a mask pattern.")],
    kernel: Annotated[list[str] | None, typer.Option(help="Only this kernel. Repeatable. (default: all)")] = None,
    mask: Annotated[list[str] | None, typer.Option(help="Only this mask pattern of the suite. Repeatable.")] = None,
    seqlen: Annotated[
        list[int] | None,
        typer.Option(
            help="Only this length, or this length instead of the suite's. Repeatable. (default: the suite's; for a "
            "pattern the sum of --documents, the last of --boundaries, or 4096)"
        ),
    ] = None,
    heads: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these query and KV heads, such as 64:8. Repeatable. (default: the suite's; for a pattern 32:8)"
        ),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="Only this seed. Repeatable. (default: the suite's; for a pattern 0)")
    ] = None,
    direction: Annotated[
        str | None,
        typer.Option(help="Only this direction, forward or backward. (default: the suite's; for a pattern both)"),
    ] = None,
    strategy: Annotated[list[str] | None, typer.Option(help="Only this strategy. Repeatable.")] = None,
    placement: Annotated[
        list[str] | None,
        typer.Option(help="Only this placement, or this placement instead of the suite's. Repeatable."),
    ] = None,
    transport: Annotated[
        list[str] | None,
        typer.Option(help="Only this transport: auto, collectives or copy_engine. Repeatable. (default: the suite's)"),
    ] = None,
    nproc: Annotated[
        int | None, typer.Option(help="Number of ranks to start on this host. They share each case.", min=1, max=4096)
    ] = None,
    described: MaskOptions = MaskOptions(),
    head_dim: Annotated[
        list[int] | None,
        typer.Option(help="Head dimension of a pattern's problem. Repeatable. (default: 128)", rich_help_panel=PANEL),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="Dtype of a pattern's problem. Repeatable. (default: bfloat16)", rich_help_panel=PANEL),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. (default: cuda if there is one)")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the records. (default: runs/SUITE-TIME)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds that a case may take.", min=0.001, max=MAX_SECONDS, callback=finite)
    ] = DEADLINE,
    wait_idle: Annotated[
        float,
        typer.Option(
            help="Seconds that a case may wait until other processes leave the machine alone. A case that was "
            "disturbed all the same is repeated within them.",
            min=0,
            max=MAX_SECONDS,
            callback=finite,
        ),
    ] = 0.0,
    memory: Annotated[
        float | None,
        typer.Option(help="GiB of address space for each worker.", min=0.1, max=MAX_GIB, callback=finite),
    ] = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast/--keep-going", help="Skip all later cases after the first failure.")
    ] = False,
    pairs: Annotated[
        bool,
        typer.Option("--pairs", help="Measure all valid pairs of the kernels too, in direction backward."),
    ] = False,
    ab: Annotated[
        tuple[str, str] | None,
        typer.Option("--ab", metavar="A B", help="Let two kernels take turns on each case."),
    ] = None,
    recommended: Annotated[
        int | None,
        typer.Option(
            metavar="[N]",
            help="Measure the N choices that are predicted to be fastest for a pattern's problem, and compare them "
            "with the predictions. (N: 3)",
            min=1,
        ),
    ] = None,
    unverified: Annotated[
        bool,
        typer.Option(
            "--unverified", help="Measure offers too that nobody verified on this device. Each case is verified."
        ),
    ] = False,
    function: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Measure this function of q, k and v beside the kernels, on one device. It may return (out, lse).",
        ),
    ] = None,
    shape: Annotated[
        str, typer.Option(metavar="SHAPE", help="The shape of the function's tensors: thd, bhsd or bshd.")
    ] = "thd",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cases that would be measured, and stop.")
    ] = False,
    as_json: AsJson = False,
    no_plugin: NoPlugin = None,
) -> None:
    """Measures a suite or one problem. Every case is planned, verified, and only then timed.

    A mask pattern in place of a suite is one problem for every kernel. The options below describe the mask. Factors
    that are not given are drawn. A kernel that does not take the problem is listed as unsupported.
    """
    from longca_bench.suites.cases import Selection

    let_threads_sleep()
    chosen = ChosenKernels(tuple(kernel or ()), ab, recommended, pairs, unverified)
    kernels = chosen.names(None if function is None else (function, shape), alone=not (nproc or strategy))
    selection = Selection(
        kernels=kernels,
        patterns=tuple(mask or ()),
        seqlens=tuple(seqlen or ()),
        directions=chosen_directions(direction),
        heads=tuple(heads or ()),
        seeds=tuple(seed or ()),
        strategies=tuple(strategy or ()),
        placements=tuple(placement or ()),
        transports=tuple(transport or ()),
        pairs=pairs,
    )
    disabled = frozenset(context.obj or ()) | frozenset(no_plugin or ())
    limit = None if memory is None else int(memory * 2**30)
    options = Options(timeout, limit, fail_fast, disabled, interleave=ab is not None, wait_idle=wait_idle)
    about = device, nproc, out, resume, dry_run, as_json, ab, recommended, unverified
    from longca.manifests.offers import check_dtype

    for each in dtype or ():
        check_dtype(each)
    problem = Described(described, tuple(head_dim or ()), tuple(dtype or ()))
    wanted = Request(suite, selection, problem, options, *about)
    _in_its_place(lambda leader: _run(wanted, open_registry(context, no_plugin), leader))


def _run(wanted: Request, registry: Registry, leader: Leader | None) -> None:
    from longca_bench.suites.cases import absent, expand
    from longca_bench.suites.duration import duration_of
    from longca_bench.suites.tasks import takes

    ranks = wanted.nproc if leader is None else leader.size
    suite, selection = chosen_suite(wanted, ranks)
    where = chosen_device(wanted.device)
    _check_ranks(wanted, where, ranks)
    leads = wanted.dry_run or leader is not None or ranks is None
    outcomes: list[Outcome] = []
    if wanted.recommended is not None and leads:
        suite, outcomes = advised(wanted, suite, where, registry, ranks)
    valid = takes(registry, where, allow_unverified=wanted.unverified)
    found = expand(suite, registry.kernels, selection, strategies=registry.strategies, ranks=ranks, takes=valid)
    cases = [replace(case, allow_unverified=wanted.unverified) for case in found]
    if leads:
        if (pairs := sum("+" in case.kernel for case in cases)) > _MANY_PAIRS:
            typer.echo(f"{pairs} of {len(cases)} cases are pairs; name kernels with --kernel for fewer", err=True)
        if wanted.described.mask.lengths is not None:
            say_lengths(wanted.described.mask.lengths)
        for name, advice in absent(suite, (*registry.kernels, *registry.strategies), selection).items():
            typer.echo(f"{name} is left out: {advice}", err=True)
    if wanted.dry_run and outcomes:
        print_advised(outcomes, as_json=wanted.as_json)
    elif wanted.dry_run:
        from longca_bench.cli.run_plan import print_plan

        print_plan(registry, cases, where, wanted.as_json)
        if not wanted.as_json:
            say_duration(duration_of(cases, where, registry), err=False)
    elif leader is None and ranks is not None:
        from longca_bench.ranks.launch import launch

        if code := launch(ranks, sys.argv[1:]):
            raise typer.Exit(code)
    else:
        from longca_bench.cli.run_measure import measure

        measure(wanted, suite, cases, where, registry, leader, outcomes)


def _in_its_place(lead: Callable[[Leader | None], None]) -> None:
    """Does the part of this process. In a job the first process leads, and the others supervise their ranks."""
    from longca_bench.ranks.job import current_job

    job = current_job()
    if job is not None and job.rank > 0:
        from longca_bench.ranks.member import follow

        follow(job)
        return
    if job is None:
        lead(None)
        return
    from longca_bench.ranks.leader import leading

    with leading(job) as leader:
        lead(leader)


def _check_ranks(wanted: Request, where: Device, ranks: int | None) -> None:
    """Refuses options that do not go with ranks."""
    if ranks is None:
        return
    if wanted.ab:
        raise RequestError("--ab lets two kernels take turns on one device; leave it out, or --nproc and torchrun")
    here = count_workers(where)
    if wanted.nproc is not None and where.kind == "cuda" and wanted.nproc > here:
        raise RequestError(f"--nproc {wanted.nproc} needs as many GPUs, and {here} are visible. Take --nproc {here}")
