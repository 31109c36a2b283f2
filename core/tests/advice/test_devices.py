"""Devices by their names."""

import pytest

from longca.errors import RequestError
from longca.manifests import Device
from longca_advice.devices import DEVICES, evidence_name, named_device


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_is_known_by_its_short_name_and_by_what_its_vendor_calls_it(name):
    device = DEVICES[name]
    assert device.kind == "cuda"
    for text in (name, name.upper(), f" NVIDIA {name}", device.name):
        assert named_device(text) == device
    assert evidence_name(device) == device.name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H100-SXM", "h100"),
        ("h100 sxm5 80 GB", "h100"),
        ("H100 PCIe", "h100-pcie"),
        ("h100-nvl", "h100-nvl"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("h200 141gb", "h200"),
        ("GB200 NVL72", "gb200"),
        ("RTX 4090", "rtx4090"),
        ("NVIDIA H200 (compute capability 9.0)", "h200"),
    ],
)
def test_a_gpu_is_known_by_the_names_that_people_write(text, name):
    assert named_device(text) == DEVICES[name]


def test_a_compute_capability_is_a_device_without_a_name():
    device = named_device("cuda:9.0")
    assert device == Device("cuda", (9, 0))
    assert evidence_name(device) == "cuda (compute capability 9.0)"


@pytest.mark.parametrize("text", ["h2000", "", "cuda", "cuda:90", "h100 40gb", "rtx 4090 laptop"])
def test_an_unknown_device_is_refused_with_those_that_are_known(text):
    for measured in (None, {}):
        with pytest.raises(RequestError) as error:
            named_device(text, measured)
        message = str(error.value)
        assert repr(text) in message
        assert all(name in message for name in DEVICES)
        assert ("--records" in message) == (measured is not None)
