"""Section `experiment`: the length, stages, evaluations and checkpoints of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from hamr.config.faults import UnscoredConfig
from hamr.config.sage import DialoguesConfig
from hamr.config.section import (
    MOST_STEPS,
    FolderName,
    Fraction,
    NonNegative,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SampleCount,
    Section,
    Seed,
    Steps,
    Temperature,
)
from hamr.errors import ConfigError
from hamr.types import Aggregation


class SftStageConfig(Section):
    """A short supervised warm-up before RL. 0 steps skips it."""

    steps: Steps = 0
    """Number of optimiser steps. 0 skips the warm-up."""
    samples_per_step: SampleCount = 16
    """Number of samples per optimiser step."""
    seed: Seed | None = None
    """Seed of the order of the samples and of the drawn references. null: that of the experiment. With its own seed,
    the warm-up is the same in runs with several seeds, which then differ only in RL."""
    learning_rate: PositiveFloat = 1e-4
    """Peak learning rate of the warm-up, above 0."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate schedule. A rate that decreases to `trainer.min_learning_rate` ends nearer to the result of further
    steps. At a constant rate the last few batches determine the result of a short warm-up."""
    warmup_frac: Fraction = 0.0
    """Share of the steps, in [0, 1], in which the learning rate increases linearly to its peak."""
    references_per_sample: PositiveInt = 1
    """Maximum number of references of a sample that are drawn as targets in a step."""
    turns: Literal["last", "all"] = "last"
    """`all`: also train on earlier agent turns of the dialogue. Use it only if those turns are good examples."""
    loss_aggregation: Aggregation = "token_mean"
    """`sequence_mean` gives a reply of ten tokens the same weight as a tool call of thirty."""


class EvaluationConfig(Section):
    """Sampling of a policy on held-out prompts.

    Temperature 0 gives the most likely response, as in a deployment without sampling. Responses at the rollout
    temperature (with its top_p) estimate the mean that RL optimises.
    """

    temperature: Temperature = 0.0
    """Sampling temperature, in [0, 2]. 0 takes the most likely token."""
    samples: Annotated[int, Field(ge=1, le=4096)] = 1
    """Number of responses per prompt. More than 1 needs a temperature above 0. A held-out customer of dialogues gets
    one dialogue."""
    stop_at_answer: bool = False
    """Post-CoT: generation ends with the answer, as in a deployment. Later text cannot change the answer. In training
    and in dialogues the rationale is always generated."""

    @model_validator(mode="after")
    def _check_sampling(self) -> EvaluationConfig:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples={self.samples} at temperature={self.temperature:g} would all be the same response; "
                "set samples=1 or a temperature above 0"
            )
        return self


class CheckpointConfig(Section):
    every: PositiveInt = 10
    """Interval between two checkpoints in steps."""
    keep: Annotated[int, Field(ge=2, le=1_000_000)] = 2
    """Number of complete checkpoints that are kept, at least 2. Older ones are deleted."""
    asynchronous: bool = False
    """Write checkpoints while training continues. A step then waits only until the ranks have copied their state to
    host memory (`timing/step/checkpoint`). The next checkpoint waits for the one under way. Off by default, because
    the copy needs as much host memory as the checkpoint has bytes: about 16 per trained parameter, over the ranks."""
    grace_s: NonNegative = 4.0
    """Seconds after SIGTERM or Ctrl-C in which a running optimiser step may end and be saved. Then it is dropped, and
    the run resumes from its newest checkpoint. With the default, the whole run ends within 10 s. Raise it for a large
    model, up to a few seconds less than the scheduler waits before SIGKILL."""


class AsynchronyConfig(Section):
    """Generation and scoring that continue while the trainer works, so that slow scorers do not slow down the steps."""

    max_policy_age: Annotated[int, Field(ge=0, le=64)] = 0
    """Largest number of policy versions between sampling a token and training on it. At most (this + 1) x
    `experiment.prompts_per_step` groups are in flight. A group that gets older is recorded as `stale` and replaced. 0:
    every step samples its own groups and waits for them."""
    in_flight: bool = True
    """With `max_policy_age` above 0, or a surplus that is kept: load new weights while responses are being generated,
    which continue under the new weights. False: finish these responses first; requests that wait for a slot of an
    engine, and further ones, start under the new weights."""
    concurrent: PositiveInt | None = None
    """With `max_policy_age` above 0, or a surplus: maximum number of groups that are being generated or scored. Fewer
    groups end sooner, so that their tokens are newer; too few leave engines and scorers idle. null: only the bound on
    the policy's age."""


class ExperimentConfig(Section):
    name: FolderName = "run"
    """Name of the run: in its folder, on the console and in W&B. Without a slash, at most 200 bytes, no dot first."""
    seed: Seed = 0
    """Seed of the order of the prompts, of the sampling and of the splits, from 0 to 2^32 - 1."""
    steps: Steps = 10
    """Number of RL steps. 0 skips RL. null, or not set, with `episodes`: as many as these take."""
    episodes: PositiveFloat | None = None
    """Passes over the training samples, for runs without `steps`: steps = ceil(episodes x samples / prompts_per_step).
    Prompts that replace groups without signal are not counted. null: `steps` decides."""
    prompts_per_step: SampleCount = 8
    """Number of prompts per RL step. Each gets `rollout.samples_per_prompt` responses."""
    run_dir: str | None = None
    """Run folder. null: `runs/<name>-<time>` in the working folder."""
    sft: SftStageConfig = SftStageConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    asynchrony: AsynchronyConfig = AsynchronyConfig()
    max_restarts: Annotated[int, Field(ge=0, le=100)] = 0
    """Largest number of times that `hamr train` resumes the run from its newest checkpoint after the death of its
    driver, a trainer rank or the rollout workers. The run is then a process of its own. 0: it stops, and names the
    command that resumes it."""
    eval_every: NonNegativeInt = 0
    """Evaluate on the held-out split every this number of steps. 0: only before and after each stage."""
    evaluation: EvaluationConfig = EvaluationConfig()
    sage: DialoguesConfig = DialoguesConfig()
    unscored: UnscoredConfig = UnscoredConfig()

    @model_validator(mode="before")
    @classmethod
    def _unset_steps(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("steps", 0) is None:
            return {key: value for key, value in given.items() if key != "steps"}
        return given

    @model_serializer(mode="wrap")
    def _dump(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {**handler(self), **({"steps": None} if self.is_open else {})}

    @property
    def is_open(self) -> bool:
        """Return True if the number of steps depends on the number of training samples."""
        return self.episodes is not None and "steps" not in self.model_fields_set

    def with_steps(self, samples: int) -> ExperimentConfig:
        """Return a copy with the steps that `episodes` takes on this number of training samples.

        Steps that are set, as in the config.yaml of a run, stay. Raises ConfigError for more than MOST_STEPS.
        """
        if self.episodes is None or not self.is_open:
            return self
        steps = math.ceil(self.episodes * samples / self.prompts_per_step)
        if steps > MOST_STEPS:
            why = f"that is {steps:.3g} steps on {samples} samples; the most are {MOST_STEPS:,}, lower it"
            raise ConfigError("experiment.episodes", f"{self.episodes:g}", why)
        return self.model_copy(update={"steps": steps})
