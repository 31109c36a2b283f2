"""`longca verify`: every offer of a kernel, compared with float64 attention."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.errors import RequestError, VerificationError
from longca.limits import MAX_REPEATS
from longca_bench.cli import options
from longca_bench.cli.mask_options import MaskOptions
from longca_bench.cli.options import chosen_device, flag, open_registry, option, print_json, takes_options
from longca_bench.cli.verification_json import provenance, verification_as_json
from longca_bench.cli.verify_function import FunctionOptions, of_function, verify_function
from longca_bench.measuring.options import DEADLINE, let_threads_sleep

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca.manifests.verified import Check
    from longca_bench.conformance.offers import OfferCheck

__all__ = ["verify"]


@takes_options(MaskOptions, "described")
@takes_options(FunctionOptions, "about")
def verify(
    context: typer.Context,
    kernel: options.Kernels = None,
    device: options.DeviceName = None,
    timeout: options.Timeout = DEADLINE,
    repeat: Annotated[
        int | None, option("Call each problem N times more, on changed inputs.", "N", min=1, max=MAX_REPEATS)
    ] = None,
    unverified: Annotated[
        bool, option("Verify only offers that nobody verified here, and keep the result.", None, "--unverified")
    ] = False,
    function: Annotated[str | None, of_function("Verify this function of q, k and v.", "MODULE:FUNCTION")] = None,
    about: FunctionOptions = FunctionOptions(),
    described: MaskOptions = MaskOptions(),
    as_json: options.AsJson = False,
    no_plugin: options.NoPlugin = None,
) -> None:
    """Verifies kernels against float64 attention, on every offer of their manifests.

    The table shows the worst row of each offer beside the error of PyTorch's own arithmetic. Kernels run in processes
    of their own. The exit code is 1 if an offer fails, or if nothing of a named kernel can be verified here.

    An offer that passed with --unverified counts as verified on this machine, until another version of the kernel, of a
    package that it requires or of PyTorch is installed. A kernel that is wrong is passed over by kernel='auto' on this
    machine, until another version of it is installed.

    With --function a function of yours is verified. The answer names what is wrong in known ways. Under torchrun each
    rank's function gets the rank's own tokens.

    Example: longca verify --kernel sdpa

    Example: longca verify --function my_module:attention --mask causal_document
    """
    let_threads_sleep()
    if function is not None:
        given = {"kernel": kernel, "repeat": repeat, "unverified": unverified}
        _refuse("--function verifies one function, on its own", given)
        verify_function(function, about, described, chosen_device(device), timeout, as_json=as_json)
        return
    length = {"seqlen": described.seqlen, "seqlen_k": described.seqlen_k, "seed": described.seed}
    _refuse("kernels are verified on every offer of their manifests", {**vars(about), **length, **described.given})
    from longca.manifests.pairs import split

    registry = open_registry(context, no_plugin)
    where = chosen_device(device)
    names = list(dict.fromkeys(kernel or registry.kernels))
    for name in names:
        if unverified and split(name):
            raise RequestError(f"--unverified verifies single kernels, and {name} is a pair; name its kernels")
        registry.manifests(name)

    from longca_bench.conformance.isolation import Isolation
    from longca_bench.conformance.kept_verdicts import doubt, note
    from longca_bench.conformance.offers import variants_to_verify, verify_variant
    from longca_bench.reports.text import console
    from longca_bench.reports.verify_table import print_verification

    isolation = Isolation(timeout=timeout)
    variants = {name: variants_to_verify(registry, name, where, isolation, unverified) for name in names}
    code = {name: provenance(registry, name, where) for name in names} if as_json else {}
    found: dict[str, list[OfferCheck]] = {name: [] for name in names if not (unverified or variants[name])}
    finished = dict.fromkeys(found, datetime.now(UTC))
    try:
        for name, some in variants.items():
            for variant in some:
                check = verify_variant(variant, repeat or 0)
                found.setdefault(name, []).append(check)
                finished[name] = datetime.now(UTC)
            if unverified and some:
                _say_noted(name, where, note(registry, name, where, found[name]))
            if not as_json and name in found:
                print_verification(console(), name, found[name], where)
    finally:  # of a command that was interrupted, the offers that were verified are told
        left = {name: len(variants[name]) - len(checks) for name, checks in found.items()}
        doubtful = {} if unverified else found  # an unverified offer that is wrong is refused by itself
        for name, checks in doubtful.items():
            for wrong, is_kept in doubt(registry, name, where, checks, complete=not left[name]).items():
                _say_doubted(wrong, is_kept=is_kept, quietly=as_json)
        if as_json:
            print_json(
                {name: verification_as_json(found[name], finished[name], code[name]) for name in names if name in found}
            )
        for name, count in () if as_json else left.items():
            if count:
                print_verification(console(), name, found[name], where)
                typer.echo(f"{name}: interrupted before {count} of its {len(variants[name])} rows", err=True)
    if any(check.status.is_failure and not check.skipped for checks in found.values() for check in checks):
        raise typer.Exit(1)
    if unverified and not found:
        typer.echo(f"no offer of {', '.join(names)} waits to be verified on {where}", err=True)
        return
    _refuse_nothing(found, kernel or ())


def _refuse(why: str, given: Mapping[str, Any]) -> None:
    """Refuses options that were given."""
    if names := [flag(name) for name, value in given.items() if value]:
        raise RequestError(f"{why}; leave out {' and '.join(names)}")


def _say_noted(kernel: str, device: Device, noted: Sequence[Check]) -> None:
    """Says on stderr how many of a kernel's offers count as verified from now on."""
    if passed := sum(check.passed for check in noted):
        typer.echo(f"{kernel}: {passed} of {len(noted)} offers passed, and count as verified on {device}", err=True)


def _say_doubted(kernel: str, *, is_kept: bool, quietly: bool) -> None:
    """Says on stderr what a wrong kernel means for this machine. A finding that is lost is always told."""
    from longca_advice.history import history_path

    if not is_kept:
        typer.echo(
            f"{kernel} is wrong, and this cannot be kept in {history_path()}, so kernel='auto' may still take it. Set "
            "LONGCA_HISTORY to a path that can be written",
            err=True,
        )
    elif not quietly:
        typer.echo(f"{kernel}: kernel='auto' passes over this version of it on this machine", err=True)


def _refuse_nothing(found: Mapping[str, list[OfferCheck]], named: Collection[str]) -> None:
    """Raises an error if no offer of a named kernel, or of any kernel, was verified."""
    nothing = [name for name, checks in found.items() if all(check.skipped for check in checks)]
    if not (set(nothing) & set(named) or len(nothing) == len(found)):
        return
    missed = [name for name in nothing if name in named] or nothing
    reasons = dict.fromkeys(check.skipped.rstrip(".") for name in missed for check in found[name])
    raise VerificationError(f"nothing of {', '.join(missed)} was verified here: {'; '.join(reasons)}")
