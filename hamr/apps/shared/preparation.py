"""Checks of model, data and prompt lengths before Ray starts."""

from __future__ import annotations

import shutil
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hamr.apps.shared.dialogue_checks import check_dialogues, customer_scenarios
from hamr.apps.shared.pool_room import check_extras
from hamr.bench.sage.episodes import check_customers
from hamr.bench.tau2.episodes import tau2_splits
from hamr.config.experiment import ExperimentConfig
from hamr.config.schema import Config, DataConfig
from hamr.config.section import LoraConfig
from hamr.data.actions import ResponseFormat, render_action
from hamr.data.formats import Formats
from hamr.data.importer_function import imported_samples
from hamr.data.pairs import read_pairs
from hamr.data.policy_chat import PolicyChat
from hamr.data.reply_clusters import ReplyClusters
from hamr.data.sage_samples import generate_samples
from hamr.data.samples import read_samples
from hamr.data.splits import Splits, add_sft, split_samples
from hamr.errors import BadInput, DataError
from hamr.models.bundled import describe, matrix_names, resolve_model
from hamr.models.tokenizer import Tokenizer, load_tokenizer
from hamr.models.weights import check_shared_room
from hamr.rewards.judged import check_reward_files
from hamr.rewards.sage_logic import check_gold
from hamr.rewards.truth import ExactAct
from hamr.trainer.weight_sync import SHARED_MEMORY
from hamr.types import Action, Messages, ServiceSample


