"""SAGE evaluation of the policy in training: simulated customers talk to the rollout engines (`experiment.sage`).

Each evaluation writes its own folder, `sage/<stage>/` in the run folder, in the format of `hamr evaluate
benchmark=sage`. Its figures are recorded with those of the held-out decisions.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hamr.apps.evaluate.sage.run import digest_of, write_figures, write_report
from hamr.apps.shared.dialogue_checks import answer_tokens, scenarios_of
from hamr.bench.sage.coverage import plan_dialogues
from hamr.bench.sage.run import Cast, Evaluated, hold, summarise
from hamr.bench.sage.scripted import scripted_pool
from hamr.bench.sage.store import Store
from hamr.bench.sage.traces import DialoguePlan
from hamr.config.sage import SCRIPTED
from hamr.procedures import Scenario
from hamr.protocols import Ask, GenerationRequest, RolloutEngine, SamplingConfig
from hamr.types import Answer, Question, SampleKey

if TYPE_CHECKING:
    from hamr.apps.train.stages import Run

POLICY = "policy"
"""The agent's name in traces and tables."""


async def simulate(run: Run, stage: str, step: int) -> None:
    """Run all dialogues of `experiment.sage` with the engines' current weights.

    Deletes the results of an earlier attempt at this stage, which may have used other weights.
    """
    config = run.config
    sage = config.experiment.sage
    folder = run.folder / "sage" / stage
    shutil.rmtree(folder, ignore_errors=True)
    scenarios = scenarios_of(config)
    plans = [plan for scenario in scenarios.values() for plan in plan_dialogues(scenario, sage)]
    settings = {
        "agents": {POLICY: {"run": run.run_id, "stage": stage, "step": step}},
        "scenarios": {name: {"digest": digest_of(scenario)} for name, scenario in scenarios.items()},
        "sage": sage.model_dump(mode="json"),
    }
    with run.console.phase(f"dialogues {stage}"), Store(folder, settings) as store:
        try:
            pairs = [(POLICY, plan) for plan in plans]
            await hold(
                store,
                scenarios,
                pairs,
                _cast(run, scenarios, plans),
                sage,
                at_once=config.experiment.sage.at_once or config.rollout.workers * config.rollout.engine.max_num_seqs,
            )
        finally:
            found = summarise(store, scenarios, plans, [POLICY], sage)
            write_figures(folder, sage, found)
        await asyncio.to_thread(write_report, folder, found, store)
    values = figures(found)
    run.recorder.evaluation(stage, step, {f"eval/{stage}/sage/{name}": value for name, value in values.items()})
    run.dialogues[stage] = {"step": step, **values}


def figures(found: Evaluated) -> dict[str, float]:
    """Return the policy's metrics: the means over the scenarios, the number of dialogues and the failed share."""
    result = found.summary["agents"][POLICY]
    means = {name: figure["mean"] for name, figure in result["average"].items()}
    outcomes = [entry["dialogues"] for entry in result["scenarios"].values()]
    held = sum(sum(counts.values()) for counts in outcomes)
    failed = sum(n for counts in outcomes for outcome, n in counts.items() if outcome.endswith("_failed"))
    known = {name: value for name, value in means.items() if value is not None}
    return {**known, "dialogues": float(held), "failed_frac": failed / held if held else 0.0}


# --- participants ------------------------------------------------------------------------------


def _cast(run: Run, scenarios: Mapping[str, Scenario], plans: list[DialoguePlan]) -> Cast:
    config = run.config
    sage, by_id = config.experiment.sage, {plan.id: plan for plan in plans}

    def find_ask(kind: str, name: str) -> Ask:
        if name.startswith(SCRIPTED):
            return scripted_pool(kind, name.removeprefix(SCRIPTED), scenarios, by_id)
        return run.world.pools[name].ask

    policy = asked_policy(
        run.world.workers,
        run.prepared.codec.tokenizer.chat_ids,
        run=f"{run.run_id}/sage",
        context=config.model.max_context,
        max_new_tokens=answer_tokens(config),
    )
    return Cast(
        agents={POLICY: policy},
        user=find_ask("simulator", sage.simulator),
        simulator=sage.simulator,
        judges={name: find_ask("judges", name) for name in sage.judges},
        readers={name: find_ask("judges", name) for name in sage.judges if not name.startswith(SCRIPTED)},
    )


def asked_policy(
    engine: RolloutEngine,
    encode: Callable[[Sequence[Mapping[str, Any]]], Sequence[int]],
    *,
    run: str,
    context: int,
    max_new_tokens: int,
) -> Ask:
    """Return a function that answers questions with a conversation like a pool, using the engines' current weights.

    `encode` returns the token ids of a conversation, including the generation prompt. As with a pool, an answer
    truncated at `max_new_tokens` is "unparsable" and carries its text as reasoning. A prompt that leaves no room in
    `context` is "unparsable" without text. A dead engine raises, because the run cannot continue without it.
    """
    numbers = itertools.count()

    async def ask(question: Question) -> Answer:
        prompt = tuple(encode(question.messages))
        room = min(question.max_new_tokens or max_new_tokens, context - len(prompt))
        if room < 1:
            return Answer(failure="unparsable", detail=f"{len(prompt)} tokens leave no room in a context of {context}")
        request = GenerationRequest(
            prompt_ids=prompt,
            keys=(SampleKey(run=run, step=0, prompt=question.affinity, sample=next(numbers)),),
            seeds=(question.seed,),
            sampling=SamplingConfig(temperature=question.temperature or 0.0, max_new_tokens=room),
        )
        [rollout] = [rollout async for rollout in engine.generate([request])]
        if rollout.finish_reason == "stop":
            return Answer(text=rollout.text)
        return Answer(failure="unparsable", reasoning=rollout.text, detail=f"ended by {rollout.finish_reason}")

    return ask
