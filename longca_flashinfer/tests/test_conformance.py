from longca.testing import conformance

test_conformance = conformance("longca-flashinfer")
