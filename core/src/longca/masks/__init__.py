"""Masks: one description of the keys that each query sees, and its conversions to every kernel's native form.

from longca import masks

m = masks.build("causal_document", seqlen=4096, documents=[1000, 96, 3000])
m = masks.sample("causal_document", seqlen=4096, lengths="pile", seed=0)
"""

from longca.limits import MAX_DENSE_CELLS, MAX_SEQLEN
from longca.masks import paper_patterns as _patterns  # registers the patterns
from longca.masks.algebra import complement, intersection, pack, union
from longca.masks.block_masks import from_block_mask
from longca.masks.block_sparse import BlockSparseMask
from longca.masks.blocks import BlockRuns, Blocks
from longca.masks.conversions import from_cu_seqlens, from_dense, from_position_ids
from longca.masks.forms import Form, Varlen, Window
from longca.masks.lengths import LengthDistribution, resolve_lengths
from longca.masks.mask import Mask
from longca.masks.patterns import FACTORS, PATTERNS, Pattern, build, get_pattern, register
from longca.masks.sampling import sample
from longca.masks.slice_mask import SliceMask
from longca.masks.slices import Slice
from longca.masks.trees import tree, within_window

del _patterns

__all__ = [
    "FACTORS",
    "MAX_DENSE_CELLS",
    "MAX_SEQLEN",
    "PATTERNS",
    "BlockRuns",
    "BlockSparseMask",
    "Blocks",
    "Form",
    "LengthDistribution",
    "Mask",
    "Pattern",
    "Slice",
    "SliceMask",
    "Varlen",
    "Window",
    "build",
    "complement",
    "from_block_mask",
    "from_cu_seqlens",
    "from_dense",
    "from_position_ids",
    "get_pattern",
    "intersection",
    "pack",
    "register",
    "resolve_lengths",
    "sample",
    "tree",
    "union",
    "within_window",
]
