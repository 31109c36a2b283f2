"""CostModel: the seconds of kernel calls, predicted from evidence without a GPU.

Evidence is grouped by device, kernel, direction, data type, head dimension, soft cap and family of forms. Each group
has a `Fit`, made on first use. Its prior is the fit of the head dimension with the most calls. The prediction says so
if a problem lies outside the evidence of its group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longca.manifests import Device, installed_version
from longca.manifests.problem import product_dims
from longca.plain_text import dims_text
from longca_advice.devices import evidence_name, peak_tflops
from longca_advice.evidence import Row
from longca_advice.fit import Call, Calls, Fit
from longca_advice.memory import KernelMemory
from longca_advice.work import TILE, Work

__all__ = ["CostModel", "Estimate", "Key"]

#: How far beyond the evidence a length or a density may lie before it counts as outside: a factor.
_BEYOND = 1.25

#: Fewer measured calls with blocks of one size are fitted together with those of other sizes.
_ENOUGH = 8

#: Launches affect calls below this many seconds. The factor widens intervals there and for other block sizes.
_LAUNCHED, _UNSURE = 5e-4, 1.5

#: Multiply-adds that a tensor core does in the time of the exponential of a score.
_EXPONENTIAL = 80

#: The power of the ratio of works by which intervals are wider at a head dimension that was not measured.
_UNKNOWN_DIM = 0.4

#: Estimates that are kept: a model's layers ask again for those of their mask.
_KEPT = 4096

#: Data types that kernels compute at the same speed.
_ALIKE = {"float16": "bfloat16", "bfloat16": "float16"}


@dataclass(frozen=True)
class Key:
    """The properties that calls share if the time of one predicts the time of another."""

    device: str
    kernel: str
    direction: str
    dtype: str
    head_dim: int
    head_dim_v: int | None = None
    capped: bool = False

    @classmethod
    def of_row(cls, row: Row) -> Key:
        """The key of a measured call."""
        return cls(row.run.device, row.kernel, row.direction, row.dtype, row.head_dim, row.head_dim_v, row.capped)

    @property
    def dims(self) -> str:
        """The head dimension, or those of q and of v with a colon between."""
        return dims_text(self.head_dim, self.head_dim_v)

    @property
    def score(self) -> int:
        """The work of a score, in multiply-adds: its products, its exponential and the tangent of a soft cap."""
        return _EXPONENTIAL * (1 + self.capped) + product_dims(
            self.direction, self.head_dim, self.head_dim_v or self.head_dim
        )


@dataclass(frozen=True)
class Estimate:
    """The predicted seconds of a call.

    Attributes:
        low: Lower end of the 90 % interval of the time. The upper end is `high`.
        records: Number of measured calls that the estimate is learnt from.
        nearest: The most similar measured call: its run and case.
        outside: The properties of the call that lie outside the evidence, in words. Empty if there are none.
        versions: The packages whose version here differs from the measured one, in words.
        unseen: Whether no call of such a length, density, data type, head dimension or block size was measured.
        work: The call's work.
        parts: The seconds by cause (`Fit.parts`).
    """

    seconds: float
    low: float
    high: float
    records: int
    nearest: str
    outside: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    unseen: bool = False
    work: Work | None = None
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def ranked(self) -> float:
        """Seconds to rank it by. An unseen call counts as slow as its interval allows."""
        return self.high if self.unseen else self.seconds


class _Group:
    """Rows that are fitted together, with the fit, which is made on first use.

    Args:
        rows: The rows.
        prior: The group of another head dimension or without a soft cap that has the most rows, or None for that group
            itself.
        ratio: How much more work a score is than in the prior.
    """

    def __init__(self, rows: Sequence[Row], prior: _Group | None, ratio: float) -> None:
        self.rows, self._prior, self._ratio = rows, prior, ratio
        self.calls = [Call(row.call_work, row.heads_q, row.heads_kv) for row in rows]
        tokens = [call.work.tokens for call in self.calls]
        self.shortest, self.longest = min(tokens), max(tokens)
        self.thinnest = min(_density(call.work) for call in self.calls)
        self.paths = Counter(call.work.path for call in self.calls)

    @cached_property
    def fit(self) -> Fit:
        prior = None if self._prior is None else self._prior.fit
        return Fit(self.calls, [row.seconds for row in self.rows], prior, self._ratio)


class CostModel:
    """Predictions from some evidence.

    Args:
        rows: The evidence. Rows under a strategy say nothing of a kernel's own time, and are passed over.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[tuple[Key, str], list[Row]] = {}
        self._groups: dict[tuple[Key, str], _Group] = {}
        self._estimates = lru_cache(maxsize=_KEPT)(self._estimate)
        self._nearest_group = lru_cache(maxsize=_KEPT)(self._find_group)
        self._all = tuple(rows)
        for row in self._all:
            if row.strategy is None:
                self._rows.setdefault((Key.of_row(row), row.call_work.family), []).append(row)

    @cached_property
    def memory(self) -> KernelMemory:
        """The memory of kernels, learnt from the same evidence."""
        return KernelMemory(self._all)

    @cached_property
    def devices(self) -> Mapping[str, Device]:
        """The devices that have evidence, by their vendors' names."""
        return {row.run.device: row.run.measured_on for rows in self._rows.values() for row in rows}

    def gpus_like(self, device: Device) -> list[Device]:
        """The other GPUs that have evidence, the nearest compute capability first. None for a CPU.

        A GPU of the same compute capability is not among them if its known peak is more than twice as high or as low.
        """
        if device.capability is None:
            return []
        major, minor = device.capability

        def distance(gpu: Device) -> tuple[int, int]:
            assert gpu.capability is not None, "only GPUs are compared"
            return abs(gpu.capability[0] - major), abs(gpu.capability[1] - minor)

        peak = peak_tflops(device.name, "bfloat16")

        def is_alike(gpu: Device) -> bool:
            other = peak_tflops(gpu.name, "bfloat16")
            return not peak or not other or gpu.capability != device.capability or 0.5 <= other / peak <= 2

        others = (gpu for name, gpu in self.devices.items() if gpu.capability and name != evidence_name(device))
        return sorted(filter(is_alike, others), key=distance)

    def kernels_on(self, device: str) -> frozenset[str]:
        """The kernels that there is evidence of, on a device with a vendor's name."""
        return frozenset(kernel for on, kernel, _ in self._measured if on == device)

    def knows(self, key: Key) -> bool:
        """Whether any evidence may say something of a kernel's calls: of some form, head dimension and data type."""
        return (key.device, key.kernel, key.direction) in self._measured

    def seconds(self, key: Key, calls: Calls) -> NDArray[np.float64] | None:
        """The most likely seconds of several calls: [calls]. None without evidence."""
        found = self._nearest_group(key, calls[0].work.family)
        if found is None:
            return None
        near, group = found
        return key.score / near.score * group.fit.seconds(calls)

    def estimate(self, key: Key, call: Call) -> Estimate | None:
        """The seconds of a call, and the evidence behind them, or None without evidence."""
        return self._estimates(key, call)

    def _estimate(self, key: Key, call: Call) -> Estimate | None:
        found = self._nearest_group(key, call.work.family)
        if found is None:
            return None
        near, group = found
        seconds, low, high = (key.score / near.score * value for value in group.fit.predict([call])[0])
        unseen = tuple(_unseen(key, near, group, call))
        outside = (*unseen, *_unsure(group, call, seconds))
        nearest = group.rows[group.fit.nearest(call)]
        # Outside the evidence the interval is wider on both sides: by as much again, for each thing that is outside.
        widen = (high / seconds) ** len(outside)
        widen *= max(key.score / near.score, near.score / key.score) ** _UNKNOWN_DIM
        if any(text.startswith(("blocks", "under")) for text in outside):
            widen *= _UNSURE
        versions = tuple(_other_versions(nearest.run.packages))
        low, high, known = low / widen, high * widen, len(group.rows)
        parts = {cause: key.score / near.score * part for cause, part in group.fit.parts(call).items()}
        about = nearest.source, outside, versions, bool(unseen)
        return Estimate(seconds, low, high, known, *about, call.work, parts)

    @cached_property
    def _measured(self) -> frozenset[tuple[str, str, str]]:
        return frozenset((key.device, key.kernel, key.direction) for key, _ in self._rows)

    def _find_group(self, key: Key, family: str) -> tuple[Key, _Group] | None:
        """The group of a key, or else of a data type that is as fast, with the nearest head dimension."""
        about = (key.device, key.kernel, key.direction)
        dtypes = [key.dtype, *([_ALIKE[key.dtype]] if key.dtype in _ALIKE else [])]
        known = [(k, f) for k, f in self._rows if (k.device, k.kernel, k.direction) == about and k.dtype in dtypes]
        kind = family.partition("/")[0]
        same = [k for k, f in known if f == family and (kind != "block_sparse" or len(self._rows[k, f]) >= _ENOUGH)]
        # The time for a block size that was not measured lies between the times of the measured sizes.
        alike = [] if same else [k for k, f in known if kind == "block_sparse" and f.startswith(kind)]
        if not (same or alike):
            return None

        def distance(k: Key) -> tuple[bool, float, bool, bool]:
            return k.capped != key.capped, abs(log(k.score / key.score)), k.dims != key.dims, k.dtype != key.dtype

        near = min(same or alike, key=distance)
        return near, self._group(near, family if same else kind)

    def _group(self, key: Key, family: str) -> _Group:
        if (key, family) not in self._groups:
            found: dict[Key, list[Row]] = {}
            asked: dict[str, Any] = {"head_dim": key.head_dim, "head_dim_v": key.head_dim_v, "capped": key.capped}
            for (k, f), rows in self._rows.items():
                if f.startswith(family) and replace(k, **asked) == key:
                    found.setdefault(k, []).extend(rows)
            most = max(found, key=lambda k: len(found[k]))
            prior = None if most == key else self._group(most, family)
            self._groups[key, family] = _Group(found[key], prior, key.score / most.score)
        return self._groups[key, family]


