"""`longca run --recommended`, as it is called: predictions, what is measured, going on, and what is refused."""

import json

import pytest

SMALL = ("--heads", "4:2", "--head-dim", "32", "--dtype", "float32", "--device", "cpu", "--direction", "forward")
FEW = (*SMALL, "--kernel", "naive", "--kernel", "sdpa")


@pytest.fixture
def fakes(fakes):
    fakes.env["LONGCA_PLUGINS"] = ""
    return fakes


def test_choices_are_predicted_measured_and_kept(fakes, tmp_path):
    for seqlen in ("64", "128"):
        assert fakes.longca("run", "causal", "--seqlen", seqlen, *FEW, "--out", str(tmp_path / seqlen)).returncode == 0
    ask = ("run", "causal", "--seqlen", "96", *FEW, "--recommended", "1")
    (planned,) = json.loads(fakes.says(*ask, "--dry-run", "--json"))
    assert (planned["ranked"], len(planned["ways"]), planned["regret"]) == (True, 1, None)
    assert not (tmp_path / "runs").exists()

    (outcome,) = json.loads(fakes.says(*ask, "--out", str(tmp_path / "run"), "--json"))
    assert json.loads((tmp_path / "run" / "advice.json").read_text("utf-8")) == [outcome]
    (way,) = outcome["ways"]
    (record,) = map(json.loads, (tmp_path / "run" / "records.jsonl").read_text("utf-8").splitlines())
    assert (record["kernel"], record["case"]) == (way["kernel"], way["times"]["forward"]["case"])
    assert (way["times"]["forward"]["measured"], outcome["regret"]) == (record["median"], 0)
    assert way["times"]["forward"]["predicted"] == planned["ways"][0]["times"]["forward"]["predicted"]

    ran = fakes.longca(*ask, "--out", str(tmp_path / "run"), "--resume")
    assert (ran.returncode, ran.stderr) == (0, "1 cases were measured before and are kept\n")
    assert "Its regret is 0 %." in ran.stdout
    for other in ((*ask[:-1], "2"), (*ask[:3], "97", *ask[4:])):
        said = fakes.refuses(*other, "--out", str(tmp_path / "run"), "--resume")
        assert "is of another problem, device or number of choices" in said


@pytest.mark.exhaustive
def test_without_evidence_kernels_are_measured_in_their_order(fakes, tmp_path):
    ran = fakes.longca("run", "full", "--seqlen", "64", *FEW, "--recommended", "--out", str(tmp_path / "run"))
    assert ran.returncode == 0
    assert "No evidence ranks these choices." in ran.stdout
    assert "was fastest as measured" in ran.stdout or "The machine was busy" in ran.stdout
    (outcome,) = json.loads((tmp_path / "run" / "advice.json").read_text("utf-8"))
    assert ([way["kernel"] for way in outcome["ways"]], outcome["ranked"]) == (["naive", "sdpa"], False)
