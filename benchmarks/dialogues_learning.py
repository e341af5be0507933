"""Does RL on whole dialogues learn? Exact act in dialogues with held-out customers, before and after RL.

    python benchmarks/dialogues_learning.py --seeds 0 1                        # every arm
    python benchmarks/dialogues_learning.py experiment.steps=20 --arms rl --seeds 0

The recipe is `experiment=dialogues` without the paths in HELD_OUT: one warm-up for each seed, and every arm starts
from it. Controller, customers, credit, rewards and losses are hamr's. They run in one process on one thread, with a
batched torch sampler as the engine and plain AdamW, so that an arm takes minutes and starts no cluster.

Arms: `curriculum`, as it ships; the others draw customers uniformly (`env.curriculum=false`): `rl`, with the default
credit; `outcome`, the completion of the case as the only reward; `dense`, the plain sum of the later rewards
(`credit=turn`); `unpaired`, 8 different customers in a group; `single`, RL on single decisions, with about as
many sampled tokens a step. All are evaluated in dialogues, with one sampled dialogue for each
customer. Figures, by the customer's own case and in points of 100: the share of turns with the expected act (`act`), of
turns with the expected act and facts (`exact`), of dialogues whose turns are all exact (`whole`) and of completed cases
(`completed`). Intervals are 95 % crossed bootstraps over seeds and customers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from benchmarks.learning import crossed  # noqa: E402
from benchmarks.results_json import write_results  # noqa: E402
from hamr.algorithms.aggregation import divisors  # noqa: E402
from hamr.algorithms.batch import BatchBuilder  # noqa: E402
from hamr.algorithms.losses import Correction, policy_loss, sft_loss  # noqa: E402
from hamr.algorithms.objectives import configured_objective  # noqa: E402
from hamr.algorithms.packing import pack  # noqa: E402
from hamr.algorithms.schedule import learning_rate  # noqa: E402
from hamr.apps.shared.dialogue_checks import customer_scenarios  # noqa: E402
from hamr.apps.shared.machine import machine, versions  # noqa: E402
from hamr.apps.shared.preparation import Codec, Prepared, prepare  # noqa: E402
from hamr.apps.train.episodes import customer_seed, episode_runner, evaluate_customers  # noqa: E402
from hamr.bench.sage.episodes import SageEnvironment  # noqa: E402
from hamr.cascade.router import RewardRouter  # noqa: E402
from hamr.config.load import load_config  # noqa: E402
from hamr.config.schema import SageDataConfig, TrainerConfig  # noqa: E402
from hamr.controller import Controller  # noqa: E402
from hamr.data.actions import parse_action  # noqa: E402
from hamr.data.curriculum import Curriculum  # noqa: E402
from hamr.data.sage_samples import generate_samples  # noqa: E402
from hamr.data.samples import write_samples  # noqa: E402
from hamr.data.sft import sft_batch  # noqa: E402
from hamr.data.stream import PromptStream  # noqa: E402
from hamr.protocols import GenerationRequest, SamplingConfig  # noqa: E402
from hamr.trainer.policy_batch import build_batch  # noqa: E402
from hamr.trainer.policy_model import load_policy  # noqa: E402
from hamr.types import (  # noqa: E402
    Episode,
    EpisodeLimit,
    MalformedResponse,
    RewardRecord,
    Rollout,
    RolloutGroup,
    SampleKey,
    ServiceSample,
    ToolCall,
    TrainBatch,
    VersionSpan,
    derive_seed,
)

# --- engine ------------------------------------------------------------------------------------


@dataclass
class TorchEngine:
    """Samples the requests of all dialogues that wait together, as one batch."""

    model: Any
    codec: Codec
    version: int = 0
    tokens: int = 0
    _flushing: asyncio.Task[None] | None = None
    _waiting: list[tuple[GenerationRequest, int, asyncio.Future[Rollout]]] = field(default_factory=list)

    async def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]:
        loop = asyncio.get_running_loop()
        first = not self._waiting
        futures = []
        for request in requests:
            for i in range(len(request.keys)):
                futures.append(loop.create_future())
                self._waiting.append((request, i, futures[-1]))
        if first:
            self._flushing = loop.create_task(self._flush())
        for future in futures:
            yield await future

    async def _flush(self) -> None:
        for _ in range(40):  # the other dialogues of this round ask in the meantime
            await asyncio.sleep(0)
        batch, self._waiting = self._waiting, []
        batch.sort(key=lambda item: len(item[0].prompt_ids))
        for start in range(0, len(batch), 256):
            part = batch[start : start + 256]
            sampling = part[0][0].sampling
            drawn = sample_batch(
                self.model,
                [r.prompt_ids for r, _, _ in part],
                [r.seeds[i] for r, i, _ in part],
                eos=self.codec.tokenizer.eos_id,
                longest=sampling.max_new_tokens,
                temperature=sampling.temperature,
            )
            for (request, i, future), (ids, logprobs) in zip(part, drawn, strict=True):
                ended = ids[-1] == self.codec.tokenizer.eos_id
                self.tokens += len(ids)
                future.set_result(
                    Rollout(
                        key=request.keys[i],
                        prompt_ids=request.prompt_ids,
                        token_ids=ids,
                        logprobs=logprobs,
                        text=self.codec.tokenizer.decode(list(ids[: len(ids) - ended])),
                        finish_reason="stop" if ended else "length",
                        versions=(VersionSpan(version=self.version, start=0, end=len(ids)),),
                        seed=request.seeds[i],
                    )
                )


@torch.inference_mode()
def sample_batch(
    model: Any, prompts: Sequence[Sequence[int]], seeds: Sequence[int], *, eos: int, longest: int, temperature: float
) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Return (token ids, log-probabilities) of one response per prompt, with the random numbers of its own seed."""
    known = [tuple(prompt) for prompt in prompts]
    different = list(dict.fromkeys(known))  # a prompt is computed once
    width = max(map(len, known))
    ids = torch.tensor([[eos] * (width - len(p)) + list(p) for p in different])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * (len(p) + longest) for p in known])
    position = (mask.cumsum(1) - 1).clamp(min=0)
    firsts, rows_of = [known.index(p) for p in different], torch.tensor([different.index(p) for p in known])
    uniform = torch.tensor(np.stack([np.random.default_rng(seed).random(longest) for seed in seeds]))
    past, out, logs = None, [], []
    running = torch.ones(len(prompts), dtype=torch.bool)
    for step in range(longest):
        seen = width + step
        found = model(
            input_ids=ids,
            attention_mask=mask[:, :seen] if past is not None else mask[firsts, :seen],
            position_ids=position[firsts, :seen] if past is None else position[:, seen - 1 : seen],
            past_key_values=past,
            use_cache=True,
            logits_to_keep=1,
        )
        logits = found.logits[:, -1]
        if past is None:
            found.past_key_values.batch_select_indices(rows_of)
            logits = logits[rows_of]
        past = found.past_key_values
        logp = (logits.double() / max(temperature, 1e-6)).log_softmax(-1)
        cumulative = logp.exp().cumsum(-1)
        token = torch.searchsorted(cumulative, (uniform[:, step : step + 1] * cumulative[:, -1:])).squeeze(1)
        token = token.clamp(max=logp.shape[1] - 1)
        out.append(torch.where(running, token, -1))
        logs.append(logp.gather(1, token[:, None]).squeeze(1))
        running = running & (token != eos)
        if not running.any():
            break
        ids = token[:, None]
    tokens, values = torch.stack(out, 1).tolist(), torch.stack(logs, 1).tolist()
    rows = []
    for own, logged in zip(tokens, values, strict=True):
        count = sum(t >= 0 for t in own)
        rows.append((tuple(own[:count]), tuple(logged[:count])))
    return rows


