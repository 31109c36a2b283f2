"""recommend: which kernel, which strategy, and will it fit? Answered from evidence, without torch and without a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from longca.errors import RequestError, UnsupportedError
from longca.manifests import Device, Direction, Problem
from longca.manifests.devices import current_device
from longca.manifests.offers import DType
from longca.masks import Mask
from longca.plugins import Registry, registry
from longca_advice.asked import Asked
from longca_advice.capacity import Capacity, fewest_ranks, longest_sequence
from longca_advice.choices import Choice, Recommendation, Refused
from longca_advice.costs import CostModel
from longca_advice.devices import evidence_name, named_device
from longca_advice.evidence import Row, shipped
from longca_advice.from_records import rows_of_folder
from longca_advice.history import History, history
from longca_advice.kernels import Ranking, rank_kernels
from longca_advice.links import network_of, rates_of
from longca_advice.memory import gradient_bytes, tensor_bytes
from longca_advice.network import Link
from longca_advice.strategies import rank_strategies
from longca_advice.ways import Links

__all__ = ["MAX_RANKS", "cost_model", "evidence", "links_here", "recommend"]

#: More ranks than anyone has.
MAX_RANKS = 2**14


def recommend(
    mask: Mask,
    *,
    heads: tuple[int, int],
    head_dim: int = 128,
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
) -> Recommendation:
    """Ranks the valid ways to compute attention by their predicted time. It runs no kernel.

    Args:
        mask: The mask of all tokens.
        heads: Query heads and KV heads.
        head_dim: Head dimension.
        dtype: Data type of q, k and v.
        device: A device, or the name of one: `h200`, `cuda:9.0`, `cpu`, or None for this machine's.
        ranks: Devices that share the tokens.
        per_node: Devices on each host. Devices of one host count as linked like the devices of the evidence.
        training: Whether a backward follows the forward.
        memory: Memory of each device, such as `80GB` or a number of bytes, or None for the device's known memory.
        network: Link of each device to other hosts, such as `400Gb` or `50GB/s,5µs`. Required if ranks are on several
            hosts.
        records: Folders of runs, whose verified records are added to the evidence.
        kernels: Kernels to choose from. Empty for all.
        strategies: Strategies to choose from. Empty for all.
        plugins: The plugins that provide kernels and strategies, or None for all installed plugins.
        unseen: Whether to leave the problem's own measurements out of the evidence.

    Returns:
        The recommendation. If no choice fits, it says which changes would make one fit.

    Raises:
        RequestError: An unknown device, memory or network, ranks below 1, or records that cannot be read. Also evidence
            with impossible times. The message names the line.
        UnknownNameError: A kernel or a strategy that nobody provides.
    """
    _check_ranks(ranks, per_node)
    named = tuple(map(str, records))
    (rows, notes), (costs, _) = evidence(named), cost_model(named)
    if unseen:
        rows = _of_others(rows, mask, heads, head_dim, ranks)
        costs = CostModel(rows)
    where = device if isinstance(device, Device) else named_device(device, costs.devices)
    known = plugins or registry()
    problem = Problem(
        mask=mask,
        heads_q=heads[0],
        heads_kv=heads[1],
        head_dim=head_dim,
        dtype=dtype,
        device=where,
        direction=Direction.FORWARD,
    )
    for name in kernels:
        known.manifest(name)
    for name in strategies:
        known.strategy(name)
    asked = Asked(problem, training, known, costs, _capacity(memory, where), tuple(kernels or known.kernels))
    about = asked.as_json(ranks, per_node)
    here = asked.device_name == evidence_name(current_device())
    too_large = _too_large(asked, ranks)
    if too_large is not None:
        return Recommendation(about, str(where), ranks, (), (), (too_large,), notes, here)
    if ranks == 1:
        found = rank_kernels(asked)
    else:
        between = None if network is None else Link.parse(network)
        links = Links(network_of(rows, asked.device_name, between), rates_of(rows, asked.device_name), per_node)
        found = rank_strategies(asked, ranks, links, tuple(strategies or known.strategies))
    notes = (*notes, *found.notes, *_about_evidence(asked, found))
    choices = _sorted(found.choices)
    return Recommendation(about, str(where), ranks, choices, found.unmeasured, found.refused, notes, here)


def evidence(records: tuple[str, ...] = ()) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """All evidence (shipped, measured here, and in named folders), and the errors of this machine's lines.

    Args:
        records: Folders of runs.

    Raises:
        RequestError: A folder holds no run, or a line is no record.
    """
    here = history()
    return _collected(here, records)[0], _wrong(here)


def cost_model(records: tuple[str, ...] = ()) -> tuple[CostModel, tuple[str, ...]]:
    """The cost model of all evidence, and the errors. It is cached with its fits until this machine's evidence changes.

    Args:
        records: Folders of runs.

    Raises:
        RequestError: A folder holds no run, or a line is no record.
    """
    here = history()
    return _collected(here, records)[1], _wrong(here)


def links_here(device: str, ranks: int) -> Links:
    """The links of some devices on one host, and the overhead of calls beside kernels, from all evidence.

    Args:
        device: The device's name in the evidence.
        ranks: Number of devices on the host.
    """
    return _links(history(), device, ranks)


@lru_cache(maxsize=16)
def _links(here: History, device: str, ranks: int) -> Links:
    rows = _collected(here, ())[0]
    return Links(network_of(rows, device, None), rates_of(rows, device), ranks)


@lru_cache(maxsize=4)
def _collected(here: History, records: tuple[str, ...]) -> tuple[tuple[Row, ...], CostModel]:
    """All evidence, and its model."""
    named = (row for folder in records for row in rows_of_folder(Path(folder)))
    rows = (*shipped(), *here.rows, *named)
    return rows, CostModel(rows)


def _of_others(rows: Sequence[Row], mask: Mask, heads: tuple[int, int], head_dim: int, ranks: int) -> tuple[Row, ...]:
    """The evidence without measurements of a mask by as many heads and ranks, in any data type."""
    same = (mask.digest, *heads, head_dim, ranks)
    return tuple(row for row in rows if (row.mask, row.heads_q, row.heads_kv, row.head_dim, row.ranks) != same)


def _wrong(here: History) -> tuple[str, ...]:
    return tuple(f"left out of this machine's evidence: {text}" for text in here.wrong)


def _check_ranks(ranks: int, per_node: int) -> None:
    for name, value in (("ranks", ranks), ("per_node", per_node)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_RANKS:
            raise RequestError(f"{name} is {value!r}; give an integer from 1 to {MAX_RANKS}")


def _capacity(memory: str | int | None, device: Device) -> Capacity | None:
    if memory is None:
        return Capacity.of(device)
    return Capacity.parse(memory) if isinstance(memory, str) else Capacity(memory)


def _too_large(asked: Asked, ranks: int) -> Refused | None:
    """The refusal of a problem whose tensors alone are too large, with sizes that would fit."""
    if asked.capacity is None:
        return None
    mask = asked.problem.concrete_mask
    shares = -(-mask.seqlen_q // ranks), -(-mask.seqlen_k // ranks)
    needed = tensor_bytes(asked.problem, *shares, training=asked.training)
    needed += gradient_bytes(asked.problem, *shares) if asked.training else 0
    if asked.fits(needed):
        return None
    tokens = longest_sequence(asked.problem, asked.capacity, ranks=ranks, training=asked.training)
    try:
        others = f"at least {fewest_ranks(asked.problem, asked.capacity, training=asked.training)} devices"
    except UnsupportedError:
        others = "fewer or smaller heads"
    reason = (
        f"the tensors alone take {needed / 2**30:.1f} GiB of each device's {asked.capacity.usable / 2**30:.3g}, for "
        f"{mask.seqlen_q} tokens on {ranks} {'device' if ranks == 1 else 'devices'}"
    )
    return Refused(None, None, (reason,), f"Take up to {tokens} tokens, or {others}")


def _sorted(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """The choices that fit come first, from fastest to slowest. The other choices follow."""
    return tuple(sorted(choices, key=lambda choice: (choice.fits is False, choice.seconds.total)))


def _about_evidence(asked: Asked, found: Ranking) -> Iterable[str]:
    """Remarks on evidence that does not answer the question."""
    measured = asked.costs.kernels - set(asked.registry.kernels)
    if measured and len(asked.kernels) == len(asked.registry.kernels):
        yield f"evidence knows kernels that no plugin provides here: {', '.join(sorted(measured))}"
    if found.choices or not found.unmeasured or any(one.strategy for one in found.unmeasured):
        return
    others = ", ".join(asked.costs.devices) or "no device"
    what = "no evidence of such calls" if asked.device_name in asked.costs.devices else "no evidence"
    yield (
        f"there is {what} on {asked.device_name}; the valid choices are listed in the plugins' order and not ranked. "
        f"There is evidence on {others}. Measure on the device with `longca run`"
    )