@dataclass(frozen=True, kw_only=True)
class Codec:
    """Encoder of samples and actions into the policy's token ids."""

    tokenizer: Tokenizer
    config: Config

    @cached_property
    def formats(self) -> Formats:
        return Formats.of_model(self.config.model)

    @cached_property
    def chat(self) -> PolicyChat:
        """Form of tools and calls. Raises BadInput if the model's chat template lacks the requested one."""
        return PolicyChat.of(self.tokenizer, self.config.model.tools_prompt)

    @cached_property
    def _prompts(self) -> dict[tuple[str, int], array[int]]:
        """Cache of all prompts of a run at four bytes per token; tuples of Python ints take nine times as much."""
        return {}

    def prompt(self, sample: ServiceSample) -> tuple[int, ...]:
        """Return the whole prompt, including the generation prompt. Cached, because a sample comes up once per
        epoch."""
        key = (sample.id, len(sample.history))
        if key not in self._prompts:
            self._prompts[key] = array("i", self.chat.prompt(sample, self.formats.of(sample)))
        return tuple(self._prompts[key])

    def turn(self, prompt: ServiceSample | Messages, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...]:
        """Return the prompt of a turn of a dialogue: a decision point, or messages with their tools. Not cached."""
        if isinstance(prompt, ServiceSample):
            return tuple(self.chat.prompt(prompt, self.formats.of(prompt)))
        return tuple(self.chat.encode_request(prompt, tools))

    def answer(self, action: Action, response_format: ResponseFormat | None = None) -> tuple[int, ...]:
        """Return the action in the policy's output format, including the end-of-sequence token.

        In hybrid-CoT the format depends on the prompt and has to be given. The warm-up, which gives none, is refused
        there.
        """
        if response_format is None:
            assert self.config.model.response_format != "hybrid", "the schema checks this"
            response_format = self.config.model.response_format
        text = self.chat.rewrite(render_action(action, response_format))
        return (*self.tokenizer.encode(text), self.tokenizer.eos_id)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Checked inputs of a job. `dropped` counts the prompts that were too long, by split. `clusters`: the references
    by meaning, where the data name no acts."""

    config: Config
    model_path: Path
    codec: Codec
    splits: Splits
    dropped: dict[str, int]
    clusters: ReplyClusters | None = None

    @property
    def dropped_note(self) -> str:
        """One line about the prompts that were too long. Empty: none were."""
        counts = ((name, n, n + len(getattr(self.splits, name))) for name, n in self.dropped.items() if n)
        found = ", ".join(f"{n:,} of {total:,} in {name}" for name, n, total in counts)
        room = f"model.max_context={self.config.model.max_context} less rollout.max_new_tokens"
        return f"data: samples dropped because their prompts exceed {room}: {found}" if found else ""

    @cached_property
    def truth(self) -> ExactAct | None:
        """The exact-act rule, or None where some split has samples without labelled acts."""
        samples = (*self.splits.train, *self.splits.validation, *self.splits.test)
        return ExactAct.of(samples, self.config.rewards.consistency.matching)


def prepare(config: Config) -> Prepared:
    """Resolve the model, read or generate the data, and drop or refuse prompts that do not fit.

    Raises BadInput (one line: where, what, what to change).
    """
    check_reward_files(config.rewards)
    check_extras(config.pools, config.rollout)
    check_reranker_context(config)
    if config.data.labelled_pairs:
        read_pairs(config.data.labelled_pairs)  # a fault is reported now rather than after hours of training
    is_tau2 = config.env.type == "tau2"
    splits = tau2_splits(config.env) if is_tau2 else load_splits(config.data, config.experiment.seed)
    check_gold(config.rewards.sage_logic, splits.train)
    if config.env.type == "sage":
        check_customers((*splits.train, *splits.test), customer_scenarios(config))
    model_path = resolve_model(config.model.path)
    check_adapter_targets(config.trainer.lora, model_path)
    codec = Codec(tokenizer=load_tokenizer(model_path), config=config)
    check_dialogues(config, codec.tokenizer)
    splits, dropped = fit_prompts(splits, codec, config)
    return Prepared(config=config, model_path=model_path, codec=codec, splits=splits, dropped=dropped)


def check_adapter_targets(lora: LoraConfig | None, model_path: Path) -> None:
    """Raise BadInput if a name in `target_modules` is that of no layer, whose adapter would be left out silently."""
    if lora is None:
        return
    names = matrix_names(model_path)
    for target in lora.target_modules if names else ():
        if not any(name == target or name.endswith(f".{target}") for name in names):
            known = sorted({name.rpartition(".")[2] for name in names if any(map(str.isdigit, name.split(".")))})
            remedy = f"is no layer of the model; name some of {', '.join(known)}"
            raise BadInput("trainer.lora.target_modules", target, remedy)


def check_reranker_context(config: Config) -> None:
    """Raise BadInput if a reranker's context is shorter than the policy's: long dialogues would never be rewarded.

    A scorer that compares two texts does not read the dialogue.
    """
    name = config.rewards.scorers.get("reranker")
    if name is None or config.pools[name].compares:
        return
    own, policy = config.pools[name].max_context, config.model.max_context
    if own < policy:
        raise BadInput(
            f"pools.{name}.max_context",
            own,
            f"is below model.max_context={policy}, so the reranker cannot read the longest dialogues of the policy; "
            "raise the first or lower the second",
        )


def load_splits(data: DataConfig, seed: int) -> Splits:
    """Return generated splits, or those of the files. Missing splits are taken from the training file by `seed`."""
    if data.type == "sage":
        return generate_samples(data.sage)
    given = {name: read_samples(path) for name in ("validation", "test") if (path := getattr(data, name))}
    if data.importer is not None:
        train = imported_samples(data.importer)
    else:
        assert data.train is not None, "the schema checks this"
        train = read_samples(data.train)
    splits = split_samples(train, given, held_out_frac=data.held_out_frac, seed=seed)
    return add_sft(splits, read_samples(data.sft)) if data.sft else splits


def fit_prompts(splits: Splits, codec: Codec, config: Config) -> tuple[Splits, dict[str, int]]:
    """Keep the samples whose prompt leaves room for `max_new_tokens` in the model's context.

    Raises DataError if nothing is left of a split, or, where samples are customers, of a scenario in it.
    """
    room = config.model.max_context - config.rollout.max_new_tokens
    kept: dict[str, tuple[ServiceSample, ...]] = {}
    dropped: dict[str, int] = {}
    for name in ("train", "validation", "test", *(("sft",) if splits.sft else ())):
        samples: Sequence[ServiceSample] = getattr(splits, name)
        fitting = tuple(s for s in samples if len(codec.prompt(s)) <= room)
        dropped[name] = len(samples) - len(fitting)
        if samples and not fitting:
            raise DataError(
                f"data.{name}", f"{len(samples)} samples", f"none fits into {room} tokens; raise model.max_context"
            )
        if config.env.type == "sage" and name in ("train", "test"):
            _check_scenarios(name, samples, fitting, codec, config)
        kept[name] = fitting
    return Splits(**kept), dropped


def _check_scenarios(
    split: str, samples: Sequence[ServiceSample], fitting: Sequence[ServiceSample], codec: Codec, config: Config
) -> None:
    """Raise DataError for a scenario whose customers were all dropped."""
    lengths: dict[str, list[int]] = {}
    for sample in samples:
        lengths.setdefault(sample.meta["scenario"], []).append(len(codec.prompt(sample)))
    kept = {sample.meta["scenario"] for sample in fitting}
    for scenario, own in lengths.items():
        if scenario not in kept:
            needed, context = min(own) + config.rollout.max_new_tokens, config.model.max_context
            what = f"each of its {len(own)} samples needs {needed} tokens or more, of model.max_context={context}"
            raise DataError(f"data.{split}", scenario, f"{what}; raise it, or leave the scenario out")


def run_path(experiment: ExperimentConfig) -> Path:
    """Return the folder of a new run."""
    if experiment.run_dir:
        return Path(experiment.run_dir)
    return Path("runs") / f"{experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def check_room(config: Config, model_path: Path, run_dir: Path) -> None:
    """Check that the disk can hold the run's checkpoints and that shared memory can hold its weights.

    Shared memory of another host is checked when the trainers are running there. Raises BadInput.
    """
    check_checkpoint_room(config, model_path, run_dir)
    if config.rollout.transfer == "shared_memory" and config.cluster.address is None:
        check_shared_room(SHARED_MEMORY, shared_bytes(config, model_path))


def shared_bytes(config: Config, model_path: Path) -> int:
    """Return the shared memory in bytes that the policy's weights need on their way to the engines."""
    return 2 * _bytes(describe(model_path)["parameters"], config.model.dtype)