# --- trainer -----------------------------------------------------------------------------------


class TorchTrainer:
    """Optimiser steps with hamr's model, packing and losses, and AdamW."""

    def __init__(self, path: Path, config: Any) -> None:
        self.config = config
        self.model = load_policy(path, dtype=torch.float32, layout=config.trainer.attention)
        self.begin(1)
        self.computed = self.alone = 0

    def begin(self, total: int, trainer: TrainerConfig | None = None) -> None:
        """Start a stage of `total` steps with a fresh optimiser."""
        c = self.trainer = trainer or self.config.trainer
        self.step, self.total = 0, total
        named = list(self.model.named_parameters())
        embedded = [p for n, p in named if n.endswith("embed_tokens.weight")]
        matrices = [p for n, p in named if p.dim() > 1 and not n.endswith("embed_tokens.weight")]
        vectors = [p for _, p in named if p.dim() <= 1]
        groups = [(matrices, c.weight_decay, 1.0), (vectors, 0.0, 1.0), (embedded, c.weight_decay, c.embedding_rate)]
        self.optimizer = torch.optim.AdamW(
            [{"params": p, "weight_decay": w, "scale": s} for p, w, s in groups], lr=c.learning_rate, betas=c.betas
        )

    async def train(self, batch: TrainBatch) -> dict[str, float]:
        a, c = self.config.algorithm, self.trainer
        rate = learning_rate(
            self.step, peak=c.learning_rate, total_steps=self.total, schedule=c.schedule, warmup_frac=c.warmup_frac
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        [microbatches] = pack(batch.groups, budget=c.tokens_per_microbatch, layout=self.model.layout)
        sums: dict[str, float] = defaultdict(float)
        for microbatch in microbatches:
            b = build_batch(batch.groups, microbatch, self.model.layout)
            self.computed += b.input_ids_BT.numel()
            logprobs, entropies = self.model(b)
            normaliser = divisors(batch, b.mask_N, b.owner_N)
            if batch.loss == "sft":
                terms = sft_loss(logprobs, b.mask_N, normaliser=normaliser)
            else:
                terms = policy_loss(
                    logprobs,
                    None,
                    b.advantages_N,
                    b.mask_N,
                    normaliser=normaliser,
                    behaviour_logprobs=b.behaviour_N,
                    correction=Correction(**a.importance.model_dump()),
                    entropies=entropies,
                    entropy_coef=a.entropy_coef,
                    objective=configured_objective(a),
                    sequences=b.owner_N,
                )
            terms.loss.backward()
            for name, value in terms.sums.items():
                sums[name] += float(value)
        self.alone += sum(len(g.prompt_ids) + len(s.token_ids) for g in batch.groups for s in g.sequences)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), c.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        counted = max(sums.pop("tokens"), 1.0)
        return {"grad_norm": float(norm), **{name: value / counted for name, value in sums.items()}}

    async def save(self, folder: Path) -> None: ...

    async def load(self, folder: Path) -> None: ...


