"""One rank without its process group."""

from __future__ import annotations

import math

import pytest

from hamr.config.schema import TrainerConfig
from hamr.errors import TrainingDiverged
from hamr.trainer.deepspeed_checkpoint import OptimiserProgress
from hamr.trainer.deepspeed_trainer import DeepSpeedTrainer


@pytest.mark.parametrize(
    ("policy", "key"), [(True, "lower trainer.learning_rate="), (False, "lower experiment.sft.learning_rate (hamr sft")]
)
def test_divergence_names_the_rate_of_its_stage(monkeypatch: pytest.MonkeyPatch, policy: bool, key: str) -> None:
    trainer = DeepSpeedTrainer.__new__(DeepSpeedTrainer)
    trainer.config, trainer.progress = TrainerConfig(max_bad_steps=1, zero_stage=2), OptimiserProgress()
    monkeypatch.setattr(trainer, "_zero_step", lambda: math.inf)
    with pytest.raises(TrainingDiverged) as diverged:
        trainer._optimizer_step(policy)
    assert key in str(diverged.value)