def _bytes(parameters: int, dtype: str) -> int:
    return parameters * (2 if dtype == "bfloat16" else 4)


def check_checkpoint_room(config: Config, model_path: Path, run_dir: Path) -> None:
    """Check that the disk can hold the run's checkpoints. Raises BadInput.

    A checkpoint has the weights twice (the policy, and the state for resumption) and AdamW's two moments. One more than
    `experiment.checkpoint.keep` exist while the next is written. Existing checkpoints of a resumed run count as free
    space.
    """
    parameters = describe(model_path)["parameters"]
    policy = _bytes(parameters, config.trainer.dtype)
    optimizer = 0 if config.trainer.lora else 12 * parameters
    checkpoints = (config.experiment.checkpoint.keep + 1) * (policy + optimizer)
    present = sum(file.stat().st_size for file in (run_dir / "checkpoints").rglob("*") if file.is_file())
    remedy = "checkpoints; free some space, lower experiment.checkpoint.keep, or choose another folder"
    existing = next(parent for parent in (run_dir.resolve(), *run_dir.resolve().parents) if parent.exists())
    free, wanted = shutil.disk_usage(existing).free, checkpoints - present
    if free < wanted:
        room = f"{free / 1e9:.1f} GB free there, {wanted / 1e9:.1f} GB needed"
        raise BadInput("experiment.run_dir", str(run_dir), f"{room} for {remedy}")
