"""Responses that `hamr evaluate benchmark=ecs` scores: from a file, a run folder, or an agent that is asked now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from hamr.apps.evaluate.policies import AskedPolicies, with_policies
from hamr.apps.shared.pools_up import pools_of, with_pools
from hamr.apps.shared.preparation import load_splits
from hamr.apps.shared.progress import progress
from hamr.bench.answers import RESPONSES, ResponseLog
from hamr.bench.decisions import decision_question
from hamr.bench.ecs.figures import check_same_samples
from hamr.cascade.retry import patient
from hamr.config.load import load_dumped
from hamr.config.schema import Config
from hamr.data.formats import Formats
from hamr.data.responses import ResponseGroup, stream_groups
from hamr.data.samples import read_samples
from hamr.errors import BadInput, DataError, HamrError
from hamr.protocols import Ask
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.run_folder import RunFolder

if TYPE_CHECKING:
    from hamr.apps.evaluate.command import EvaluateEcs


@dataclass(frozen=True, kw_only=True)
class PolicyResponses:
    """Responses of one policy, one group per sample; without a response if the policy did not answer."""

    name: str
    groups: tuple[ResponseGroup, ...]
    formats: Formats


def read_policy(path: Path, config: Config, stage: str) -> PolicyResponses:
    """Read the responses of a file, or those of a run folder's evaluation. Raises DataError (file and line) or
    BadInput."""
    if path.is_dir():
        return _of_run(path, stage)
    groups = []
    seen: dict[str, int] = {}
    for group, _ in stream_groups(path):
        if group.sample.id in seen:
            remedy = f"already used on line {seen[group.sample.id]}; put all of a sample's responses on one line"
            raise DataError(f"{path}:{group.number}: id", group.sample.id, remedy)
        seen[group.sample.id] = group.number
        groups.append(group)
    return PolicyResponses(name=path.stem, groups=tuple(groups), formats=Formats.of_model(config.model))


def to_answer(request: EvaluateEcs, config: Config) -> PolicyResponses:
    """Return the samples that the policy is to answer, without responses. Raises DataError."""
    samples = enumerate(read_samples(request.source), start=1)
    groups = tuple(ResponseGroup(sample=sample, responses=(), number=number) for number, sample in samples)
    return PolicyResponses(name=request.policy, groups=groups, formats=Formats.of_model(config.model))


def asked_policy(request: EvaluateEcs, config: Config) -> AskedPolicies:
    """Return the policy to ask, as an agent. Raises BadInput without such a pool or function."""
    found = with_policies(config, "policy", [request.policy], "none", request)
    if request.policy not in found.names:
        remedy = "give a pool or FILE.py:FUNCTION; run= and input= take runs and responses"
        raise BadInput("policy", request.policy, remedy)
    return found


def answer_samples(
    request: EvaluateEcs, asked: AskedPolicies, to_answer: PolicyResponses, console: Console
) -> PolicyResponses:
    """Ask the policy for one response to each sample. Earlier responses of the folder are kept.

    A sample without an answer has no response, and the failures are printed.

    Raises HamrError if the policy answered nothing.
    """
    name = request.policy
    samples = [group.sample for group in to_answer.groups]
    [policy] = asked.under_test([name], [])
    questions = {
        sample.id: decision_question(
            sample,
            to_answer.formats.of(sample),
            native=policy.native,
            affinity=sample.id,
            temperature=request.temperature,
            max_new_tokens=request.max_new_tokens,
            seed=request.seed,
        )
        for sample in samples
    }
    with ResponseLog(request.output) as log:
        left = log.open_questions(policy, questions)
        console.print(f"ecs: {len(samples)} samples for {name}, to answer: {len(left)}", highlight=False)

        async def work(asks: Mapping[str, Ask]) -> None:
            async with asked.asks(asks) as by_policy:
                ask = patient(by_policy[name], request)
                with progress({name: len(left)}, console, "answers") as report:
                    await log.collect(left, ask, policy.at_once, lambda done: report(name, done))

        if left:
            with_pools(asked.config, asked.pools, work, run=pools_of("ecs", request.output))
        responses = {item: log.response_to(policy, item, question) for item, question in questions.items()}
    failed = Counter(response.failure for response in responses.values() if response.text is None)
    if failed:
        console.print(f"not answered by {name}: {dict(failed)}; transient failures are asked again", highlight=False)
    if sum(failed.values()) == len(responses):
        raise HamrError(f"{name} answered nothing ({dict(failed)}); see {request.output / RESPONSES}")
    groups = [
        replace(group, responses=() if text is None else (text,))
        for group in to_answer.groups
        for text in (responses[group.sample.id].text,)
    ]
    return replace(to_answer, groups=tuple(groups))


def _of_run(path: Path, stage: str) -> PolicyResponses:
    """Read the last evaluation of `stage`: the responses from its records, the samples from the run's configuration."""
    folder = RunFolder.open(path, "run")
    config = load_dumped(folder.config)
    if not folder.ledger.is_file():
        raise BadInput("run", str(path), "has no ledger; give a run that was evaluated")
    by_prompt: dict[str, dict[int, str]] = {}
    with Ledger(folder.ledger, readonly=True) as ledger:
        found = ledger.query("SELECT DISTINCT run, step FROM records WHERE run LIKE '%/eval-%' ORDER BY step")
        last = {run.rpartition("/eval-")[2]: (run, step) for run, step in found}
        if stage not in last:
            raise BadInput("stage", stage, f"was not evaluated in {path}; there are: {', '.join(last) or 'none'}")
        run, step = last[stage]
        for record in ledger.rows(run=run, step=step):
            by_prompt.setdefault(record.key.prompt, {})[record.key.sample] = record.response
    splits = load_splits(config.data, config.experiment.seed)
    samples = {sample.id: sample for split in (splits.test, splits.validation) for sample in split}
    lost = next((prompt for prompt in by_prompt if prompt not in samples), None)
    if lost is not None:
        raise BadInput("run", str(path), f"sample {lost!r} is missing from its data; restore data.* of the run")
    groups = [
        ResponseGroup(sample=samples[prompt], responses=tuple(text for _, text in sorted(texts.items())), number=number)
        for number, (prompt, texts) in enumerate(by_prompt.items(), start=1)
    ]
    return PolicyResponses(
        name=f"{path.resolve().name}-{stage}", groups=tuple(groups), formats=Formats.of_model(config.model)
    )


def check_comparable(ours: PolicyResponses, theirs: PolicyResponses) -> None:
    """Raise DataError, with the id of the first difference, where two policies did not answer the same questions."""
    a, b = ({group.sample.id: group.sample for group in policy.groups} for policy in (ours, theirs))
    check_same_samples(a, b)
    for name, sample in a.items():
        for field in ("history", "references"):
            if getattr(sample, field) != getattr(b[name], field):
                raise DataError("compare", name, f"its {field} differ from the input's; compare responses to the same")
