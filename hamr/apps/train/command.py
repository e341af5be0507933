"""Arguments of `hamr train`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hamr.apps.shared.training_command import TrainingCommand

if TYPE_CHECKING:
    from hamr.config.schema import Config


class TrainCommand(TrainingCommand):
    """SFT warm-up, then RL with the hybrid reward, evaluated on held-out samples before and after.

    All inputs are checked before anything starts. The run folder is experiment.run_dir, or runs/<name>-<time>. `resume`
    takes the folder of a run, of a pipeline or of a --multirun.
    """

    examples = (
        "hamr train experiment=quickstart",
        "hamr train experiment=quickstart data=FOLDER trainer.learning_rate=1e-5",
        "hamr train resume=runs/quickstart",
    )
    outputs: ClassVar = {"run": ".", "policy": "checkpoints", "ledger": "ledger.sqlite"}
    work = "hamr.apps.train.run:start"

    def check(self) -> Config:
        from hamr.rewards.judged import check_reward_files

        config = super().check()
        check_reward_files(config.rewards)
        return config
