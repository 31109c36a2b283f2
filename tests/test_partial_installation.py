"""A partial installation gives the answer of a whole one, with other marks."""

from __future__ import annotations

import pytest

from longca import Problem, discovery, masks, recommend
from longca.errors import MissingPackageError
from longca.plugins import Registry
from longca_advice.auto_kernel import choose
from longca_advice.devices import DEVICES
from longca_advice.known_plugins import with_known

QUESTIONS = {
    "causal": masks.build("causal", 65536),
    "stairs": masks.SliceMask([masks.Slice(q, q + 96, 0, 4096, hi=5) for q in range(0, 4096, 200)], 4096, 4096),
    "blocks": masks.build("uniform_block_sparse", 65536, block=128, kept=0.5, heads=8),
    "small blocks": masks.build("uniform_block_sparse", 16384, block=64, kept=0.2),
}


@pytest.fixture
def partial(monkeypatch):
    """The registry if some distributions are installed and no others."""

    def only(*distributions):
        every = discovery.entry_points
        points = [point for point in every(group="longca") if point.dist.name in distributions]
        monkeypatch.setattr(discovery, "entry_points", lambda group: points)
        return with_known(Registry())

    return only


def answer(question, plugins, **more):
    return recommend(QUESTIONS[question], heads=(64, 8), device="h200", plugins=plugins, **more)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("installed", [("longca-core",), ("longca-core", "longca-vsa")])
def test_the_ranking_is_that_of_all_plugins(partial, installed, question, training):
    whole = answer(question, Registry(), training=training)
    part = answer(question, partial(*installed), training=training)
    assert [(choice.kernel, choice.seconds) for choice in part.choices] == [
        (choice.kernel, choice.seconds) for choice in whole.choices
    ]
    assert part.refused == whole.refused
    here = {name for choice in part.choices if not choice.lacks for name in choice.kernel.split("+")}
    assert here <= {"naive", "sdpa", "bsa", "bsa_gluon"}


def test_a_missing_plugin_is_installed_with_what_it_needs_from_this_checkout(partial):
    found = answer("blocks", partial("longca-core"), kernels=("fa4", "bsa"))
    by_kernel = {choice.kernel: choice for choice in found.choices}
    assert by_kernel["fa4"].lacks[0].startswith("longca-flashattn")
    (line,) = by_kernel["fa4"].install
    assert "longca_flashattn[fa4]" in line
    assert by_kernel["bsa"].install[0].index("longca_triton") < by_kernel["bsa"].install[0].index("longca_vsa")


def test_ranks_need_the_plugin_of_strategies(partial):
    with pytest.raises(MissingPackageError, match=r"longca-cp, which is not installed. Install it: pip install .*cp"):
        answer("causal", partial("longca-core"), ranks=8)


def test_auto_takes_what_is_installed_and_names_what_would_be_faster(partial):
    asked = Problem(mask=QUESTIONS["causal"], heads_q=64, heads_kv=8, device=DEVICES["h200"], direction="backward")
    partial("longca-core")
    choice = choose(asked, Registry())
    assert choice.kernel == "sdpa"
    kernel, said = choice.better
    assert kernel in ("fa3", "fa4")
    assert "Install it: pip install" in said
