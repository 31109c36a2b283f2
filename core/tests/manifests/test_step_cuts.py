"""Answers for all steps together equal the answers of steps that are cut one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca import masks
from longca.errors import MaskError
from longca.manifests import Device, Layout, Offer, Problem, Reason, Step, Verdict, resolve_manifest
from longca.manifests.resolve import resolve_steps, stack_offers
from longca.manifests.step_cuts import (
    distinct_steps,
    rank_areas,
    step_areas,
    step_problems,
    step_stacks,
)
from longca.masks import Form

from ..fake_manifests import fake_manifest
from ..masks.strategies import any_cases, block_sparse_cases

FORMS = (Form.FULL, Form.CAUSAL, Form.WINDOW, Form.VARLEN, Form.LAYERS, Form.ROW_INTERVALS, Form.COLUMN_INTERVALS)
COUNTED = FORMS[4:]


@st.composite
def offers(draw):
    form = draw(st.sampled_from((*FORMS, Form.DENSE)))
    fields = {"most": draw(st.sampled_from((None, 1, 2)))} if form in COUNTED else {}
    return Offer(
        form=form,
        dtypes=("bfloat16",),
        verified_on=">=8.0",
        metadata="O(1)",
        unequal_lengths=draw(st.booleans()),
        backward=draw(st.sampled_from(("own", "external"))),
        max_seqlen=draw(st.sampled_from((None, None, 6))),
        gqa=draw(st.sampled_from((True, True, False))),
        **fields,
    )


@st.composite
def token_ranges(draw, seqlen):
    points = sorted(draw(st.sets(st.integers(0, seqlen), max_size=5)))
    return tuple(zip(points[::2], points[1::2], strict=False))


@st.composite
def layouts(draw, mask):
    """Steps of any queries, keys and heads. No strategy makes them, but a rank could compute each."""
    q_parts, k_parts = (
        draw(st.lists(token_ranges(seqlen), min_size=1, max_size=4)) for seqlen in (mask.seqlen_q, mask.seqlen_k)
    )
    heads = st.sampled_from((((0, 4), (0, 2)), ((0, 2), (0, 1)), ((2, 4), (1, 2)), ((3, 4), (1, 2))))
    steps = st.builds(lambda q, k, each: Step(q, k, *each), st.sampled_from(q_parts), st.sampled_from(k_parts), heads)
    ranks = draw(st.lists(st.lists(steps, max_size=4).map(tuple), min_size=1, max_size=7))
    held = (((0, mask.seqlen_q),), *[()] * (len(ranks) - 1))
    return Layout(tuple(ranks), held)


def one_by_one(manifest, problem, layout):
    """The verdict by the book: every step cut and resolved, until one has no offer."""
    used = {}
    for rank, steps in enumerate(cut_one_by_one(problem, layout)):
        for verdict in resolve_steps(manifest, steps):
            if not verdict.valid:
                where = Reason("layout", f"rank {rank} of {layout.world_size} needs it", "Every step needs an offer")
                return Verdict(manifest.name, None, (*verdict.reasons, where))
            if verdict.offer is not None:
                used[verdict.offer] = None
    return Verdict(manifest.name, next(iter(used)) if len(used) == 1 else None, (), tuple(used))


def asked(mask, **fields):
    device = Device("cuda", (9, 0))
    return Problem(**{"mask": mask, "heads_q": 4, "heads_kv": 2, "device": device, "direction": "backward", **fields})


@given(any_cases(), st.lists(offers(), min_size=1, max_size=4), st.data())
def test_a_verdict_is_the_one_of_cutting_every_step(case, some, data):
    if case.mask.heads not in (1, 2, 4):
        return
    problem = asked(case.mask, composed=data.draw(st.booleans()))
    layout, manifest = data.draw(layouts(case.mask)), fake_manifest(*some)
    assert resolve_manifest(manifest, problem, layout) == one_by_one(manifest, problem, layout)


@given(any_cases(), st.lists(offers(), min_size=1, max_size=4), st.data())
def test_the_offer_of_each_step_is_the_one_of_its_cut(case, some, data):
    if not isinstance(case.mask, masks.SliceMask):
        return
    problem, layout, manifest = asked(case.mask), data.draw(layouts(case.mask)), fake_manifest(*some)
    found = np.concatenate([stack_offers(manifest, problem, stack) for stack in step_stacks(problem, layout)])
    rows = [resolve_steps(manifest, steps) for steps in cut_one_by_one(problem, layout)]
    wanted = [verdict.offer for row in rows for verdict in row]
    assert [None if index < 0 else manifest.offers[index] for index in found] == wanted


def cut_one_by_one(problem, layout):
    """The problem of each step, cut by itself. It is a part if its rank has another non-empty step."""
    for steps in layout.steps:
        parts = [
            problem.narrowed(range(*step.heads_q), range(*step.heads_kv), (step.q_ranges, step.k_ranges))
            for step in steps
        ]
        shown = [part.concrete_mask.area > 0 for part in parts]
        yield tuple(
            replace(part, composed=problem.composed or sum(shown) > 1) if shows else None
            for part, shows in zip(parts, shown, strict=True)
        )


@given(st.one_of(any_cases(), block_sparse_cases()), st.data())
def test_areas_and_distinct_steps_are_those_of_the_cuts(case, data):
    if case.mask.heads not in (1, 2, 4):
        return
    problem, layout = asked(case.mask), data.draw(layouts(case.mask))
    parts = step_problems(problem, layout)
    assert list(parts) == list(cut_one_by_one(problem, layout))
    assert rank_areas(problem, layout) == [sum(part.area for part in rank if part) for rank in parts]
    each = [part.concrete_mask.area if part else 0 for rank in parts for part in rank]
    assert step_areas(problem, layout).tolist() == each
    assert list(parts) == [parts[rank] for rank in range(len(parts))]
    shown = [part for rank in parts for part in rank if part]
    found = list(distinct_steps(problem, layout))
    assert all(step in found for step in shown)
    assert all(step in shown for step in found)


def test_ranges_outside_the_mask_are_refused():
    layout = Layout(((Step(((0, 8),), ((0, 9),), (0, 4), (0, 2)),),), (((0, 8),),))
    with pytest.raises(MaskError, match=r"key range 0 is \(0, 9\)"):
        rank_areas(asked(masks.build("causal", 8)), layout)


def test_a_composed_problem_composes_every_step():
    layout = Layout(((Step(((0, 8),), ((0, 8),), (0, 4), (0, 2)),),), (((0, 8),),))
    problem = asked(masks.build("causal", 8))
    for composed in (False, True):
        (step,) = distinct_steps(replace(problem, composed=composed), layout)
        assert step.composed is composed
    assert np.array_equal(step.mask.dense(), problem.mask.dense())
