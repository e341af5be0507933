"""Everything that can go wrong before Ray starts: model, data, prompts that do not fit."""

from __future__ import annotations

import dataclasses
import shutil
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hamr.actors.weights import SHARED_MEMORY
from hamr.backends.models import describe, resolve_model
from hamr.backends.tokenizer import Tokenizer, load_tokenizer
from hamr.backends.weights import check_shared_room
from hamr.config.schema import Config, DataConfig, ExperimentConfig
from hamr.data.actions import render_action
from hamr.data.formats import Formats
from hamr.data.pairs import read_pairs
from hamr.data.rendering import policy_messages
from hamr.data.sage_samples import generated
from hamr.data.samples import read_samples
from hamr.data.splits import Splits, split_samples
from hamr.errors import BadInput, DataError
from hamr.evaluation.reply_clusters import ReplyClusters
from hamr.evaluation.truth import ExactAct
from hamr.jobs.dialogues import check_dialogues
from hamr.rewards.judged import check_prompts
from hamr.rewards.rules import load_rules
from hamr.rewards.sage_logic import check_gold
from hamr.types import Action, ServiceSample


@dataclass(frozen=True, kw_only=True)
class Codec:
    """Samples and actions as the policy's token ids."""

    tokenizer: Tokenizer
    config: Config

    @cached_property
    def formats(self) -> Formats:
        return Formats.of_model(self.config.model)

    @cached_property
    def _prompts(self) -> dict[tuple[str, int], array[int]]:
        """All of a run's prompts, four bytes a token; tuples of Python's numbers take nine times that."""
        return {}

    def prompt(self, sample: ServiceSample) -> tuple[int, ...]:
        """The whole prompt, generation prompt included. Remembered: a sample comes up once an epoch."""
        key = (sample.id, len(sample.history))
        if key not in self._prompts:
            messages = policy_messages(sample, self.formats.of(sample))
            self._prompts[key] = array("i", self.tokenizer.chat_ids(messages))
        return tuple(self._prompts[key])

    def answer(self, action: Action) -> tuple[int, ...]:
        """The action as the policy should utter it, end-of-sequence token included. In hybrid-CoT it would have to know
        which prompt asked; the warm-up, which needs it, is refused there."""
        response_format = self.config.model.response_format
        assert response_format != "hybrid", "the schema holds that"
        text = render_action(action, response_format)
        return (*self.tokenizer.encode(text), self.tokenizer.eos_id)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A job's inputs, checked. `dropped` counts the prompts that were too long, by split. `clusters`: of the references
    by meaning, where the data name no acts."""

    config: Config
    model_path: Path
    codec: Codec
    splits: Splits
    dropped: dict[str, int]
    seconds: dict[str, float]
    clusters: ReplyClusters | None = None

    @cached_property
    def truth(self) -> ExactAct | None:
        """The rule for exact acts, where the samples of all splits name their acts."""
        return ExactAct.of((*self.splits.train, *self.splits.validation, *self.splits.test))


def prepare(config: Config) -> Prepared:
    """Resolves the model, reads or generates the data, and drops or refuses prompts that do not fit.

    Raises BadInput (one line: where, what, what to change).
    """
    started = time.perf_counter()
    check_prompts(config.rewards)
    _check_files(config)
    splits = load_splits(config.data, config.experiment.seed)
    check_gold(config.rewards.sage_logic, splits.train)
    after_data = time.perf_counter()
    model_path = resolve_model(config.model.path)
    codec = Codec(tokenizer=load_tokenizer(model_path), config=config)
    seconds = {"data": after_data - started, "model": time.perf_counter() - after_data}
    check_dialogues(config, codec.tokenizer)
    splits, dropped = fit_prompts(splits, codec, config)
    return Prepared(config=config, model_path=model_path, codec=codec, splits=splits, dropped=dropped, seconds=seconds)


def _check_files(config: Config) -> None:
    """Reads what is needed only later, some of it behind hours of training."""
    if config.rewards.rules.weight:
        load_rules(config.rewards.rules.file)
    if config.data.labelled_pairs:
        read_pairs(config.data.labelled_pairs)


def load_splits(data: DataConfig, seed: int) -> Splits:
    """Generated splits, or those of the files; what the files leave out is split off the training file by `seed`."""
    if data.type == "sage":
        return generated(data.sage)
    assert data.train is not None, "the schema holds that"
    given = {name: read_samples(path) for name in ("validation", "test") if (path := getattr(data, name))}
    splits = split_samples(read_samples(data.train), given, held_out_frac=data.held_out_frac, seed=seed)
    return dataclasses.replace(splits, sft=tuple(read_samples(data.sft))) if data.sft else splits


def fit_prompts(splits: Splits, codec: Codec, config: Config) -> tuple[Splits, dict[str, int]]:
    """Keeps the samples whose prompt leaves room for `max_new_tokens` in the model's context."""
    room = config.model.max_context - config.rollout.max_new_tokens
    kept: dict[str, tuple[ServiceSample, ...]] = {}
    dropped: dict[str, int] = {}
    for name in ("train", "validation", "test", *(("sft",) if splits.sft else ())):
        samples: Sequence[ServiceSample] = getattr(splits, name)
        fitting = tuple(s for s in samples if len(codec.prompt(s)) <= room)
        dropped[name] = len(samples) - len(fitting)
        if dropped[name] and config.rollout.long_prompt == "refuse":
            worst = max(samples, key=lambda s: len(codec.prompt(s)))
            raise DataError(
                f"data.{name}: sample {worst.id}",
                f"{len(codec.prompt(worst))} tokens",
                f"longer than the {room} that model.max_context={config.model.max_context} leaves beside "
                f"rollout.max_new_tokens={config.rollout.max_new_tokens}; raise the first, shorten the prompt, or set "
                "rollout.long_prompt=drop",
            )
        if samples and not fitting:
            raise DataError(
                f"data.{name}", f"{len(samples)} samples", f"none fits into {room} tokens; raise model.max_context"
            )
        kept[name] = fitting
    return Splits(**kept), dropped


