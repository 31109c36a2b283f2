"""The kernel or pair of a mix that one step takes: the one with the least predicted time."""

from __future__ import annotations

from longca.manifests import Problem
from longca.manifests.mixes import asked_of_step, kernels_of
from longca.plugins import Registry
from longca_advice.asked import Asked
from longca_advice.costs import CostModel
from longca_advice.kernels import pair_candidates, single_candidates
from longca_advice.sources import sources
from longca_advice.stand_ins import answered_by

__all__ = ["taken"]


def taken(
    registry: Registry, mix: str, problem: Problem, costs: CostModel | None = None, anywhere: bool = False
) -> str:
    """The name of the kernel or pair of a mix that takes a step in the least predicted time.

    A GPU without evidence goes by the GPU with the nearest compute capability. A kernel without evidence is taken only
    if no kernel has evidence: the first valid kernel of the mix, or the first pair.

    Args:
        registry: Knows the kernels.
        mix: The mix's name.
        problem: The step's problem. Direction `backward` stands for both directions.
        costs: Predicts the times. None for the evidence of this machine.
        anywhere: Whether a kernel stays valid when its packages are missing here.

    Raises:
        UnsupportedError: No kernel and no pair of the mix takes the step.
        RequestError: The evidence cannot be read.
    """
    step, kernels = asked_of_step(problem), kernels_of(mix)
    verdicts = registry.ways(mix, problem, anywhere=anywhere)
    if not any(verdicts.values()):
        registry.resolve(mix, problem, anywhere=anywhere).check()
    training = step.direction == "backward"
    known = costs or sources().costs
    whole = Asked(step, training, registry, known, None, kernels, anywhere)
    for gpu in (None, *known.gpus_like(step.device)):
        asked = answered_by(whole, gpu)
        alone = single_candidates(asked, {name: verdicts[name] for name in asked.kernels})
        if found := [*alone, *pair_candidates(asked, alone, most=1.0)]:
            return min(found, key=lambda candidate: candidate.ranked).kernel
    return next(name for name, verdict in verdicts.items() if verdict)
