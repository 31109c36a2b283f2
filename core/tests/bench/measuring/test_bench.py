"""The rounds of timing of a case."""

from unittest.mock import MagicMock, Mock

import pytest

from longca_bench.measuring.bench import ROUNDS, Bench
from longca_bench.verification.findings import Verification


@pytest.mark.parametrize(
    ("said", "patience", "times", "status"),
    [
        ([""], 60.0, 1, "ok"),
        (["slow", ""], 0.0, 2, "ok"),
        (["slow", "slow", ""], 60.0, 3, "ok"),
        (["slow"] * ROUNDS, 60.0, ROUNDS, "suspect"),
        (["slow"] * ROUNDS, 0.0, 2, "suspect"),
    ],
)
def test_a_suspected_case_is_timed_anew(monkeypatch, said, patience, times, status):
    monkeypatch.setattr("longca_bench.measuring.bench.PATIENCE", patience)
    instruments = MagicMock()
    instruments.world.everyone.side_effect = lambda value: [value]
    instruments.world.rank = 0
    bench, trial = Bench(Mock(), instruments, {64}), Mock()
    trial.suspicion.side_effect = [*said, said[-1]]
    trial.verify_again.return_value = Verification(())
    timed = Mock(side_effect=lambda _: {"median": timed.call_count})
    monkeypatch.setattr(Bench, "_planned", lambda self, task: trial)
    monkeypatch.setattr(Bench, "_verified", lambda self, trial: (Verification(()), {}))
    monkeypatch.setattr(Bench, "_timed", lambda self, trial: timed(trial))
    found = bench.measure(Mock())
    assert (found.status, found.fields["median"], timed.call_count) == (status, times, times)