@dataclass
class Copy:
    """Copies the trainer's weights to the engine."""

    trainer: TorchTrainer
    engine: TorchEngine

    async def sync(self, version: int) -> dict[str, float]:
        self.engine.model.load_state_dict(self.trainer.model.causal_lm.state_dict())
        self.engine.version = version
        return {}


class Quiet:
    """Recorder that keeps nothing but a step's records."""

    def __init__(self) -> None:
        self.last: list[RewardRecord] = []

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    def records(self, step: int, records: Sequence[RewardRecord]) -> None:
        self.last = list(records)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None: ...


# --- data --------------------------------------------------------------------------------------

TRAINED, UNTRAINED = "telecom_package", "property_service"
HELD_OUT = ("1-2-4-5-7 TransHuman", "1-2-3-6-4-5 ChangeOrder", "1-2-5-7 ChangeOrder")
"""Paths, with their action, that neither the warm-up nor RL sees. Each of their turns is on another path."""
SIZES = {"held_out": 150, "seen": 63, "untrained": 60}
"""Customers of an evaluation: of the paths held out, of the trained ones, and of a procedure that was never trained.
Their wordings and cases are in no training data."""


def route(sample: ServiceSample) -> str:
    case = sample.privileged["case"]
    return "-".join(stage.removeprefix("stage") for stage in case["path"]) + f" {case['action']}"


