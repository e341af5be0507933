"""RL on whole dialogues with a policy that is a table: paired customers, and faulty customers.

    python benchmarks/dialogues.py pairing --out benchmarks/results/dialogues_pairing.json
    python benchmarks/dialogues.py faults --out benchmarks/results/dialogues_faults.json
    python benchmarks/dialogues.py speed --out benchmarks/results/dialogues_speed.json

Environment, runner, audit, credit and advantages are hamr's; only the policy is not a language model. It is a softmax
over the acts of the procedure for each state, which it reads from the customer's messages and the ticket. It starts
with a chance `skill` of the right act, which differs between states.

`pairing` holds batches of 8 customers x 8 dialogues, grouped by customer, and compares the variance of the advantages
and of the policy gradient with those of two other groupings: `crossed`, the same dialogues in groups of 8 different
customers, and `distinct`, 64 customers with one dialogue each. Intervals are bootstraps over batches. `faults` trains
the table with 20 % planted faulty customers, masked and unmasked, and without faults, and evaluates it with faultless
customers of the held-out split. `speed` counts dialogues per second of the harness: customers, audit, rewards and
records, with a policy that answers with a reference and takes no time. CPU only, minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import platform
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from benchmarks.customer_faults import CUSTOMER_FAULTS, Dialogue, plant_fault  # noqa: E402
from benchmarks.results_json import results_text  # noqa: E402
from hamr.algorithms.advantages import group_advantages  # noqa: E402
from hamr.algorithms.credit import episode_rewards, turn_advantages  # noqa: E402
from hamr.apps.shared.machine import machine  # noqa: E402
from hamr.bench.sage.episodes import Customer, SageEnvironment  # noqa: E402
from hamr.bench.statistics import mean_interval  # noqa: E402
from hamr.cascade.router import RewardRouter  # noqa: E402
from hamr.config.rewards import ConsistencyConfig, RewardsConfig  # noqa: E402
from hamr.config.schema import EnvConfig  # noqa: E402
from hamr.data.actions import render_action  # noqa: E402
from hamr.data.customer_audit import CustomerCase, WordingReader  # noqa: E402
from hamr.data.sage_samples import act_of_walk, generate  # noqa: E402
from hamr.procedures import load_scenario  # noqa: E402
from hamr.procedures.acts import Context, SageActs  # noqa: E402
from hamr.procedures.words import load_words  # noqa: E402
from hamr.protocols import GenerationRequest, SamplingConfig  # noqa: E402
from hamr.rollout.episodes import EpisodeRunner  # noqa: E402
from hamr.types import (  # noqa: E402
    Component,
    EpisodeResult,
    Failure,
    RewardRecord,
    Rollout,
    RolloutGroup,
    SampleKey,
    Scored,
    ServiceSample,
    derive_seed,
)

SCENARIO = "telecom_package"
SIZE = 8
"""Dialogues in a group."""
MAX_TURNS = 10
RATE = 0.2
"""Share of planted faulty customers."""
State = tuple[Any, ...]


class TablePolicy:
    """Engine and rewarder. The response to a decision point is an act drawn from the table, in one of its wordings."""

    def __init__(self, skill: float, seed: int) -> None:
        self.scenario, self.skill, self.seed = load_scenario(SCENARIO), skill, seed
        words = load_words(self.scenario, "en")
        self.acts = SageActs(scenario=self.scenario, words=words)
        self.names = self.acts.names("train")
        self.table: dict[State, np.ndarray] = {}
        self.points: dict[int, ServiceSample] = {}
        self.taken: dict[SampleKey, tuple[State, int]] = {}
        reader = WordingReader(self.scenario, words)

        @lru_cache(maxsize=100_000)
        def read(message: str, system: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
            [heard] = reader.read([message], dict(system))
            return {name: value for meanings in heard.sentences for name, value in meanings[0].items()}

        self.read = read

    def encode(self, point: Any, tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        self.points[len(self.points)] = point
        return (len(self.points) - 1,)

    def state(self, point: ServiceSample) -> State:
        """Return the facts in the customer's messages, and the branches of the ticket."""
        context = Context.of(point)
        shown: dict[str, Any] = {}
        for turn in point.history:
            if turn.role == "customer":
                shown.update(self.read(turn.content, tuple(context.values.items())))
        branches = tuple(v if isinstance(v, bool | str) else bool(v) for v in point.meta["system"].values())
        state = (tuple(sorted(shown.items())), branches)
        if state not in self.table:
            right = act_of_walk(self.scenario.walk(shown, context.values))
            logits = np.zeros(len(self.names))
            skew = Random(f"{self.seed}/{state}").gauss(0.0, 1.0)
            if right in self.names:  # no question is needed for what every faultless customer says
                logits[self.names.index(right)] = (
                    math.log(self.skill / (1 - self.skill)) + math.log(len(self.names) - 1) + skew
                )
            self.table[state] = logits
        return state

    def chances(self, state: State) -> np.ndarray:
        exp = np.exp(self.table[state] - self.table[state].max())
        return exp / exp.sum()

    async def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]:
        for request in requests:
            point, key, rng = self.points[request.prompt_ids[0]], request.keys[0], Random(request.seeds[0])
            state = self.state(point)
            act = rng.choices(range(len(self.names)), self.chances(state).tolist())[0]
            self.taken[key] = (state, act)
            context = self.acts.complete(Context.of(point), rng)
            text = render_action(rng.choice(self.acts.actions(self.names[act], context, rng)))
            yield Rollout(
                key=key, prompt_ids=request.prompt_ids, token_ids=(act,), logprobs=(0.0,), text=text,
                finish_reason="stop", versions=(),
            )  # fmt: skip

    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        value = Scored(value=float(self.names[self.taken[rollout.key][1]] == sample.meta["act"]))
        component = Component(name="act", outcome=value, weight=1.0)
        return RewardRecord(key=rollout.key, total=value, components=(component,), action=None, band="none")

    def forget(self) -> None:
        """Drop the decision points of the dialogues so far."""
        self.points.clear()
        self.taken.clear()


