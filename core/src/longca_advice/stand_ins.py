"""Stand-ins: GPUs whose evidence answers for a GPU without any, and the kernels that are trusted there.

A stand-in is a measured GPU. The one with the nearest compute capability comes first. The choices of kernels and of
strategies go by it alike, and say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from longca.manifests import Device, Problem
from longca.plugins import Registry
from longca_advice.asked import Asked
from longca_advice.devices import evidence_name
from longca_advice.history import code_version
from longca_advice.sources import sources

__all__ = ["answered_by", "stand_ins", "trusted"]


def stand_ins(device: Device) -> list[Device | None]:
    """The GPUs whose evidence may answer for a device: None for the device itself, and then its stand-ins.

    Args:
        device: The device. A CPU has no stand-in.
    """
    return [None, *sources().costs.gpus_like(device)]


def answered_by(asked: Asked, gpu: Device | None) -> Asked:
    """The question as the evidence of a GPU answers it.

    Evidence of another GPU knows nothing of kernels that were found wrong here, so they are left out.

    Args:
        asked: The question.
        gpu: One of `stand_ins`.
    """
    if gpu is None:
        return asked
    wrong = _doubted(asked.problem, asked.registry, asked.kernels)
    return replace(asked, measured=gpu, kernels=tuple(name for name in asked.kernels if name not in wrong))


def trusted(problem: Problem, registry: Registry, valid: list[str]) -> tuple[list[str], list[str]]:
    """The kernels whose installed version was not found wrong here, or all of them if none is left.

    Args:
        problem: The problem, with its device.
        registry: The registry of the kernels.
        valid: The valid kernels.

    Returns:
        The kernels, and a sentence about each other one, or about all of them.
    """
    wrong = _doubted(problem, registry, valid)
    if wrong and len(wrong) == len(valid):
        return valid, [
            f"LongCA found every valid kernel wrong or suspect here, and one is taken: {', '.join(sorted(wrong))}"
        ]
    said = [f"{name} is passed over: LongCA found this version of it wrong or suspect here" for name in sorted(wrong)]
    return [name for name in valid if name not in wrong], said


def _doubted(problem: Problem, registry: Registry, kernels: Iterable[str]) -> set[str]:
    """The kernels whose installed version was found wrong or suspect on the problem's device."""
    device, here = evidence_name(problem.device), sources().here
    providers = {name: registry.provider(name) for name in kernels} if here.wrong else {}
    versions = {name: code_version(its.distribution, its.version) for name, its in providers.items()}
    return {name for name, version in versions.items() if here.verdict_on(name, device, version)}