def write_data(folder: Path, settings: SageDataConfig) -> None:
    """Write the samples of the trained paths and the customers of the evaluation."""
    if (folder / "test.jsonl").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    known = generate_samples(settings.model_copy(update={"scenario": TRAINED, "validation": 40, "test": 2000}))
    sizes = {"scenario": UNTRAINED, "noise": 0.0, "train": 24, "validation": 24, "test": 400}
    other = generate_samples(settings.model_copy(update=sizes))
    for name in ("train", "validation", "for_sft"):
        write_samples(folder / f"{name}.jsonl", [s for s in getattr(known, name) if route(s) not in HELD_OUT])
    test = [
        *pick([s for s in known.test if route(s) in HELD_OUT], SIZES["held_out"]),
        *pick([s for s in known.test if route(s) not in HELD_OUT], SIZES["seen"]),
        *pick(other.test, SIZES["untrained"]),
    ]
    write_samples(folder / "test.jsonl", test)


def pick(samples: Sequence[ServiceSample], count: int) -> list[ServiceSample]:
    """Return `count` samples, the paths in turn."""
    by_route: dict[str, list[ServiceSample]] = defaultdict(list)
    for sample in samples:
        by_route[route(sample)].append(sample)
    chosen: list[ServiceSample] = []
    while len(chosen) < count:
        for own in (by_route[name] for name in sorted(by_route)):
            if own and len(chosen) < count:
                chosen.append(own.pop(0))
    return chosen


def part_of(sample: ServiceSample) -> str:
    if sample.meta["scenario"] == UNTRAINED:
        return "untrained"
    return "held_out" if route(sample) in HELD_OUT else "seen"


# --- arms --------------------------------------------------------------------------------------


class UnpairedController(Controller):
    """Fills every group with dialogues of different customers."""

    customers: PromptStream

    async def score_groups(
        self, samples: Sequence[ServiceSample], requests: Sequence[GenerationRequest]
    ) -> list[RolloutGroup]:
        made = []
        drawn = [(r, i, s) for r in requests for i, s in enumerate(self.customers.take(len(r.keys)))]
        single = [replace(r, keys=(replace(r.keys[i], prompt=s.id),), seeds=(r.seeds[i],)) for r, i, s in drawn]
        assert self.dialogues is not None
        held = await self.dialogues.hold([s for _, _, s in drawn], single)
        for sample, request in zip(samples, requests, strict=True):
            own, held = held[: len(request.keys)], held[len(request.keys) :]
            made.append(
                RolloutGroup(
                    sample=sample,
                    rollouts=tuple(r for g in own for r in g.rollouts),
                    records=tuple(r for g in own for r in g.records),
                    points=tuple(p for g in own for p in g.points),
                )
            )
        return made


UNIFORM = "env.curriculum=false"
ARMS: Mapping[str, tuple[str, ...]] = {
    "curriculum": (),
    "rl": (UNIFORM,),
    "outcome": (UNIFORM, "algorithm.credit=outcome"),
    "dense": (UNIFORM, "algorithm.credit=turn"),
    "unpaired": (UNIFORM,),
    "single": (UNIFORM, "env=decision", "experiment.prompts_per_step=17"),
}


