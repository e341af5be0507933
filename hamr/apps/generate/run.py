"""`hamr generate`: responses of a policy to samples, with log-probabilities and rewards, as rows of a ledger.

Responses are generated first and appended to responses.jsonl on arrival. They are then scored and added to the ledger
group by group in the order of the samples, so that a resumed folder has the same rows as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hamr import signals
from hamr.apps.score.flow import in_order
from hamr.apps.score.reward_system import RewardSystem
from hamr.apps.score.run import score_settings
from hamr.apps.shared.pools_up import pools_of, with_pools
from hamr.apps.shared.progress import progress
from hamr.apps.shared.trained_policy import TrainedPolicy
from hamr.bench.answers import OpenQuestion, PolicyResponse, ResponseLog, response_key
from hamr.bench.decisions import decision_question
from hamr.bench.folder import differences
from hamr.config.pools import SPEED_ONLY, PoolConfig
from hamr.config.schema import Config
from hamr.data.actions import parse_action
from hamr.data.formats import Formats
from hamr.data.policy_chat import PolicyChat
from hamr.data.responses import ResponseGroup
from hamr.data.samples import read_samples, to_json, write_rows
from hamr.errors import BadInput, HamrError
from hamr.files import write_atomic
from hamr.models.bundled import resolve_model
from hamr.models.tokenizer import load_tokenizer
from hamr.protocols import Ask
from hamr.report.terminal import show
from hamr.report.values import Table
from hamr.telemetry.ledger import Ledger
from hamr.types import Failure, MalformedResponse, NotScored, RewardRecord, SampleKey, ServiceSample

if TYPE_CHECKING:
    from hamr.apps.generate.command import GenerateCommand

SETTINGS = "generate.json"
GENERATED = "generated.jsonl"
DEADLINE_S = 1800.0
"""Maximum time for a response. It is generous, because a response that is late is asked for again."""
Score = Callable[[ResponseGroup], Awaitable[Sequence[RewardRecord]]]


@dataclass(frozen=True, kw_only=True)
class GeneratingPolicy:
    """`config`: with the pool `name` and the settings of the policy's model. `native`: it gets its tools as schemas."""

    config: Config
    name: str
    step: int
    native: bool

    @classmethod
    def of(cls, command: GenerateCommand, config: Config) -> GeneratingPolicy:
        """Return the policy that the command names. Raises BadInput."""
        given, step = command.policy, 0
        if given in config.pools:
            return cls(config=config, name=given, step=0, native=False)
        folder = Path(given).expanduser()
        model, rollout, path = config.model, config.rollout, folder
        if not (folder / "config.json").is_file():
            trained = TrainedPolicy.of("policy", folder, command.step)
            model, rollout, path, step = trained.config.model, trained.config.rollout, trained.model, trained.step
        model = model.model_copy(update={"path": str(resolve_model(str(path)))})
        name = f"policy-{folder.resolve().name}"
        pool = PoolConfig(
            role="grader",
            model=model.path,
            dtype=model.dtype,
            max_context=model.max_context,
            engine=rollout.engine,
            replicas=rollout.workers,
            top_p=rollout.top_p,
            sampling_extra=rollout.sampling_extra,
            max_ongoing_requests=rollout.engine.max_num_seqs,
            batch_size=1,
            deadline_s=DEADLINE_S,
        )
        native = PolicyChat.of(load_tokenizer(Path(model.path)), model.tools_prompt).native
        update = {"model": model, "rollout": rollout, "pools": {**config.pools, name: pool}}
        return cls(config=config.model_copy(update=update), name=name, step=step, native=native)


def generate(command: GenerateCommand) -> int:
    """Return 1 if responses or scores are missing."""
    config, console = command.check(), Console()
    samples = read_samples(command.input)
    policy = GeneratingPolicy.of(command, config)
    rollout = policy.config.rollout
    formats = Formats.of_model(policy.config.model)
    how: dict[str, Any] = {
        "temperature": rollout.temperature if command.temperature is None else command.temperature,
        "max_new_tokens": command.max_new_tokens or rollout.max_new_tokens,
    }
    pool = policy.config.pools[policy.name].model_dump(mode="json", exclude=SPEED_ONLY)
    settings = {"policy": pool, "step": policy.step, "n": command.n, "seed": command.seed, **how}
    settings |= {"format": [formats.asked, formats.post_share], "native": policy.native}
    settings["input"] = hashlib.sha256(command.input.read_bytes()).hexdigest()[:12]
    settings["rewards"] = score_settings(_scoring(config, policy)) if command.with_rewards else None
    with ResponseLog(command.output) as log:
        _check_settings(command.output / SETTINGS, settings)
        questions = {
            (sample.id, number): decision_question(
                sample,
                formats.of(sample),
                native=policy.native,
                affinity=sample.id,
                seed=command.seed + number,
                logprobs=True,
                **how,
            )
            for sample in samples
            for number in range(command.n)
        }
        keys = {place: response_key({**pool, "item": place[0]}, question) for place, question in questions.items()}
        left = [
            OpenQuestion(key=key, question=questions[place], about={"item": place[0], "sample": place[1]})
            for place, key in keys.items()
            if log.response(key).passing
        ]
        console.print(f"generate: {len(samples)} samples, {len(left)} of {len(keys)} responses left", highlight=False)

        async def collect(asks: Mapping[str, Ask]) -> None:
            with progress({policy.name: len(left)}, console, "responses") as report:
                places = policy.config.pools[policy.name].places
                await log.collect(left, asks[policy.name], places, lambda done: report(policy.name, done))

        if left:
            with_pools(policy.config, [policy.name], collect, run=pools_of("generate", command.output))
        responses = {place: log.response(key) for place, key in keys.items()}
        failed = Counter(response.failure for response in responses.values() if response.text is None)
        if len(responses) == sum(failed.values()):
            raise HamrError(f"{policy.name} answered nothing ({dict(failed)}); run the command again")
        if any(response.passing for response in responses.values()):
            raise HamrError(f"responses are missing ({dict(failed)}); the same command asks for them again")
        answers = {sample.id: [responses[sample.id, number] for number in range(command.n)] for sample in samples}
        records = _record(command, config, policy, samples, answers)
        rows = [
            to_json(sample) | {"responses": [r.text for r in answers[sample.id] if r.text is not None]}
            for sample in samples
        ]
        write_rows(command.output / GENERATED, (row for row in rows if row["responses"]))
    return _report(command, config, records, failed)


