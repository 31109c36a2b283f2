"""Whether a kernel takes every step of a layout, held to cutting and resolving the steps one by one."""

from hypothesis import given
from hypothesis import strategies as st

from longca.errors import UnsupportedError
from longca.manifests import resolve_manifest
from longca.manifests.resolve import resolve_steps, step_problems
from longca_advice.nominal import imbalance, predicted_cost
from longca_cp import layouts

from .cases import problem, square_masks
from .test_auto import INTERVALS, LAYERED, NATIVE, kernel
from .test_layouts import STRATEGIES, heads_for

NATIVE_ALONE = kernel("native", *NATIVE)
COLUMNS = kernel("columns", {"form": "full"}, {"form": "column_intervals", "most": 2})


def kernels():
    return st.sampled_from((LAYERED, INTERVALS, NATIVE_ALONE, COLUMNS))


@given(square_masks(), st.sampled_from(sorted(STRATEGIES)), kernels(), st.data())
def test_a_verdict_is_that_of_all_steps(mask, strategy, manifest, data):
    sizes = {axis: data.draw(st.integers(1, 4)) for axis in STRATEGIES[strategy].axes}
    asked = problem(mask, *data.draw(st.sampled_from(heads_for(sizes))), direction="backward")
    try:
        layout = getattr(layouts, strategy)(asked, sizes, data.draw(st.sampled_from(STRATEGIES[strategy].placements)))
    except UnsupportedError:
        return
    verdict = resolve_manifest(manifest, asked, layout)
    found = [each for steps in step_problems(asked, layout) for each in resolve_steps(manifest, steps)]
    refused = next((each for each in found if not each), None)
    assert verdict.valid is (refused is None)
    if refused is not None:
        assert verdict.reasons[:-1] == refused.reasons
        return
    assert verdict.offers == tuple(dict.fromkeys(each.offer for each in found if each.offer is not None))
    areas = [sum(part.area for part in parts if part) for parts in step_problems(asked, layout)]
    assert imbalance(asked, layout) == (max(areas) * len(areas) / sum(areas) if any(areas) else 1.0)
    assert predicted_cost([manifest], asked, layout) >= 0
