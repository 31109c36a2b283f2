"""recommend: which kernel, which strategy, and will it fit? Answered from evidence, without torch and without a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from longca.advice.asked import Asked
from longca.advice.capacity import Capacity, fewest_ranks, longest_sequence
from longca.advice.choices import Choice, Recommendation, Refused
from longca.advice.costs import CostModel
from longca.advice.devices import evidence_name, named_device
from longca.advice.evidence import Row, shipped
from longca.advice.from_records import rows_of_folder
from longca.advice.history import History, history
from longca.advice.kernels import Ranking, rank_kernels
from longca.advice.links import network_of, rates_of
from longca.advice.memory import gradient_bytes, tensor_bytes
from longca.advice.network import Link
from longca.advice.strategies import rank_strategies
from longca.advice.ways import Links
from longca.errors import RequestError, UnsupportedError
from longca.manifests import Device, Problem
from longca.manifests.devices import current_device
from longca.manifests.offers import DType
from longca.masks import Mask
from longca.plugins import Registry, registry

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
        device: A device, or the name of one: `h200`, `cuda:9.0`, `cpu`; None for this machine's.
        ranks: Devices that share the tokens.
        per_node: Devices a host; those of one host are linked as the evidence's are.
        training: Whether a backward follows the forward.
        memory: Memory of each device, such as `80GB` or a number of bytes; None for what is known of the device.
        network: Links between hosts, such as `400Gb` or `50GB/s,5µs` for each device; needed where ranks are on
            several hosts.
        records: Folders of runs, whose verified records are evidence too.
        kernels: Kernels to choose from; empty for all.
        strategies: Strategies to choose from; empty for all.
        plugins: Whose kernels and strategies there are; None for all that are installed.
        unseen: Whether to answer as if the problem had not been measured: its own measurements are no evidence.

    Returns:
        The recommendation. Where nothing fits it has no choice that does, and says what would.

    Raises:
        RequestError: An unknown device, memory or network; ranks below 1; records that cannot be read; evidence with
            impossible times. The message names the line.
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
        direction="forward",
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
    """All evidence, and what is wrong with lines of this machine's: what is shipped, measured here, and named.

    Args:
        records: Folders of runs.

    Raises:
        RequestError: A folder that is none of a run, or a line that is no record.
    """
    here = history()
    return _collected(here, records)[0], _wrong(here)


def cost_model(records: tuple[str, ...] = ()) -> tuple[CostModel, tuple[str, ...]]:
    """The cost model of all evidence, kept with its fits until this machine's evidence changes; and what is wrong.

    Args:
        records: Folders of runs.

    Raises:
        RequestError: A folder that is none of a run, or a line that is no record.
    """
    here = history()
    return _collected(here, records)[1], _wrong(here)


def links_here(device: str, ranks: int) -> Links:
    """What all evidence says of some devices of one host: their links, and what calls cost beside kernels.

    Args:
        device: What evidence calls the device.
        ranks: Devices of the host.
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
    """The refusal of a problem whose tensors alone are too large, with what would fit."""
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
    """What fits comes first, the quickest before the others."""
    return tuple(sorted(choices, key=lambda choice: (choice.fits is False, choice.seconds.total)))


def _about_evidence(asked: Asked, found: Ranking) -> Iterable[str]:
    """What is to be known of evidence that does not answer the question."""
    measured = asked.costs.kernels - set(asked.registry.kernels)
    if measured and len(asked.kernels) == len(asked.registry.kernels):
        yield f"evidence knows kernels that no plugin provides here: {', '.join(sorted(measured))}"
    if found.choices or not found.unmeasured or any(one.strategy for one in found.unmeasured):
        return
    others = ", ".join(asked.costs.devices) or "no device"
    what = "no evidence of such calls" if asked.device_name in asked.costs.devices else "no evidence"
    yield (
        f"there is {what} on {asked.device_name}; what is valid is listed in the plugins' order and not ranked. "
        f"There is evidence on {others}. Measure on the device with `longca run`"
    )
