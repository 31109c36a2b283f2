"""Masks from files: boolean matrices (`.npy`, `.pt`), slices as JSON, and trees as JSON or JSON Lines.

A matrix is [queries, keys], as in `longca.masks.from_dense`. The JSON is an object with `seqlen_q`, `seqlen_k` and
`slices`, a list of [q0, q1, k0, k1, lo, hi] in which null leaves lo or hi unbounded. `longca show-mask --json` prints
it. A tree is an object with `parents` and `lengths`, as in `longca.masks.tree`. Several trees, in a list of JSON or
one a line of `.jsonl`, are packed one after another.
"""

from __future__ import annotations

import json
import math
import pickle
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from longca.errors import LongCAError, MaskError, MissingPackageError
from longca.masks.algebra import pack
from longca.masks.conversions import from_dense
from longca.masks.slice_mask import SliceMask
from longca.masks.slices import Slice
from longca.masks.trees import tree

__all__ = ["read_mask", "slices_as_json"]

_JSON = (".json", ".jsonl")


def read_mask(path: str | Path) -> SliceMask:
    """The mask in a `.npy`, `.pt`, `.json` or `.jsonl` file. A `.pt` file is loaded with `weights_only=True`.

    Raises:
        MaskError: The file cannot be read, is of another kind, or holds no mask.
        MissingPackageError: The file is a `.pt` file, and torch is missing.
    """
    path = Path(path)
    if path.suffix.lower() not in (".npy", ".pt", *_JSON):
        raise MaskError(
            f"{path}: a mask is a boolean matrix in .npy or .pt, slices in .json, or trees in .json or .jsonl; convert "
            "or rename it"
        )
    try:
        return _read(path, path.stat().st_mtime_ns)
    except MissingPackageError:
        raise
    except LongCAError as error:
        raise MaskError(f"{path}: {error}") from None
    except OSError as error:
        raise MaskError(f"{path} cannot be read: {error.strerror}; check the path") from None
    except (ValueError, TypeError, LookupError, EOFError, RuntimeError, pickle.UnpicklingError):
        remedy = "write booleans [queries, keys] with numpy.save or torch.save"
        if path.suffix.lower() in _JSON:
            remedy = (
                "write seqlen_q, seqlen_k and slices of six numbers, as `longca show-mask --json` does, or parents and "
                "lengths of a tree"
            )
        raise MaskError(f"{path} holds no mask; {remedy}") from None


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> SliceMask:
    match path.suffix.lower():
        case ".npy":
            return from_dense(np.load(path, mmap_mode="r", allow_pickle=False))
        case ".pt":
            return from_dense(_tensor(path))
    if path.suffix.lower() == ".jsonl":
        return _packed([json.loads(line) for line in path.read_bytes().splitlines() if line.strip()])
    held = json.loads(path.read_bytes())
    if isinstance(held, list) or "parents" in held:
        return _packed(held if isinstance(held, list) else [held])
    slices = [
        Slice(q0, q1, k0, k1, -math.inf if lo is None else lo, math.inf if hi is None else hi)
        for q0, q1, k0, k1, lo, hi in held["slices"]
    ]
    return SliceMask(slices, held["seqlen_q"], held["seqlen_k"])


def _packed(trees: list[Any]) -> SliceMask:
    """The mask of trees, one after another."""
    made = []
    for number, each in enumerate(trees, 1):
        try:
            made.append(tree(each["parents"], each["lengths"]))
        except MaskError as error:
            raise MaskError(f"tree {number}: {error}" if len(trees) > 1 else str(error)) from None
    return pack(made).head(0)


def _tensor(path: Path) -> Any:
    try:
        import torch
    except ImportError:
        raise MissingPackageError("torch", "reading a mask from a .pt file") from None
    return torch.load(path, map_location="cpu", weights_only=True)


def slices_as_json(mask: SliceMask) -> list[list[int | None]]:
    """The slices of a mask as rows of JSON: [q0, q1, k0, k1, lo, hi], with None for an unbounded lo or hi."""
    return [[None if math.isinf(bound) else int(bound) for bound in each] for each in mask.slices]
