import pytest
from pydantic import ValidationError

from longca.manifests import KernelManifest, Offer

USUAL = {"form": "full", "dtypes": ("bfloat16",), "cpu": True, "metadata": "O(1)"}
MANIFEST = {
    "name": "fake",
    "title": "Fake",
    "upstream": "https://example.org",
    "license": "MIT",
    "family": "fake",
    "implementation": "fake.kernel:Fake",
}


def test_an_offer_is_frozen_and_hashable():
    offer = Offer(**USUAL)
    with pytest.raises(ValidationError):
        offer.gqa = False
    assert offer == Offer(**USUAL)
    assert hash(offer) == hash(Offer(**USUAL))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"colour": "red"}, "Extra inputs"),
        ({"dtypes": ("int8",)}, "bfloat16"),
        ({"verified_on": "sm90"}, "no range of compute capabilities"),
        ({"requires": ("flash attn >> 2",)}, "no requirement"),
        ({"block_sizes": (64,)}, "block_sizes and variable_blocks"),
        ({"form": "spiral"}, "form"),
        ({"forward": False}, "an offer without a forward needs backward='external' or 'lse_grad'"),
    ],
)
def test_an_offer_that_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        Offer(**{**USUAL, **fields})


def test_an_offer_names_a_device_in_one_of_three_ways():
    nowhere = {**USUAL, "cpu": False}
    for fields in ({"cpu": True}, {"verified_on": "==9.0"}, {"expected_on": ">=10.0"}):
        offer = Offer(**{**nowhere, **fields})
        assert offer.runs_on("cpu") is offer.cpu
        assert offer.runs_on("cuda") is not offer.cpu


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "Fake"},
        {"name": "fake\x1b[31m"},
        {"name": "[red]fake"},
        {"api": ()},
        {"implementation": "fake.kernel"},
        {"requires": ("not a requirement",)},
        {"name": "auto"},
    ],
)
def test_a_kernel_manifest_that_makes_no_sense_is_refused(fields):
    with pytest.raises(ValidationError):
        KernelManifest(**{**MANIFEST, "offers": (Offer(**USUAL),), **fields})
