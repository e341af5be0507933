"""Arguments of `hamr sft` and `hamr sft preview`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hamr.apps.shared.commands import ConfiguredCommand, Count
from hamr.apps.shared.training_command import TrainingCommand
from hamr.errors import BadInput

if TYPE_CHECKING:
    from hamr.config.schema import Config


class SftCommand(TrainingCommand):
    """Train on a mix of prepared sets and write a run folder; its checkpoints' policy/ is a model for
    `hamr train model.path=...`.

      sft.sets=[{path, weight, name, validation}, ...]
          JSONL of SFT items. weight: passes over the set per epoch. Without a path: the references of `data`
      sft.kinds=[decision_dra, patm_dra]    take only items of these kinds; [decision_dra, decision_post]: hybrid-CoT
      sft.epochs=1  sft.batch_size=256  sft.held_out_frac=0.05
      trainer.learning_rate, trainer.schedule, trainer.min_learning_rate, trainer.warmup_frac, trainer.weight_decay, ...
      experiment.eval_every=0               validation interval in steps, besides before and after
      experiment.checkpoint.every=10
    """

    examples = (
        "hamr sft experiment=sft_mix_dra 'sft.sets=[{path: dra.jsonl}, {path: patm.jsonl, weight: 0.5}]'",
        "hamr sft --multirun trainer.learning_rate=1e-5,1e-4",
    )
    outputs: ClassVar = {"run": ".", "policy": "checkpoints"}
    work = "hamr.apps.sft.run:start"

    def check(self) -> Config:
        config = super().check()
        if not config.sft.sets:
            raise BadInput("sft.sets", [], "is empty; name the sets to train on: sft.sets=[{path: items.jsonl}]")
        return config


class PreviewCommand(ConfiguredCommand):
    """Show items of every set with the prompt and the tokens with and without loss."""

    examples = ("hamr sft preview 'sft.sets=[{path: items.jsonl}]' n=5",)

    n: Count = 3
    """Items of each set."""

    def run(self) -> int:
        from hamr.apps.sft.preview import preview

        return preview(self.config(), self.n)
