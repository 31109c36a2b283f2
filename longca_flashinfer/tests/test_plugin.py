"""The kernels as LongCA sees them, with and without FlashInfer."""

from __future__ import annotations

from longca import Device, Problem
from longca.manifests import resolve_manifest
from longca.masks import BlockSparseMask
from longca_flashinfer import FLASHINFER_FA2, FLASHINFER_FA3

MANIFESTS = {manifest.name: manifest for manifest in (FLASHINFER_FA2, FLASHINFER_FA3)}
H200 = Device("cuda", (9, 0))


def asked(mask, heads=(8, 2), **options):
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], **{"device": H200, **options})


def codes(name, problem):
    """The reasons against a problem if FlashInfer is installed."""
    manifest = MANIFESTS[name].model_copy(update={"requires": ()})
    return [reason.code for reason in resolve_manifest(manifest, problem).reasons]


def test_lists_that_32_bits_cannot_count_are_refused():
    everything = BlockSparseMask([[[True] * 2] * 2**9], range(2**9 + 1), [0, 1, 2**20])
    some = BlockSparseMask([[[True, False]] * 2**9], range(2**9 + 1), [0, 1, 2**20])
    options = {"heads": (4, 4), "head_dim": 64}
    for name in MANIFESTS:
        assert codes(name, asked(everything, **options)) == ["lengths"]
        assert codes(name, asked(some, **options)) == []


def test_tensors_that_32_bits_cannot_count_are_refused():
    for seqlen, expected in ((2**18 - 1, []), (2**18, ["lengths"])):
        mask = BlockSparseMask([[True]], [0, seqlen], [0, seqlen])
        assert codes("flashinfer_fa2", asked(mask, (64, 8))) == expected