def _scoring(config: Config, policy: GeneratingPolicy) -> Config:
    """Return the configuration of the reward system: the policy's model, without the policy's own pool."""
    return config.model_copy(update={"model": policy.config.model})


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings, or compare them with those of the interrupted command. Raises BadInput."""
    now = json.loads(json.dumps(settings))
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else now
    for key, old, new in differences(before, now):
        remedy = f"holds responses with {key}={old!r}, not {new!r}; repeat the same command or give another folder"
        raise BadInput("output", str(path.parent), remedy)
    write_atomic(path, json.dumps(now, indent=1) + "\n")


# --- ledger ------------------------------------------------------------------------------------


def _record(
    command: GenerateCommand,
    config: Config,
    policy: GeneratingPolicy,
    samples: Sequence[ServiceSample],
    answers: Mapping[str, Sequence[PolicyResponse]],
) -> list[RewardRecord]:
    """Add the groups that the ledger lacks, in the order of the samples, and replace those whose scoring failed. Return
    all rows."""
    formats = Formats.of_model(policy.config.model)

    def group_of(sample: ServiceSample) -> ResponseGroup:
        texts = tuple(response.text for response in answers[sample.id] if response.text is not None)
        return ResponseGroup(sample=sample, responses=texts, number=policy.step)

    async def without_rewards(group: ResponseGroup) -> list[RewardRecord]:
        total = NotScored(detail="generated without with_rewards=true")
        actions = [parse_action(text, formats.of(group.sample)) for text in group.responses]
        return [
            RewardRecord(
                key=rollout.key,
                total=total,
                action=None if isinstance(action, MalformedResponse) else action,
                response=rollout.text,
            )
            for rollout, action in zip(group.rollouts(policy.name), actions, strict=True)
        ]

    with Ledger(command.output / "ledger.sqlite") as ledger:
        keys: dict[str, SampleKey] = {}
        again: set[str] = set()
        for record in ledger.rows():
            keys[record.key.prompt] = record.key
            if isinstance(record.total, Failure) and not isinstance(record.total, NotScored):
                again.add(record.key.prompt)
        wanted = [s for s in samples if s.id not in keys or (command.with_rewards and s.id in again)]
        left = [group_of(s) for s in wanted if any(r.text is not None for r in answers[s.id])]

        async def add(score: Score) -> None:
            async for group, records in in_order(left, score, at_once=config.score.groups_in_flight):
                given = [response for response in answers[group.sample.id] if response.text is not None]
                if key := keys.get(group.sample.id):
                    ledger.discard(key.run, key.step, key.prompt, range(key.attempt, key.attempt + 1))
                ledger.add(
                    replace(
                        record,
                        response_tokens=response.tokens or record.response_tokens,
                        mean_logprob=response.mean_logprob,
                        seconds=response.seconds or record.seconds,
                    )
                    for record, response in zip(records, given, strict=True)
                )

        if left and command.with_rewards:
            with RewardSystem(_scoring(config, policy), run=policy.name, note=print) as system:
                signals.run(add(system.ascore_group))
        elif left:
            signals.run(add(without_rewards))
        return list(ledger.rows())


def _report(
    command: GenerateCommand, config: Config, records: Sequence[RewardRecord], failed: Mapping[str | None, int]
) -> int:
    logprobs = [record.mean_logprob for record in records if record.mean_logprob is not None]
    totals = [record.total.value for record in records if not isinstance(record.total, Failure)]
    rows: dict[str, Any] = {"responses": len(records), "with log-probabilities": len(logprobs)}
    if logprobs:
        rows["mean log-probability of a token"] = f"{fmean(logprobs):.4f}"
    if failed:
        rows["not answered"] = ", ".join(f"{count} {kind}" for kind, count in failed.items())
    unscored = len(records) - len(totals) if command.with_rewards else 0
    if totals:
        rows["mean total reward"] = f"{fmean(totals):.4f} of {len(totals)}"
    show(Table.pairs(f"{len({record.key.prompt for record in records})} samples, in {command.output}", rows))
    if unscored > config.score.max_failed_frac * len(records):
        print(f"{unscored} responses have no score, more than score.max_failed_frac={config.score.max_failed_frac:g}")
        return 1
    return 0
