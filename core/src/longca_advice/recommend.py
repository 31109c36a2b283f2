"""recommend: which kernel, which strategy, and will it fit? Answered from evidence, without torch and without a GPU."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path

from longca.errors import MissingPackageError, RequestError
from longca.limits import MAX_RANKS, shown
from longca.manifests import Device, Direction, Problem
from longca.manifests.devices import current_device
from longca.manifests.offers import DType
from longca.manifests.pairs import split
from longca.masks import Mask
from longca.parsing import parse_bytes
from longca.plugins import Registry, registry
from longca_advice.candidates import Ranking, rank_kernels
from longca_advice.choices import Recommendation, Refused
from longca_advice.devices import DEVICES, Capacity, evidence_name, named_device
from longca_advice.known_plugins import absent_strategies, install_of, with_known
from longca_advice.memory import held_bytes
from longca_advice.network import Link
from longca_advice.request import Request
from longca_advice.sources import Sources, sources

__all__ = ["recommend"]


def recommend(
    mask: Mask,
    *,
    heads: tuple[int, int],
    head_dim: int = 128,
    head_dim_v: int | None = None,
    dtype: DType = "bfloat16",
    device: Device | str | None = None,
    ranks: int = 1,
    per_node: int = 8,
    training: bool = True,
    memory: str | int | None = None,
    network: str | None = None,
    records: Sequence[str | Path] = (),
    kernels: Sequence[str] = (),
    strategies: Sequence[str] = (),
    plugins: Registry | None = None,
    unseen: bool = False,
    allow_unverified: bool = False,
    softmax_scale: float | None = None,
    softcap: float | None = None,
    sinks: bool = False,
) -> Recommendation:
    """Ranks the valid ways to compute attention by their predicted time. It runs no kernel.

    Args:
        mask: The mask of all tokens.
        heads: Query heads and KV heads.
        head_dim: Head dimension of q and k.
        head_dim_v: Head dimension of v. None for that of q and k.
        dtype: Data type of q, k and v.
        device: A device, or the name of one: `h200`, `cuda:9.0`, `cpu`. None is this machine's GPU, or without one the
            GPU with the most measurements.
        ranks: Devices that share the tokens.
        per_node: Devices on each host. Devices of one host count as linked like the devices of the evidence.
        training: Whether a backward follows the forward.
        memory: Memory of each device, such as `80GB` or a number of bytes, or None for the device's known memory.
        network: Link of each device within a host (`pcie4`, `pcie5` or `nvlink`), to other hosts (`400Gb` or
            `50GB/s,5µs`), or both (`pcie4+400Gb`). Within a host the default is the measured link. The link between
            hosts is required if ranks are on several.
        records: Folders of runs, whose verified records are added to the evidence.
        kernels: Kernels to choose from, and pairs such as `fa3+fa4`. Empty for all.
        strategies: Strategies to choose from. Empty for all.
        plugins: The plugins that provide kernels and strategies. None for the installed plugins, and for the kernels
            that the evidence knows without their plugins. Such choices say so.
        unseen: Whether to leave the problem's own measurements out of the evidence.
        allow_unverified: Whether to choose among offers too that are only expected to run on the device, because nobody
            verified them there. Such choices are marked.
        softmax_scale: Factor on the scores. None for 1/√head_dim.
        softcap: Bound of the scores (`longca.Problem`). None for no bound.
        sinks: Whether query heads have sinks. The predicted times are those without sinks, and a note says so.

    Returns:
        The recommendation. If no choice fits, it says which changes would make one fit.

    Raises:
        RequestError: An unknown device, memory or network, ranks below 1, a strategy for one rank, a pair without
            training, or records that cannot be read. Also evidence with impossible times. The message names the line.
        UnknownNameError: A kernel or a strategy that nobody provides.
        MissingPackageError: The plugin of the strategies is not installed.
    """
    _check_ranks(ranks, per_node)
    known = sources(tuple(map(str, records)))
    if unseen:
        dims = head_dim, None if head_dim_v == head_dim else head_dim_v
        same = (mask.digest, *heads, *dims, ranks)  # in any data type
        fields = attrgetter("mask", "heads_q", "heads_kv", "head_dim", "head_dim_v", "ranks")
        each = ((row, fields(row)) for row in known.rows)
        known = Sources(tuple(row for row, its in each if its != same), known.notes)
    where = device if isinstance(device, Device) else named_device(device, known.costs.devices)
    measured = Counter(row.run.device for row in known.rows if row.run.capability)
    is_elsewhere = device is None and where.kind == "cpu" and bool(measured)
    if is_elsewhere:
        where = known.costs.devices[measured.most_common(1)[0][0]]
    provided = plugins or with_known(registry())
    problem = Problem(
        mask=mask,
        heads_q=heads[0],
        heads_kv=heads[1],
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        dtype=dtype,
        device=where,
        direction=Direction.FORWARD,
        allow_unverified=allow_unverified,
        softmax_scale=softmax_scale,
        softcap=softcap,
        sinks=sinks,
    )
    absent = absent_strategies(provided)
    for name in strategies or (() if provided.strategies or ranks == 1 else absent):
        if name in absent:
            raise MissingPackageError(absent[name], "context parallelism", install_of([absent[name]]))
        provided.strategy(name)
    if strategies and ranks == 1:
        raise RequestError(
            f"{', '.join(strategies)}: a strategy is for two or more devices that share the tokens, and one was asked "
            f"for; name more ranks (--gpus), or no strategy"
        )
    chosen, pairs = _chosen(kernels or tuple(provided.kernels), provided, training)
    capacity = Capacity.of(where)
    if memory is not None:
        capacity = Capacity(parse_bytes(memory) if isinstance(memory, str) else memory)
    request = Request(problem, training, provided, known.costs, capacity, chosen, pairs=pairs)
    within, between = Link.both(network)
    links = partial(known.links, per_host=per_node, between=between, within=within)

    def rank(request: Request) -> Ranking:
        if (too_large := _too_large(request, ranks)) is not None:
            return Ranking((), (), (too_large,))
        if ranks == 1:
            return rank_kernels(request)
        from longca_advice.strategies import rank_strategies

        found = links(evidence_name(request.measured or where))
        return rank_strategies(request, ranks, found, tuple(strategies or provided.strategies))

    found = rank(request)
    alike = (gpu for gpu in request.costs.gpus_like(where) if gpu.capability == where.capability)
    if not found.choices and (gpu := next(alike, None)):
        request = replace(request, measured=gpu)
        found = rank(request)
    disturbed = known.disturbed(evidence_name(request.measured or where))
    notes = (*known.notes, *disturbed, *found.notes)
    notes += tuple(_about_evidence(request, found))
    if between is not None and ranks <= per_node:
        notes += (f"the link between hosts is not used: {ranks} devices fit one host of {per_node} (--per-node)",)
    if sinks:
        notes += ("the times are those without sinks, whose correction reads and writes out once more",)
    network_text = ""
    if ranks > 1:
        source = "measured" if request.measured is None else f"measured on {evidence_name(request.measured)}"
        network_text = links(evidence_name(request.measured or where)).network.describe(ranks, per_node, source)
    about = request.as_json(ranks, per_node, network_text)
    if is_elsewhere:
        name = next((name for name, gpu in DEVICES.items() if gpu.name == where.name), where.name)
        about["text"] += (
            f"\nNo GPU here; add --device {name}. This answer is for it, because it has the most measurements."
        )
    here = request.device_name == evidence_name(current_device())
    choices = tuple(sorted(found.choices, key=lambda choice: choice.fits is False))  # in their order otherwise
    return Recommendation(about, str(where), ranks, choices, found.unmeasured, found.refused, notes, here, found.why)


def _chosen(
    names: Sequence[str], provided: Registry, training: bool
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The single kernels and the pairs among some names."""
    pairs = {name: pair for name in names if (pair := split(name)) is not None}
    alone = tuple(name for name in dict.fromkeys(names) if name not in pairs)
    for name in pairs:
        provided.manifests(name)
    for name in alone:
        provided.manifest(name)
    if pairs and not training:
        name, (forward, _) = next(iter(pairs.items()))
        raise RequestError(f"{name} is a pair of a forward and a backward; without training name {forward}")
    return alone, tuple(pairs.values())


