"""Ranks on two GPUs: timed calls that are wrong, late or endless on the device of one rank."""

import pytest
import torch

#: What the case of each kernel must be found to be, and what must be said of it.
FOUND = {
    "naive": ("ok", ""),
    "wrong_later": ("wrong", "out of a timed call on rank 1: "),
    "late_on_device": ("wrong", "out of a timed call on rank 1: the device went on for"),
    "hangs_on_device": ("timeout", "rank 1 of 2 is still in phase 'kernel forward' after 20 s, and the others wait"),
}


@pytest.mark.gpu
@pytest.mark.slow
def test_two_gpus(toys):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices, and torch sees fewer here")
    options = [option for name in FOUND for option in ("--kernel", name)]
    process = toys.start(*options, "--device", "cuda", "--placement", "evenly", "--gpus", "2", "--timeout", "20")
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 1, output + errors
    found = {(record["kernel"], record["direction"]): record for record in toys.records()}
    for name, (status, said) in FOUND.items():
        record = found[name, "forward"]
        assert (record["status"], said in record["message"]) == (status, True), record["message"]
        assert found[name, "backward"]["status"] == "ok", found[name, "backward"]["message"]
    assert "Traceback" not in errors
