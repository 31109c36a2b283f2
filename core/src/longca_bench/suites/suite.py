"""Suites: TOML files of sweeps to measure. A suite has a name, a version, and a hash of its content.

A distribution contributes a suite by an entry point in the group `longca.suites`. The entry point has the suite's name,
and its value is the package with the file `suites/NAME.toml`.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from importlib import resources
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated

from importlib_metadata import entry_points
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from longca.errors import RequestError, UnknownNameError
from longca.limits import MAX_TOKENS, shown
from longca.manifests import Transport
from longca.manifests.kernel import Name
from longca.manifests.offers import DType, parse_dtype
from longca.manifests.problem import Direction, check_softcap
from longca.masks import get_pattern
from longca.parsing import parse_bytes, parse_head_dim, parse_heads, parse_tokens
from longca_bench.suites.meshes import check_mesh

__all__ = ["Heads", "Suite", "Sweep", "builtin_suites", "complaints", "load_suite"]

#: Keys that sweeps did not have when the first records were made, with their defaults. A suite without them keeps its
#: digest.
_LATER = {
    "grid": {}, "tokens_per_rank": [], "strategies": [], "placements": ["auto"], "meshes": {}, "pairs": False,
    "transports": ["auto"], "softcap": None, "sinks": False,
}  # fmt: skip

#: Wrong values of a suite that a message names.
_NAMED = 8

_SUITES = resources.files("longca_bench.suites")
_GROUP = "longca.suites"


def _heads(text: str) -> str:
    return "{}:{}".format(*parse_heads(text))


def _head_dim(value: object) -> int | str:
    """A head dimension of q, k and v, or such as `192:128` with another one of v."""
    dims = (value, None) if isinstance(value, int) and not isinstance(value, bool) else parse_head_dim(str(value))
    if not all(1 <= dim <= 2**16 for dim in dims if dim is not None):
        raise ValueError(f"{shown(value)} was given; give integers from 1 to {2**16}")
    return dims[0] if dims[1] is None else "{}:{}".format(*dims)


def _pattern(name: str) -> str:
    return name if name == "*" else get_pattern(name).name


def _value(value: int | float | list[int]) -> int | float | list[int]:
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int) and number.bit_length() > 63:
            raise ValueError(f"{shown(number)} does not fit into 64 bits")
    return value


def _tokens(value: object) -> object:
    """A length such as `32k` as its tokens. Other values stay."""
    if isinstance(value, list):
        return [_tokens(each) for each in value]
    return parse_tokens(value) if isinstance(value, str) else value


PatternName = Annotated[str, AfterValidator(_pattern)]
Value = Annotated[int | float | list[int], BeforeValidator(_tokens), AfterValidator(_value)]
Heads = Annotated[str, AfterValidator(_heads)]
HeadDim = Annotated[int | str, BeforeValidator(_head_dim)]
Mesh = Annotated[str, AfterValidator(check_mesh)]
DistributionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([\w.-]{0,98}[A-Za-z0-9])?$")]
Seqlen = Annotated[int, BeforeValidator(_tokens), Field(strict=True, ge=1, le=MAX_TOKENS)]
Memory = Annotated[int, BeforeValidator(lambda size: parse_bytes(str(size))), Field(ge=2**27, le=2**50)]
Seed = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)]


class Sweep(BaseModel):
    """One matrix of cases: every combination of the listed values.

    Attributes:
        patterns: Mask patterns, or `*` for all.
        kernels: Kernels and pairs such as `fa3+fa4`, or `*` for all kernels.
        pairs: Whether all valid pairs of the sweep's kernels are measured too, in direction backward.
        seqlens: Tokens of all ranks together, such as `32768` or `"32k"`.
        tokens_per_rank: Tokens of each rank of the job, instead of `seqlens`.
        lengths: The source of document lengths, as in `longca.masks.sample`.
        seeds: Seeds of masks and inputs. Each seed is another draw, and the same for every kernel.
        heads: Query heads and KV heads, such as `64:8`.
        head_dims: Head dimensions, such as 128, or `192:128` with another one of v.
        dtypes: Data types, such as `bfloat16` or `bf16`.
        softcap: Bound of the scores (`longca.Problem`). None for no bound.
        directions: `forward`, `backward`, or both.
        sinks: Whether query heads have sinks.
        factors: Mask factors with fixed values, by pattern. The other factors are drawn.
        grid: Mask factors with a list of values each, by pattern. Every combination is a case.
        strategies: Context-parallel strategies, or `*` for all. The sweep is then for the ranks of a job. A sweep
            without strategies is for one device.
        placements: Placements of tokens on ranks. `auto` is the one that is predicted to be fastest. A strategy skips
            the placements that it does not have.
        transports: Ways to move tensors between ranks. `auto` is the strategy's own choice. A strategy skips the
            transports that it does not have.
        meshes: Ranks along each axis of a strategy, such as `2x4`, by strategy. The meshes that make up the job's ranks
            are taken. Names put the axes in another order, as in `ulysses=2,ring=4`, and the last axis has the ranks of
            one host. If no mesh fits, ranks are split into axes as equally as possible.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    patterns: Annotated[tuple[PatternName, ...], Field(min_length=1)]
    kernels: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)
    pairs: Annotated[bool, Field(strict=True)] = False
    seqlens: Annotated[tuple[Seqlen, ...], Field(min_length=1)] = ()
    tokens_per_rank: Annotated[tuple[Seqlen, ...], Field(min_length=1)] = ()
    lengths: str = "auto"
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0,)
    heads: Annotated[tuple[Heads, ...], Field(min_length=1)]
    head_dims: Annotated[tuple[HeadDim, ...], Field(min_length=1)]
    dtypes: Annotated[tuple[Annotated[DType, BeforeValidator(parse_dtype)], ...], Field(min_length=1)]
    softcap: Annotated[float | None, AfterValidator(check_softcap)] = None
    directions: Annotated[tuple[Direction, ...], Field(min_length=1)] = (Direction.FORWARD, Direction.BACKWARD)
    sinks: Annotated[bool, Field(strict=True)] = False
    factors: dict[str, dict[str, Value]] = {}
    grid: dict[PatternName, dict[str, Annotated[list[Value], Field(min_length=1)]]] = {}
    strategies: Annotated[tuple[str, ...], Field(min_length=1)] = ()
    placements: Annotated[tuple[str, ...], Field(min_length=1)] = ("auto",)
    transports: Annotated[tuple[Transport, ...], Field(min_length=1)] = (Transport.AUTO,)
    meshes: dict[str, tuple[Mesh, ...]] = {}

    @model_validator(mode="after")
    def _fits(self) -> Sweep:
        for pattern, lists in self.grid.items():
            for name in lists:
                if name in self.factors.get(pattern, {}):
                    raise ValueError(f"{name} of {pattern} is in both factors and grid; give it in one of them")
        if bool(self.seqlens) == bool(self.tokens_per_rank):
            raise ValueError("give seqlens, or tokens_per_rank and strategies")
        given = [name for name in ("tokens_per_rank", "meshes") if getattr(self, name)]
        given += [name for name in ("placements", "transports") if getattr(self, name) != ("auto",)]
        if not self.strategies and given:
            raise ValueError(f"{', '.join(given)} are for strategies; give those too")
        if self.pairs and Direction.BACKWARD not in self.directions:
            raise ValueError("pairs are measured in direction backward; add it to directions, or leave out pairs")
        return self

    def count_factor_sets(self, pattern: str) -> int:
        """The number of `factor_sets`, which are not made."""
        return prod(map(len, self.grid.get(pattern, {}).values()))

    def factor_sets(self, pattern: str) -> list[dict[str, Value]]:
        """Every combination of a pattern's factors. A pattern without factors has one empty combination."""
        fixed, lists = self.factors.get(pattern, {}), self.grid.get(pattern, {})
        return [{**fixed, **dict(zip(lists, values, strict=True))} for values in product(*lists.values())]

    def lengths_on(self, ranks: int) -> tuple[int, ...]:
        """The lengths on a number of ranks, in tokens of all ranks together."""
        return self.seqlens or tuple(tokens * ranks for tokens in self.tokens_per_rank)