@dataclass(kw_only=True)
class Lab:
    """One seed: its data, its warm-up and the arms that start from it."""

    seed: int
    out: Path
    overrides: Sequence[str]

    def prepared(self, *more: str) -> Prepared:
        base = load_config(["experiment=dialogues", f"experiment.seed={self.seed}", *self.overrides])
        sage = base.data.sage
        folder = self.out / f"data_{sage.seed}_{sage.train}_{sage.noise}"
        write_data(folder, sage)
        files = {"train": "train", "validation": "validation", "test": "test", "sft": "for_sft"}
        data = ["data.type=jsonl", *(f"data.{key}={folder / name}.jsonl" for key, name in files.items())]
        return prepare(
            load_config(["experiment=dialogues", f"experiment.seed={self.seed}", *self.overrides, *data, *more])
        )

    async def warm_up(self) -> Path:
        """Return the folder of the warmed-up policy, trained now if it is not there."""
        folder = self.out / f"warm_up_{self.seed}"
        if (folder / "items.json").is_file():
            return folder
        prepared = self.prepared()
        sft, started, begun_cpu = prepared.config.experiment.sft, time.perf_counter(), time.process_time()
        trainer = TorchTrainer(prepared.model_path, prepared.config)
        own = {name: getattr(sft, name) for name in ("learning_rate", "schedule", "warmup_frac")}
        trainer.begin(sft.steps, prepared.config.trainer.model_copy(update=own))
        stream, rng = PromptStream(prepared.splits.for_sft, self.seed), random.Random(self.seed)
        for step in range(1, sft.steps + 1):
            batch = sft_batch(
                stream.take(sft.samples_per_step), prepared.codec.prompt, prepared.codec.answer, rng,
                references=sft.references_per_sample, turns=sft.turns, aggregation=sft.loss_aggregation,
            )  # fmt: skip
            found = await trainer.train(batch)
            if step % 50 == 0:
                print(f"sft {step} {time.perf_counter() - started:.0f}s {short(found)}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        save_policy(trainer, prepared.model_path, folder)
        items = await self.evaluate(prepared, trainer, "sft")
        (folder / "items.json").write_text(json.dumps({"items": items, **spent(started, begun_cpu)}))
        print("sft", summary(items), flush=True)
        return folder

    async def evaluate(self, prepared: Prepared, trainer: TorchTrainer, stage: str) -> dict[str, dict[str, Any]]:
        """Return, for each held-out customer, the share of exact turns and whether the case was completed."""
        config = prepared.config
        engine = engine_of(prepared, trainer)
        runner = episode_runner(self.prepared(), engine, router(prepared), {})
        sampling = SamplingConfig(
            temperature=config.experiment.evaluation.temperature, max_new_tokens=config.rollout.max_new_tokens
        )
        by_id = {sample.id: sample for sample in prepared.splits.test}
        _, records = await evaluate_customers(
            runner, prepared.splits.test, run="run", stage=stage, step=0, sampling=sampling, truth=prepared.truth
        )
        turns: dict[str, list[RewardRecord]] = defaultdict(list)
        for record in records:
            turns[record.key.prompt].append(record)
        return {name: item_of(by_id[name], own) for name, own in turns.items()}

    async def arm(self, name: str) -> dict[str, Any]:
        """Return the items and the course of an arm, run now if it has no result yet."""
        file = self.out / f"{name}_{self.seed}.json"
        if file.is_file():
            found: dict[str, Any] = json.loads(file.read_text())
            return found
        warm = await self.warm_up()
        prepared = self.prepared(f"model.path={warm}", *ARMS[name])
        config, started, begun_cpu = prepared.config, time.perf_counter(), time.process_time()
        trainer = TorchTrainer(warm, config)
        trainer.begin(config.experiment.steps)
        engine, quiet = engine_of(prepared, trainer), Quiet()
        rewarder = router(prepared)
        runner = episode_runner(prepared, engine, rewarder, {}) if config.holds_dialogues else None
        kind = UnpairedController if name == "unpaired" else Controller
        controller = kind(
            run="run", experiment=config.experiment, rollout=config.rollout,
            encode=prepared.codec.prompt, engine=engine, rewarder=rewarder, trainer=trainer,
            weights=Copy(trainer, engine), recorder=quiet, dialogues=runner,
            batches=BatchBuilder(
                algorithm=config.algorithm, max_new_tokens=config.rollout.max_new_tokens, seed=config.experiment.seed,
                answer=prepared.codec.answer if config.algorithm.all_wrong.reference else None,
            ),
        )  # fmt: skip
        if isinstance(controller, UnpairedController):
            controller.customers = PromptStream(prepared.splits.train, self.seed + 2)
        order = Curriculum if config.holds_dialogues and config.env.curriculum else PromptStream
        stream, course = order(prepared.splits.train, self.seed + 1), {}
        for step in range(1, config.experiment.steps + 1):
            begun = time.perf_counter()
            found = await controller.step(step, stream)
            if step % 10 == 0:
                print(
                    f"{name} {step} {time.perf_counter() - begun:.1f}s {short(step_figures(found, quiet.last))}",
                    flush=True,
                )
            every = config.experiment.eval_every
            if step == config.experiment.steps or (every and step % every == 0):
                course[step] = await self.evaluate(prepared, trainer, f"rl-{step}")
                print(f"{name} {step} {time.perf_counter() - started:.0f}s", summary(course[step]), flush=True)
        result = {
            "items": course[config.experiment.steps],
            "course": {step: items for step, items in course.items() if step < config.experiment.steps},
            **spent(started, begun_cpu),
            "sampled_tokens": engine.tokens,
            "computed_once_frac": 1 - trainer.computed / trainer.alone,
        }
        save_policy(trainer, prepared.model_path, self.out / f"{name}_{self.seed}")
        (self.out / f"{name}_{self.seed}_last.json").write_text(json.dumps([shown(r) for r in quiet.last], indent=1))
        file.write_text(json.dumps(result))
        return result


def spent(since: float, cpu: float) -> dict[str, float]:
    """Return the wall and CPU seconds since then. The process has one thread."""
    return {"seconds": round(time.perf_counter() - since, 1), "cpu_s": round(time.process_time() - cpu, 1)}


def item_of(sample: ServiceSample, turns: Sequence[RewardRecord]) -> dict[str, Any]:
    exact = [c.value for r in turns for c in r.components if c.name == "exact_act"]
    end = turns[-1].episode
    assert end is not None
    completed = next((c.value for c in end.components if c.name == "completion"), 0.0)
    return {
        "part": part_of(sample),
        "route": route(sample),
        "exact": float(np.mean([v or 0.0 for v in exact])),
        "whole": float(all(exact)),
        "completed": completed,
        "turns": len(turns),
        "said": [(r.observation, r.response, c) for r, c in zip(turns, exact, strict=True)],
    }


def step_figures(found: Mapping[str, float], records: Sequence[RewardRecord]) -> dict[str, float]:
    matched = [c.value for r in records for c in r.components if c.name == "consistency"]
    ends = [r.episode for r in records if r.episode is not None]
    own = {
        "words": float(np.mean([v or 0.0 for v in matched])),
        "turns": len(records) / max(1, len(ends)),
        "completion": float(np.mean([e.components[0].value or 0.0 for e in ends if e.components] or [0.0])),
        "tokens": found["rollout/response_tokens/mean"],
        "dropped": found["rollout/groups_dropped"],
    }
    for key in ("entropy", "grad_norm", "clipped_high", "timing/step/rollout_score", "timing/step/train"):
        if key in found:
            own[key.rpartition("/")[2]] = found[key]
    return own


def shown(record: RewardRecord) -> dict[str, Any]:
    return {
        "customer": record.observation, "response": record.response,
        "sample": record.key.sample, "turn": record.key.turn,
        "prompt": record.key.prompt, "total": getattr(record.total, "value", str(record.total)),
        "episode": None if record.episode is None else {c.name: c.value for c in record.episode.components},
    }  # fmt: skip


def summary(items: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return exact turns, whole dialogues and completion by part, in points of 100."""
    found = {}
    for part in SIZES:
        own = [item for item in items.values() if item["part"] == part]
        found[part] = {k: round(100 * float(np.mean([i[k] for i in own])), 1) for k in ("exact", "whole", "completed")}
    return found


def short(values: Mapping[str, float]) -> str:
    return " ".join(f"{name}={value:.3g}" for name, value in values.items())


def engine_of(prepared: Prepared, trainer: TorchTrainer) -> TorchEngine:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        prepared.model_path, dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False
    ).eval()
    model.load_state_dict(trainer.model.causal_lm.state_dict())
    return TorchEngine(model=model, codec=prepared.codec)


def router(prepared: Prepared) -> RewardRouter:
    tokenizer = prepared.codec.tokenizer
    return RewardRouter(
        prepared.config.rewards, {}, count_tokens=lambda text: len(tokenizer.encode(text)), deadline_s=60.0
    )


def save_policy(trainer: TorchTrainer, source: Path, folder: Path) -> None:
    """Write the policy as a model folder, with the tokenizer of `source`."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in Path(source).iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copy(file, folder / file.name)
    trainer.model.causal_lm.save_pretrained(folder)


FIGURES = ("act", "exact", "whole", "completed")


async def act_share(prepared: Prepared, sample: ServiceSample, responses: Sequence[str]) -> float:
    """Return the share of turns with the expected act, whatever their facts, from a replay of the dialogue."""
    assert prepared.truth is not None, "generated samples name their acts"
    right: list[bool] = []

    async def ask(point: Any, **_: Any) -> Rollout:
        if len(right) == len(responses):
            raise EpisodeLimit("max_turns")
        text = responses[len(right)]
        action = parse_action(text, "plain")
        names = {point.meta["act"], *(r.action.name for r in point.references if isinstance(r.action, ToolCall))}
        right.append(not isinstance(action, MalformedResponse) and prepared.truth.act_of(action) in names)
        return Rollout(key=key, prompt_ids=(), token_ids=(), logprobs=(), text=text, finish_reason="stop", versions=())

    key = SampleKey(run="replay", step=0, prompt=sample.id, sample=0)
    seed = derive_seed(customer_seed(sample), "environment")
    config = prepared.config
    environment = SageEnvironment(
        config=config.env,
        scenarios=customer_scenarios(config),
        max_turns=config.rollout.max_turns,
        format_of=lambda s: "plain",
    )
    await environment(Episode(key=key, sample=sample, seed=seed), ask)
    return sum(right) / len(right)


async def collect(prepared: Prepared, folder: Path, seeds: Sequence[int], known: dict[str, Any]) -> dict[str, Any]:
    """Return the items and the costs of all finished runs, those of an earlier results file included.

    `starts` has the warm-up of arms that began with another one than the first arm of their seed.
    """
    samples = {sample.id: sample for sample in prepared.splits.test}
    items = known.get("items", {"parts": {}, "routes": {}, "values": {}})
    starts, runs = items.setdefault("starts", {}), known.get("runs", {})
    for seed in seeds:
        for arm in ("warm_up", *ARMS):
            file = folder / (f"warm_up_{seed}/items.json" if arm == "warm_up" else f"{arm}_{seed}.json")
            if not file.is_file():
                continue
            found = json.loads(file.read_text())
            of_stages = {arm: found.pop("items")}
            of_stages |= {
                f"{arm}@{step}": own for step, own in found.pop("course", {}).items() if samples.keys() <= own.keys()
            }
            for stage, own in of_stages.items():
                for name, item in own.items():
                    said = [response for _, response, _ in item["said"]]
                    item["act"] = await act_share(prepared, samples[name], said)
                items["parts"] |= {name: item["part"] for name, item in own.items()}
                items["routes"] |= {name: item["route"] for name, item in own.items()}
                rows = {figure: [round(own[name][figure], 3) for name in items["parts"]] for figure in FIGURES}
                of_seeds = items["values"].setdefault(stage, {})
                if arm == "warm_up":
                    begun = of_seeds.setdefault(str(seed), rows), rows
                    continue
                of_seeds[str(seed)] = rows
                starts.setdefault(stage, {}).pop(str(seed), None)
                if begun[0] != begun[1]:
                    starts[stage][str(seed)] = begun[1]
            runs[f"{arm}_{seed}"] = found
    return {"runs": runs, "items": items}


def compared(items: Mapping[str, Any]) -> dict[str, Any]:
    """Return the means of each arm, and of its evaluations before the end (`rl@30`), its gain over its warm-up, and by
    how much that is above the gain of `rl`."""
    values, parts = items["values"], np.array(list(items["parts"].values()))
    found: dict[str, Any] = {}

    def warm_up(of: str, seed: str) -> Any:
        return items.get("starts", {}).get(of, {}).get(seed) or values["warm_up"][seed]

    for arm in (a for a in values if a != "warm_up"):
        found[arm] = {}
        for part, figure in ((p, f) for p in SIZES for f in FIGURES):

            def table(rows: Sequence[Any], part: str = part, figure: str = figure) -> np.ndarray:
                return 100 * np.array([row[figure] for row in rows])[:, parts == part]

            def gain(of: str, seeds: Sequence[str], table: Any = table) -> np.ndarray:
                return table([values[of][seed] for seed in seeds]) - table([warm_up(of, seed) for seed in seeds])

            ends = table(list(values[arm].values()))
            starts = table([warm_up(arm, seed) for seed in values[arm]])
            own = {"start": float(starts.mean()), "end": float(ends.mean()), "gain": crossed(ends - starts)}
            own["by_seed"] = {
                seed: [float(a), float(b)] for seed, a, b in zip(values[arm], starts.mean(1), ends.mean(1), strict=True)
            }
            shared = [seed for seed in values[arm] if seed in values.get("rl", {})]
            if arm != "rl" and shared:
                own["over_rl"] = crossed(gain(arm, shared) - gain("rl", shared))
            found[arm].setdefault(part, {})[figure] = own
    return rounded(found)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(own) for name, own in value.items()}
    if isinstance(value, list):
        return [rounded(own) for own in value]
    return round(value, 2) if isinstance(value, float) else value


def markdown(found: Mapping[str, Any]) -> str:
    lines = [
        "| arm | customers | figure | after SFT | after RL | gain | against `rl` |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm, parts in found.items():
        for part, figures in parts.items():
            for figure, own in figures.items():
                gain, over = (
                    f"{c['mean']:+.1f} ({c['low']:.1f} to {c['high']:.1f})" if c else ""
                    for c in (own["gain"], own.get("over_rl"))
                )
                lines.append(f"| {arm} | {part} | {figure} | {own['start']:.1f} | {own['end']:.1f} | {gain} | {over} |")
    return "\n".join(lines)


async def run(args: argparse.Namespace) -> dict[str, Any]:
    for seed in args.seeds:
        lab = Lab(seed=seed, out=args.out, overrides=args.overrides)
        await lab.warm_up()
        for name in args.arms:
            await lab.arm(name)
    known = json.loads(args.results.read_text()) if args.results and args.results.is_file() else {}
    return await collect(lab.prepared(), args.out, args.seeds, known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), default=list(ARMS), help="none: the warm-up alone")
    parser.add_argument("--out", type=Path, default=Path("runs/dialogues_learning"), help="folder of the runs")
    parser.add_argument("--results", type=Path, help="file of the results; runs that it has already are kept")
    parser.add_argument("overrides", nargs="*", help="further key=value for every arm")
    args = parser.parse_args()
    torch.set_num_threads(1)
    body = asyncio.run(run(args))
    found = compared(body["items"])
    print(markdown(found))
    if args.results:
        about = {"machine": machine(), "versions": versions(), "overrides": args.overrides}
        write_results(args.results, {**about, "arms": found, **body})


if __name__ == "__main__":
    main()