# --- customers ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlantedCustomer(Customer):
    """A customer with one fault."""

    def messages(self) -> Any:
        turns, rng = list(super().messages()), Random(f"{self.seed}/fault")
        plan = self.plan
        case = CustomerCase(fields=plan.fields, system=plan.system, intent=plan.intent, language=plan.language)
        clean = Dialogue(case=case, messages=tuple(text for text, _, _ in turns), action=self.action)
        for kind in rng.sample(CUSTOMER_FAULTS, len(CUSTOMER_FAULTS)):
            put = plant_fault(kind, self.scenario, self.words, self.sample.meta["split"], clean, rng)
            if put is not None:
                return iter([(text, *turn[1:]) for text, turn in zip(put.messages, turns, strict=False)])
        return iter(turns)


@dataclass(frozen=True, kw_only=True)
class PlantedEnvironment(SageEnvironment):
    """`env=sage` with a share of faulty customers, drawn for each dialogue. Unmasked, no audit takes place."""

    rate: float = 0.0
    masked: bool = True

    def customer(self, episode: Any) -> Customer:
        customer = super().customer(episode)
        seed = derive_seed(episode.seed, "fault", episode.key.sample)
        if Random(seed).random() >= self.rate:
            return customer
        return PlantedCustomer(**{f.name: getattr(customer, f.name) for f in fields(customer)} | {"seed": seed})

    def audit(self, customer: Customer, said: Sequence[str], outcome: Any) -> None:
        if self.masked:
            super().audit(customer, said, outcome)


def runner(policy: TablePolicy, **planted: Any) -> EpisodeRunner:
    environment = PlantedEnvironment(
        config=EnvConfig(type="sage"),
        scenarios={SCENARIO: policy.scenario},
        max_turns=MAX_TURNS,
        format_of=lambda sample: "plain",
        **planted,
    )
    return EpisodeRunner(
        run=environment, engine=policy, rewarder=policy, encode=policy.encode, context=10**9, max_turns=MAX_TURNS,
        deadline_s=600.0,
    )  # fmt: skip