def _unseen(key: Key, near: Key, group: _Group, call: Call) -> Iterable[str]:
    """The properties of a call that no measured call has, in words."""
    if near.dims != key.dims:
        yield f"head dimension {key.dims}; measured is {near.dims}"
    if near.capped != key.capped:
        yield "a soft cap; measured are calls without one" if key.capped else "no soft cap; measured are calls with one"
    if near.dtype != key.dtype:
        yield f"{key.dtype}; measured is {near.dtype}"
    length = f"{int(call.work.tokens) * TILE} tokens in tiles of {TILE}"
    if call.work.tokens > _BEYOND * group.longest:
        yield f"{length}; measured up to {int(group.longest) * TILE}"
    if call.work.tokens * _BEYOND < group.shortest:
        yield f"{length}; measured from {int(group.shortest) * TILE}"
    if _density(call.work) * _BEYOND < group.thinnest:
        yield f"{_density(call.work):.1%} of the tiles; measured from {group.thinnest:.1%}"
    if call.work.path.startswith("block_sparse") and call.work.path not in group.paths:
        sizes = sorted(map(_size, group.paths), key=lambda size: (len(size), size))
        yield f"{_blocks(call.work.path)}; measured are {', '.join(sizes)}"


def _unsure(group: _Group, call: Call, seconds: float) -> Iterable[str]:
    """The properties of a call that the evidence says little of, in words."""
    if seconds < _LAUNCHED:
        yield f"under {_LAUNCHED * 1e3:.1f} ms a call takes as long as the host takes to launch it"
    path, count = call.work.path, group.paths[call.work.path]
    if path.startswith("block_sparse") and 0 < count < _ENOUGH:
        known = "is 1 call" if count == 1 else f"are {count} calls"
        yield f"{_blocks(path)}; measured {known} with such"


def _blocks(path: str) -> str:
    """The blocks of a path in words."""
    size = _size(path)
    return f"blocks of {size}{' tokens' * size.isdigit()}"


def _size(path: str) -> str:
    size = path.partition("/")[2]
    return size if size.isdigit() else "unequal sizes"


def _density(work: Work) -> float:
    """The share of the matrix's tiles that are computed."""
    return work.tiles / max(work.cells, 1.0)


def _other_versions(packages: Mapping[str, str]) -> Iterable[str]:
    """Packages that are installed here in another version than was measured with, in words."""
    for name, measured in packages.items():
        here = installed_version(name)
        if name in _MATTER and here is not None and here.partition("+")[0] != measured.partition("+")[0]:
            yield f"measured with {name} {measured}; {here} is installed"


#: Packages whose version changes the speed of kernels.
_MATTER = frozenset(
    {"torch", "triton", "flash-attn", "flash-attn-3", "flash-attn-4", "xformers", "flashinfer-python"}
    | {"nvidia-cudnn-frontend", "fastvideo-kernel"}
)