class Suite(BaseModel):
    """A collection of sweeps.

    Attributes:
        name: Identifier.
        version: Raised whenever the suite's meaning changes.
        summary: The purpose, in a line.
        distributions: Kernels and strategies that may be missing, each with its distribution. If a distribution is not
            installed, the suite runs without it and names it.
        memory: Address space that each worker may take, such as `"64GiB"`. A case that needs more is `oom`.
        fail_fast: Whether the cases after the first failure are recorded as `skipped`.
        sweep: The sweeps.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    version: Annotated[int, Field(strict=True, ge=1, le=2**63 - 1)]
    summary: str = ""
    distributions: dict[Name, DistributionName] = {}
    memory: Memory | None = None
    fail_fast: Annotated[bool, Field(strict=True)] = False
    sweep: Annotated[tuple[Sweep, ...], Field(min_length=1)]

    @property
    def digest(self) -> str:
        """16 hex digits of the suite's content, without what changes no case."""
        said = self.model_dump(mode="json", exclude={"distributions", "memory", "fail_fast"})
        for sweep, unsaid in ((sweep, key) for sweep in said["sweep"] for key in _LATER):
            if sweep[unsaid] == _LATER[unsaid]:
                del sweep[unsaid]
        text = json.dumps(said, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def builtin_suites() -> tuple[str, ...]:
    """Names of LongCA's own suites and of the suites of installed distributions."""
    own = {item.name.removesuffix(".toml") for item in _SUITES.iterdir() if item.name.endswith(".toml")}
    return tuple(sorted(own | entry_points(group=_GROUP).names))


def _text_of(name: str) -> str:
    """The text of a suite by its name."""
    own = _SUITES / f"{name}.toml"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    entry, *others = entry_points(group=_GROUP, name=name)
    if others:
        both = " and ".join(sorted(each.dist.name for each in (entry, *others) if each.dist))
        raise RequestError(f"suite {name!r} comes with {both}; give the path of the file that you mean")
    try:
        return (resources.files(entry.value) / "suites" / f"{name}.toml").read_text("utf-8-sig")
    except (ImportError, OSError, ValueError) as error:
        raise RequestError(f"suite {name!r} of {entry.value} cannot be read: {error}") from None


def load_suite(name: str) -> Suite:
    """A suite by its name, or from a TOML file.

    Raises:
        UnknownNameError: No suite has the name.
        RequestError: The file cannot be read, is not TOML, or is not a valid suite.
    """
    if name in builtin_suites():
        return _parse(_text_of(name), name)
    path = Path(name)
    if path.suffix != ".toml":
        raise UnknownNameError("suite", name, builtin_suites())
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a character that no path can have
        raise RequestError(f"suite {name}: {getattr(error, 'strerror', error)}. Give a readable TOML file") from None
    return _parse(text, name)


def _parse(text: str, source: str) -> Suite:
    try:
        return Suite.model_validate(tomllib.loads(text))
    except ValidationError as error:
        found = complaints(error)
        lines = sorted({(_line_of(text, where), said) for where, said in found[:_NAMED]})
        more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        said = "; ".join(f"line {line}: {complaint}" for line, complaint in lines)
        raise RequestError(f"suite {source}, {said}{more}") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"suite {source} is not TOML: {error}") from None


