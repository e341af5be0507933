"""Arguments of `hamr generate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, model_validator

from hamr.apps.shared.commands import ConfiguredCommand, Count, File, Folder, NonNegativeCount
from hamr.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from hamr.config.schema import Config


class GenerateCommand(ConfiguredCommand):
    """Generate responses to samples with the policy of a run, of a checkpoint or of a pool, with their
    log-probabilities and, with `with_rewards=true`, their rewards. The same command resumes after a stop.

    A run brings its own model.* and rollout.*. A model folder and a pool take those of the configuration, such as
    model.response_format and rollout.top_p. Rewards are those of the configuration.
    """

    examples = (
        "hamr generate input=validation.jsonl policy=runs/preliminary n=8 output=generated",
        "hamr generate input=train.jsonl policy=runs/stage_1 n=4 output=rated with_rewards=true experiment=quickstart",
    )
    outputs: ClassVar = {"folder": ".", "ledger": "ledger.sqlite", "file": "generated.jsonl"}
    work = "hamr.apps.generate.run:generate"

    input: Annotated[File, Field(title="SAMPLES.jsonl")]
    """Samples to respond to."""
    policy: Annotated[str, Field(title="RUN|FOLDER|POOL")]
    """Run folder (its newest checkpoint), folder of a Hugging Face model, or pool that can write."""
    output: Folder
    """Folder of ledger.sqlite (one row per response, which `hamr data sampled` and `hamr data multigt` read) and
    generated.jsonl (the samples with their responses, which `hamr score` and `hamr evaluate` read)."""
    n: Count = 1
    """Responses per sample."""
    step: NonNegativeCount | None = None
    """Step of the run's checkpoint. By default, the newest one."""
    with_rewards: bool = False
    """Score the responses with the reward system of the configuration."""
    temperature: Annotated[float | None, Field(ge=0.0, le=2.0)] = None
    """Sampling temperature. By default, rollout.temperature."""
    max_new_tokens: Count | None = None
    """Maximum length of a response in tokens. By default, rollout.max_new_tokens."""
    seed: int = 0
    """Determines the sampling."""

    @model_validator(mode="after")
    def _differing_responses(self) -> GenerateCommand:
        if self.n > 1 and self.temperature == 0:
            raise BadInput("temperature", 0, f"makes all {self.n} responses equal; raise it or give n=1")
        return self

    def check(self) -> Config:
        from hamr.apps.shared.pools_up import writing_pool
        from hamr.cascade.auditors import check_pool_auditor
        from hamr.rewards.judged import check_reward_files

        config = self.config()
        if self.policy in config.pools:
            writing_pool(config, "policy", self.policy)
        elif not Path(self.policy).expanduser().is_dir():
            known = sorted(config.pools)
            remedy = f"no such run, model folder or pool; {did_you_mean(self.policy, known)}pools: {', '.join(known)}"
            raise BadInput("policy", self.policy, remedy)
        elif self.step is not None and not (Path(self.policy).expanduser() / "config.yaml").is_file():
            raise BadInput("step", self.step, f"{self.policy} is not a run folder; remove it")
        if self.with_rewards:
            check_reward_files(config.rewards)
            check_pool_auditor(config.rewards.consistency)
        return config