def _check_ranks(ranks: int, per_node: int) -> None:
    for name, value in (("ranks", ranks), ("per_node", per_node)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_RANKS:
            raise RequestError(f"{name} is {shown(value)}; give an integer from 1 to {MAX_RANKS}")


def _too_large(request: Request, ranks: int) -> Refused | None:
    """The refusal of a problem whose tensors alone are too large, with sizes that would fit."""
    if request.capacity is None:
        return None
    mask = request.problem.concrete_mask
    shares = -(-mask.seqlen_q // ranks), -(-mask.seqlen_k // ranks)
    needed = held_bytes(request.problem, *shares, training=request.training)
    if request.fits(needed):
        return None
    # Tokens of queries and keys whose tensors alone fit on one device.
    tokens = request.capacity.usable // held_bytes(request.problem, 1, 1, training=request.training)
    longest = max(mask.seqlen_q, mask.seqlen_k)
    others = f"at least {-(-longest // tokens)} devices" if tokens else "fewer or smaller heads"
    reason = (
        f"the tensors alone take {needed / 2**30:.1f} GiB of each device's {request.capacity.usable / 2**30:.3g}, for "
        f"{mask.seqlen_q} tokens on {ranks} {'device' if ranks == 1 else 'devices'}"
    )
    return Refused(None, None, (reason,), f"Take up to {ranks * tokens} tokens, or {others}")


def _about_evidence(request: Request, found: Ranking) -> Iterable[str]:
    """Remarks on evidence that does not answer the question, or that is of another GPU."""
    if request.measured is not None and found.choices:
        what = "no evidence of such calls" if request.device_name in request.costs.devices else "no evidence"
        yield f"there is {what} on {request.device_name}. The times are from evidence {request.measured_elsewhere}"
    fitting = [choice for choice in found.choices if choice.fits is not False]
    installed = next((choice for choice in fitting if not choice.lacks), None)
    if installed is not None and installed is not fitting[0]:
        more = installed.seconds.total / fitting[0].seconds.total - 1
        takes = f"{abs(more):.0%} {'longer' if more >= 0 else 'less'}"
        yield f"of what is installed here, {installed.title} comes first and takes {takes}"
    measured = request.costs.kernels_on(request.device_name) - set(request.registry.kernels)
    if measured and len(request.kernels) == len(request.registry.kernels):
        yield f"evidence knows kernels that no plugin provides here: {', '.join(sorted(measured))}"
    if found.choices or not found.unmeasured or any(one.strategy for one in found.unmeasured):
        return
    name, problem, mask = request.device_name, request.problem, request.problem.concrete_mask
    what, advice = f"no evidence of such calls of these kernels on {name}", ""
    if name not in request.costs.devices:
        what, advice = f"no evidence on {name}", f", but on {', '.join(request.costs.devices) or 'no device'}"
    run = "longca run"
    if mask.pattern:  # records with sinks or a soft cap are no evidence
        run += f" {shlex.quote(mask.pattern)} --seqlen {mask.seqlen_q} --heads {problem.heads_q}:{problem.num_heads_kv}"
        run += f" --head-dim {problem.dims_text} --dtype {problem.dtype}"
    yield f"there is {what}{advice}. `{run}` on the device measures such calls"