def run_path(experiment: ExperimentConfig) -> Path:
    """Where a new run puts its folder."""
    if experiment.run_dir:
        return Path(experiment.run_dir)
    return Path("runs") / f"{experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def check_room(config: Config, model_path: Path, run_dir: Path) -> None:
    """Refuses a disk that cannot hold the run's checkpoints, and shared memory that cannot hold its weights; that of
    another host is looked at when the trainers stand there. Raises BadInput.
    """
    check_checkpoint_room(config, model_path, run_dir)
    if config.rollout.transfer == "shared_memory" and config.cluster.address is None:
        check_shared_room(SHARED_MEMORY, shared_bytes(config, model_path))


def shared_bytes(config: Config, model_path: Path) -> int:
    """Shared memory that the policy's weights want on their way to the engines."""
    return 2 * _policy_bytes(config, describe(model_path)["parameters"])


def _policy_bytes(config: Config, parameters: int) -> int:
    return parameters * (2 if config.trainer.dtype == "bfloat16" else 4)


def check_checkpoint_room(config: Config, model_path: Path, run_dir: Path) -> None:
    """Refuses a disk that cannot hold the run's checkpoints.

    A checkpoint has the weights twice (the policy, and what resumption needs) and AdamW's two moments; one more than
    `experiment.checkpoint.keep` exist while the next is written. Those that a resumed run has already count as room.
    Raises BadInput.
    """
    parameters = describe(model_path)["parameters"]
    policy = _policy_bytes(config, parameters)
    optimizer = 0 if config.trainer.lora else 12 * parameters
    checkpoints = (config.experiment.checkpoint.keep + 1) * (policy + optimizer)
    present = sum(file.stat().st_size for file in (run_dir / "checkpoints").rglob("*") if file.is_file())
    remedy = "checkpoints; free some space, lower experiment.checkpoint.keep, or choose another folder"
    existing = next(parent for parent in (run_dir.resolve(), *run_dir.resolve().parents) if parent.exists())
    free, wanted = shutil.disk_usage(existing).free, checkpoints - present
    if free < wanted:
        room = f"{free / 1e9:.1f} GB free there, {wanted / 1e9:.1f} GB needed"
        raise BadInput("experiment.run_dir", str(run_dir), f"{room} for {remedy}")