def complaints(error: ValidationError) -> list[tuple[tuple[int | str, ...], str]]:
    """The place of each wrong value of a suite, and a sentence about the error."""
    # Pydantic calls a list too short if its items are wrong, and so the list of sweeps.
    wrong = [found for found in error.errors() if found["type"] != "too_short" or not found["input"]]
    return [(found["loc"], _complaint(found)) for found in wrong]


def _complaint(found: ErrorDetails) -> str:
    """A sentence about an error, which begins with the key."""
    key = ".".join(_keys(found["loc"])) or "the suite"
    match found["type"]:
        case "missing":
            return f"{key} is missing"
        case "too_short":
            return f"{key} is empty"
        case "extra_forbidden":
            return f"{key} is no key that is known here"
        case "value_error":
            return f"{key}: {found['msg'].removeprefix('Value error, ')}"
    return f"{key}: {found['msg'].removeprefix('Input ')}, not {shown(found['input'])}"


def _keys(location: tuple[int | str, ...]) -> list[str]:
    """The keys on the way to a value, in the suite or in one of its sweeps."""
    keys = [part for part in location if isinstance(part, str)]
    return keys[1:] if keys[:1] == ["sweep"] and len(keys) > 1 else keys


def _line_of(text: str, location: tuple[int | str, ...]) -> int:
    """The line of a value, or of its table if the value is missing, or 1 if neither is found."""
    tables = [n for n, line in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*sweep\s*\]\]", line)]
    nth = location[1] if len(location) > 1 and location[0] == "sweep" else None
    first = tables[nth] if isinstance(nth, int) and nth < len(tables) else 1
    keys = _keys(location)
    for number, line in enumerate(text.splitlines()[first - 1 :], first):
        if keys and re.match(rf"\s*(\[.*\b)?{re.escape(keys[0])}\b", line):
            return number
    return first
