"""verify_first: an offer that nobody verified on this device is verified on this machine before it runs.

`longca verify --unverified` does it in a process of its own and stores the result, so that it is done once. Processes
that need the same kernel at the same time wait for one another.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from longca.errors import RecordError, VerificationError
from longca.import_path import safe_environment, safe_python
from longca.manifests import Device, Layout, Offer, Problem, Verdict
from longca.manifests.verified import Standing, check_of, standing, verified_path
from longca.plain_text import plain_text
from longca.plugins import Registry
from longca_advice.announced import Choice

__all__ = ["choose_first", "verify_first"]

_log = logging.getLogger("longca")


def verify_first(registry: Registry, verdict: Verdict, device: Device) -> None:
    """Verifies the offers of a verdict that nobody verified on the device. Else it returns at once.

    Args:
        registry: The registry of the kernels.
        verdict: The verdict on a problem that allows such offers.
        device: The device of the problem.

    Raises:
        VerificationError: An offer is not right on this device, or could not be verified.
        RecordError: The result cannot be stored.
    """
    for part in verdict.halves or (verdict,):
        if part.unverified:
            offers = dict.fromkeys(offer for offer in (part.offer, *part.offers) if offer is not None)
            _verify(registry, part.kernel, tuple(offers), device)


def choose_first(
    registry: Registry, problem: Problem, choose: Callable[[Problem], Choice], layout: Layout | None = None
) -> Choice:
    """The choice of `auto`, after its kernel was verified. If that fails, the choice is among verified kernels.

    Args:
        registry: The registry of the kernels.
        problem: The problem.
        choose: Chooses a kernel for a problem.
        layout: Under context parallelism, the queries, keys and heads of every step.

    Raises:
        RecordError: The result of the verification cannot be stored.
        UnsupportedError: No verified kernel takes the problem.
    """
    choice = choose(problem)
    try:
        verify_first(registry, registry.resolve(choice.kernel, problem, layout), problem.device)
    except VerificationError as error:
        _log.warning("attention: %s. Now a verified kernel is chosen", error)
        choice = choose(replace(problem, allow_unverified=False))
    return choice


def _verify(registry: Registry, kernel: str, offers: Sequence[Offer], device: Device) -> None:
    with _alone():
        found = {standing(kernel, offer, device) for offer in offers}
        if Standing.FAILED_HERE not in found and found & {Standing.EXPECTED}:
            _log.warning("attention: nobody verified %s on %s; it is verified now, once, for minutes", kernel, device)
            said = _run(registry, kernel)
        else:
            said = ""
    for offer in offers:
        if standing(kernel, offer, device).is_open:
            check = check_of(kernel, offer, device)
            why = (
                check.message if check else f"`longca verify --unverified --kernel {kernel}` said: {said or 'nothing'}"
            )
            raise VerificationError(
                f"{kernel} is not verified on {device}: {why}. Take another kernel, or run `longca verify --unverified "
                f"--kernel {kernel}` once the reason is gone"
            )


@contextmanager
def _alone() -> Iterator[None]:
    """Holds a lock beside the file of results.

    Raises:
        RecordError: The lock's file cannot be made.
    """
    path = verified_path().with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        advice = "Set LONGCA_VERIFIED to a path that can be written"
        what = f"no result of a verification can be stored in {path.parent}: {error.strerror}"
        raise RecordError(f"{what}. {advice}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _run(registry: Registry, kernel: str) -> str:
    """Verifies a kernel in another process, on the current device. Returns its last words on stderr."""
    without = (word for name in sorted(registry.disabled) for word in ("--no-plugin", name))
    command = safe_python("-m", "longca", "verify", "--unverified", "--kernel", kernel, "--json", *without)
    ran = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False)
    return plain_text(ran.stderr.strip()[-1000:])


def _environment() -> dict[str, str]:
    """This process's environment, in which the current GPU is the only one."""
    if not torch.cuda.is_available():
        return safe_environment()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    index = torch.cuda.current_device()
    return {**safe_environment(), "CUDA_VISIBLE_DEVICES": visible.split(",")[index] if visible else str(index)}