def request(step: int, sample: ServiceSample, indices: Sequence[int], seed: int) -> GenerationRequest:
    return GenerationRequest(
        prompt_ids=(),
        keys=tuple(SampleKey(run="benchmark", step=step, prompt=sample.id, sample=i) for i in indices),
        seeds=tuple(derive_seed(seed, step, sample.id, i) for i in indices),
        sampling=SamplingConfig(max_new_tokens=1),
    )


@cache
def customers(seed: int, train: int = 400, test: int = 200) -> Any:
    return generate([load_scenario(SCENARIO)], {"train": train, "validation": 0, "test": test}, seed=seed)


# --- paired customers --------------------------------------------------------------------------


def mix_customers(groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """Return the same dialogues in groups of SIZE different customers."""
    dialogues: dict[tuple[str, int], list[tuple[Rollout, RewardRecord]]] = {}
    for group in groups:
        for rollout, record in zip(group.rollouts, group.records, strict=True):
            dialogues.setdefault((record.key.prompt, record.key.sample), []).append((rollout, record))
    made = []
    for i in range(SIZE):
        mixed = list(dialogues.values())[i::SIZE]
        turns = [(r, replace(rec, key=replace(rec.key, sample=n))) for n, own in enumerate(mixed) for r, rec in own]
        rollouts, records = zip(*turns, strict=True)
        made.append(RolloutGroup(sample=groups[0].sample, rollouts=rollouts, records=records))
    return made


async def hold_batch(policy: TablePolicy, samples: Sequence[ServiceSample], step: int, each: int) -> list[RolloutGroup]:
    """Hold SIZE x SIZE dialogues, `each` of them with one customer."""
    drawn = Random(f"customers/{step}").sample(samples, SIZE * SIZE // each)
    return await runner(policy).hold(drawn, [request(step, s, range(each), 1) for s in drawn])


def advantages(group: RolloutGroup, credit: Any, normalize_std: bool = False) -> list[float]:
    normalise = partial(group_advantages, normalize_std=normalize_std)
    return turn_advantages(episode_rewards(group.records, group.rewards), credit, normalise)


def gradient(policy: TablePolicy, group: RolloutGroup, weights: Sequence[float]) -> dict[State, np.ndarray]:
    """Return the policy gradient of a group by state: the sum of A * grad log p, by the dialogues of a group."""
    found: dict[State, np.ndarray] = {}
    for rollout, weight in zip(group.rollouts, weights, strict=True):
        if weight:
            state, act = policy.taken[rollout.key]
            own = -policy.chances(state)
            own[act] += 1.0
            found[state] = found.get(state, 0.0) + weight / SIZE * own
    return found


CREDITS = ("outcome", "turn_normalised")


async def measure_pairing(skill: float, batches: int) -> dict[str, Any]:
    """Return, by credit, the variances with paired customers relative to the two other groupings."""
    policy, samples = TablePolicy(skill, seed=0), customers(0).train
    squares: dict[tuple[str, str], list[float]] = {}
    gradients: dict[tuple[str, str], list[dict[State, np.ndarray]]] = {}
    for step in range(batches):
        policy.forget()
        paired = await hold_batch(policy, samples, step, SIZE)
        crossed = mix_customers(paired)
        distinct = mix_customers(await hold_batch(policy, samples, batches + step, 1))
        for name, groups in (("paired", paired), ("crossed", crossed), ("distinct", distinct)):
            for credit in CREDITS:
                weights = [advantages(group, credit) for group in groups]
                squares.setdefault((name, credit), []).append(float(np.mean(np.square(np.concatenate(weights)))))
                total: dict[State, np.ndarray] = {}
                for group, own in zip(groups, weights, strict=True):
                    for state, values in gradient(policy, group, own).items():
                        total[state] = total.get(state, 0.0) + values / len(groups)
                gradients.setdefault((name, credit), []).append(total)
    noise = {key: spread(policy, rows) for key, rows in gradients.items()}
    return {
        credit: {
            f"{figure} against {other}": ratio(np.asarray(of["paired", credit]), np.asarray(of[other, credit]))
            for figure, of in (("advantage variance", squares), ("gradient variance", noise))
            for other in ("crossed", "distinct")
        }
        for credit in CREDITS
    }


def spread(policy: TablePolicy, gradients: Sequence[dict[State, np.ndarray]]) -> np.ndarray:
    """Return the squared distance of each gradient from their mean."""
    index, width = {state: i for i, state in enumerate(policy.table)}, len(policy.names)
    rows = np.zeros((len(gradients), len(index) * width))
    for row, one in zip(rows, gradients, strict=True):
        for state, values in one.items():
            row[index[state] * width : (index[state] + 1) * width] = values
    return np.square(rows - rows.mean(axis=0)).sum(axis=1)


def ends(group: RolloutGroup) -> list[EpisodeResult]:
    return [r.episode for r in group.records if r.episode is not None]


def ratio(paired: np.ndarray, unpaired: np.ndarray, resamples: int = 2000) -> dict[str, float]:
    """Return both means, paired / unpaired, and the 95 % bootstrap interval of the ratio over groups."""
    rng = np.random.default_rng(0)
    draws = [
        values[rng.integers(len(values), size=(resamples, len(values)))].mean(axis=1) for values in (paired, unpaired)
    ]
    low, high = np.quantile(draws[0] / draws[1], (0.025, 0.975))
    return {
        "paired": float(f"{paired.mean():.4g}"),
        "unpaired": float(f"{unpaired.mean():.4g}"),
        "ratio": round(float(paired.mean() / unpaired.mean()), 3),
        "low": round(float(low), 3),
        "high": round(float(high), 3),
    }


# --- faulty customers --------------------------------------------------------------------------

ARMS: Mapping[str, Mapping[str, Any]] = {
    "without faults": {},
    "masked": {"rate": RATE},
    "unmasked": {"rate": RATE, "masked": False},
}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Points of 100 with faultless held-out customers, and the share of dialogues that were masked in training."""

    logic: float
    completion: float
    masked: float


async def train(
    seed: int, planted: Mapping[str, Any], *, steps: int, prompts: int, rate: float, skill: float
) -> Trained:
    """Train the table by policy gradient with hamr's default credit, and evaluate it."""
    policy, data = TablePolicy(skill, seed), customers(seed)
    dialogues, rng = runner(policy, **planted), Random(seed)
    lost = total = 0
    for step in range(steps):
        policy.forget()
        batch = rng.sample(data.train, prompts)
        groups = await dialogues.hold(batch, [request(step, s, range(SIZE), seed) for s in batch])
        updates = [gradient(policy, g, advantages(g, "turn_normalised", normalize_std=True)) for g in groups]
        for update in updates:
            for state, values in update.items():
                policy.table[state] = policy.table[state] + rate * values
        lost += sum(r.episode is not None and isinstance(r.total, Failure) for g in groups for r in g.records)
        total += prompts * SIZE
    logic, completion = await evaluate(policy, data.test)
    return Trained(logic=logic, completion=completion, masked=lost / total)


async def evaluate(policy: TablePolicy, samples: Sequence[ServiceSample]) -> tuple[float, float]:
    """Return the share of right turns and of completed cases with faultless customers, in points of 100."""
    policy.forget()
    groups = await runner(policy).hold(samples, [request(0, s, [0], 77) for s in samples])
    turns = [r.total.value for g in groups for r in g.records if isinstance(r.total, Scored)]
    return 100 * float(np.mean(turns)), 100 * float(np.mean([e.components[0].value for g in groups for e in ends(g)]))


async def measure_faults(seeds: Sequence[int], **how: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"start": {}}
    trained: dict[str, list[Trained]] = {}
    start = [await evaluate(TablePolicy(how["skill"], seed), customers(seed).test) for seed in seeds]
    found["start"] = {"logic": interval([s[0] for s in start]), "completion": interval([s[1] for s in start])}
    for name, planted in ARMS.items():
        trained[name] = [await train(seed, planted, **how) for seed in seeds]
        found[name] = {
            "masked_frac": round(float(np.mean([t.masked for t in trained[name]])), 3),
            **{figure: interval([getattr(t, figure) for t in trained[name]]) for figure in ("logic", "completion")},
        }
        print(name, json.dumps(found[name]), flush=True)
    for name in ("masked", "unmasked"):
        pairs = list(zip(trained["without faults"], trained[name], strict=True))
        found[name]["cost"] = {
            figure: interval([getattr(a, figure) - getattr(b, figure) for a, b in pairs])
            for figure in ("logic", "completion")
        }
    return found


# --- speed -------------------------------------------------------------------------------------


class ScriptedPolicy:
    """Engine that answers each decision point with its first reference."""

    def __init__(self) -> None:
        self.points: list[ServiceSample] = []

    def encode(self, point: Any, tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        self.points.append(point)
        return (len(self.points) - 1,)

    async def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]:
        for request in requests:
            action = self.points[request.prompt_ids[0]].references[0].action
            yield Rollout(
                key=request.keys[0], prompt_ids=request.prompt_ids, token_ids=(0,), logprobs=(0.0,),
                text=render_action(action), finish_reason="stop", versions=(),
            )  # fmt: skip


async def measure_speed(steps: int, prompts: int) -> dict[str, float]:
    """Return dialogues and turns per second of wall and of CPU time, and the share of completed cases."""
    policy, samples = ScriptedPolicy(), customers(0).train
    rewards = RewardsConfig(consistency=ConsistencyConfig(mode="exact"))
    rewarder = RewardRouter(rewards, {}, count_tokens=lambda text: len(text.split()), deadline_s=60.0)
    environment = SageEnvironment(
        config=EnvConfig(type="sage"), scenarios={SCENARIO: load_scenario(SCENARIO)}, max_turns=MAX_TURNS,
        format_of=lambda sample: "plain",
    )  # fmt: skip
    dialogues = EpisodeRunner(
        run=environment, engine=policy, rewarder=rewarder, encode=policy.encode, context=10**9, max_turns=MAX_TURNS,
        deadline_s=600.0,
    )  # fmt: skip
    await dialogues.hold(samples[:prompts], [request(0, s, range(SIZE), 0) for s in samples[:prompts]])
    wall, cpu, groups = time.perf_counter(), time.process_time(), []
    for step in range(1, steps + 1):
        policy.points.clear()
        batch = Random(step).sample(samples, prompts)
        groups += await dialogues.hold(batch, [request(step, s, range(SIZE), 0) for s in batch])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    held, turns = steps * prompts * SIZE, sum(len(g.records) for g in groups)
    return {
        "dialogues": held, "dialogues_per_s": round(held / wall, 1), "dialogues_per_cpu_s": round(held / cpu, 1),
        "turns_per_cpu_s": round(turns / cpu, 1),
        "completed": float(np.mean([e.components[0].value for g in groups for e in ends(g)])),
    }  # fmt: skip


def interval(values: Sequence[float]) -> dict[str, float]:
    found = mean_interval(values, resamples=2000, seed=0)
    return {name: round(float(getattr(found, name)), 2) for name in ("mean", "low", "high")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pairing", "faults", "speed"))
    parser.add_argument("--batches", type=int, default=150)
    parser.add_argument("--skills", type=float, nargs="+", default=[0.5, 0.7, 0.9])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, nargs="+", default=[20, 60])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1.0, help="learning rate")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    result: dict[str, Any] = {"scenario": SCENARIO, "dialogues_per_group": SIZE, "python": platform.python_version()}
    if given.what == "pairing":
        found = {str(skill): asyncio.run(measure_pairing(skill, given.batches)) for skill in given.skills}
        result |= {"batches": given.batches, "skills": found}
    elif given.what == "speed":
        result |= {"machine": machine(), **asyncio.run(measure_speed(steps=20, prompts=given.prompts))}
    else:
        how = {"prompts": given.prompts, "rate": given.rate, "skill": 0.5}
        result |= {"seeds": given.seeds, "planted": RATE, **how}
        result |= {"steps": {str(n): asyncio.run(measure_faults(given.seeds, steps=n, **how)) for n in given.steps}}
    text = results_text(result)
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
