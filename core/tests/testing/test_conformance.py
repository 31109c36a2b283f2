from longca.testing import conformance

ROUNDED = "of 257 tokens in blocks of 128, one row of dk is 0.7 % beyond its limit with PyTorch's CPU kernel"

test_conformance = conformance(
    "longca-core",
    expected_failures={("sdpa", "sdpa-dense-bfloat16-backward-uneven_lengths"): ROUNDED},
)
