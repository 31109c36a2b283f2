"""The jobs of plans and placements that are made ahead."""

from unittest import mock

import numpy as np
from jobs import attend, errors, inputs, mesh_of, rank_of

import longca
from longca import masks
from longca_advice import auto_layout
from longca_builtin.naive import Naive


def prefetched(size, strategy, placement, transport="auto"):
    """For masks that change: the plans that each call made, its largest error, and whether the prefetch had ended."""
    mesh, given = mesh_of(((("ulysses" if strategy == "ulysses" else "ring"), size),)), inputs(40, (4, 2), "float64")
    rank, found = mesh.get_rank(), []
    about = {"strategy": strategy, "mesh": mesh, "kernel": "naive", "placement": placement}
    asked = {"heads": (4, 2), "head_dim": 8, "dtype": "float64"}
    with mock.patch.object(Naive, "plan", autospec=True, side_effect=Naive.plan) as plan:
        for tokens in range(7, 12):
            mask = masks.build("causal_document", 40, documents=[tokens, 40 - tokens])
            handle = longca.prefetch(mask, **asked, **about, transport=transport)
            if tokens % 2:
                handle.wait()  # else the call may come while the plan is under way
            before = plan.call_count
            layout = longca.layout(mask, **asked, **about)
            mine = attend(mask, [layout.shard(x, rank) for x in given], **about, transport=transport)
            made = plan.call_count - before if tokens % 2 else 0
            found.append((made, max(errors(mine, attend(mask, given), layout, rank)), handle.done()))
    return found


def prefetched_along(sizes, strategy, kind, transport):
    """The plans that calls made, and the largest error, for documents that change or blocks that drift."""
    mesh, given, rank = mesh_of(sizes), inputs(64, (4, 2), "float64"), rank_of(sizes, None)
    about = {"strategy": strategy, "mesh": mesh, "kernel": "naive", "placement": "contiguous"}
    asked, made, worst = {"heads": (4, 2), "head_dim": 8, "dtype": "float64"}, [], 0.0
    with mock.patch.object(Naive, "plan", autospec=True, side_effect=Naive.plan) as plan:
        for step in range(4):
            documents = masks.build("causal_document", 64, documents=[13 + step, 51 - step])
            mask = documents if kind == "causal_document" else blocks(step)
            longca.prefetch(mask, **asked, **about, transport=transport).wait()
            before = plan.call_count
            layout = longca.layout(mask, **asked, **about)
            mine = attend(mask, [layout.shard(x, rank) for x in given], **about, transport=transport)
            made.append(plan.call_count - before)
            worst = max(worst, *errors(mine, attend(mask, given), layout, rank))
    return made, worst


def blocks(step):
    """A block-sparse mask that differs from those of other steps."""
    bounds, at = [*range(0, 65, 8)], np.arange(8)
    return masks.BlockSparseMask((at[:, None] * 3 + at + step) % 4 < 2, bounds, bounds)


def placed_ahead(size, strategy):
    """The choices that `longca.layout` made after a prefetch had ended, and all shards and choices."""
    mesh, window = mesh_of((("cp", size),)), masks.build("causal_sliding_window", 40, window=9)
    about = {"strategy": strategy, "mesh": mesh, "kernel": "naive", "heads": (4, 2), "head_dim": 8, "dtype": "float64"}
    made, shards = 0, []
    with mock.patch.object(auto_layout, "_arranged", side_effect=auto_layout._arranged) as arranged:
        for tokens in range(7, 12):
            documents = masks.build("causal_document", 40, documents=[tokens, 40 - tokens])
            handle = longca.prefetch([(documents, 1), (window, 5)], softmax_scale=0.5, **about)
            if is_early := tokens % 2:
                handle.wait()  # else the layout may be asked for while the placement is under way
            before = arranged.call_count
            shards += [layout.shards for layout in longca.layout([(documents, 1), (window, 5)], **about)]
            made += is_early * (arranged.call_count - before)
            handle.wait()
    return made, shards, arranged.call_count
