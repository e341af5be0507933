"""A policy that learns to fool its reranker, in a simulated world: what each defence keeps of the true reward.

    python benchmarks/hacking.py                                   # a few minutes
    python benchmarks/hacking.py --seeds 2 --coverage-runs 50      # a first look

README.md in this folder says what is simulated and how to read the tables.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from calibration import machine  # noqa: E402
from hacking_styles import STYLES, reference_of, texts  # noqa: E402
from results_json import write_results  # noqa: E402

from hamr.calibration.audit_correction import AuditCorrection, Residual, Strata, strata  # noqa: E402
from hamr.calibration.cascade import Cascade  # noqa: E402
from hamr.calibration.mean_bound import MeanBound, audits_needed, lower_bound  # noqa: E402
from hamr.cascade.audited_rewards import text_features, word_buckets  # noqa: E402
from hamr.cascade.certificate import Certificate  # noqa: E402

FEATURES = {"length": 5, "similarity": 4, "repetition": 3, "markup": 2}
PROMPTS, CANDIDATES, STEPS, BATCH, GROUP = 48, 24, 300, 24, 8
AUDIT_FRAC = 0.05
ALARM = 0.05
ONSET = 1.5
"""Exploitation has begun once the policy's share of fooling replies is this multiple of that of the candidates."""
START = Cascade(0.5, 0.98, 0.05, 0.72)


@dataclass(frozen=True)
class Setting:
    """One world: share of fooling replies, the feature that shows them (None: none does), how often it does, and
    whether they fool the judge too. `written`: replies are texts, fooling ones in the style of this name."""

    name: str
    fooling: float = 0.15
    style: str | None = "length"
    shown: float = 0.95
    judge_too: bool = False
    written: bool = False


WORLDS = (
    Setting("length shows it"),
    Setting("shown in 60 %", shown=0.6),
    Setting("no feature shows it", style=None),
    Setting("no fooling", fooling=0.0),
    Setting("judge fooled too", judge_too=True),
    *(Setting(style, style=style, written=True) for style in STYLES),
    Setting("no fooling, texts", fooling=0.0, style="flattery", written=True),
)


NO_FOOLING = WORLDS[3]


class World:
    """Candidate replies of each prompt with their true value, their scores and their visible features."""

    def __init__(self, rng: np.random.Generator, setting: Setting) -> None:
        shape = (PROMPTS, CANDIDATES)
        self.fools = rng.random(shape) < setting.fooling
        honest = 0.95 * rng.beta(2.0, 1.4, shape)
        self.true = np.where(self.fools, rng.uniform(0.2, 0.75, shape), honest)
        self.s_j = np.clip(self.true + rng.normal(0.0, 0.1, shape), 0.0, 1.0)
        s_r = np.clip(self.true + rng.normal(0.0, 0.08, shape), 0.0, 0.98)
        fooled = rng.uniform(0.86, 0.975, shape)
        self.s_r = np.where(self.fools, fooled, s_r)
        if setting.judge_too:
            self.s_j = np.where(self.fools, fooled, self.s_j)
        levels: Mapping[str, int] = FEATURES
        self.words = np.empty(shape, dtype=object)
        self.words.fill(())
        if setting.written:
            said = texts(rng, self.true, self.fools, str(setting.style))
            own = [text_features(said[at], reference_of(at[0])) for at in np.ndindex(shape)]
            self.features = {name: np.reshape([one[name] for one in own], shape) for name in own[0]}
            levels = {name: int(values.max()) + 1 for name, values in self.features.items()}
            for at in np.ndindex(shape):
                self.words[at] = word_buckets(said[at])
        else:
            self.features = {name: rng.integers(0, count, shape) for name, count in FEATURES.items()}
        if setting.style in self.features and not setting.written:
            shown = self.fools & (rng.random(shape) < setting.shown)
            self.features[setting.style] = np.where(shown, levels[setting.style] - 1, self.features[setting.style])
        # What the policy generalises over: the style itself, even if no feature shows it, and every feature.
        columns = [self.fools[..., None].astype(float)]
        columns += [np.eye(count)[self.features[name]] for name, count in levels.items()]
        self.traits = np.concatenate(columns, axis=-1)


@dataclass
class Arm:
    """One way to reward.

    `words`: the correction has the feature of the words. `failing`: share of the judge's answers that fail, excluded,
    or with `zeroed` worth 0. `truth`: the true value is the reward. `rules`: the auditor knows the true value and
    audits all replies (`audit.by=rules`).
    """

    name: str
    cascade: Cascade = START
    judged: bool = False
    truth: bool = False
    rules: bool = False
    audit_frac: float = 0.0
    aipw: bool = False
    correction: AuditCorrection | None = None
    words: bool = True
    limit: float | None = None
    normalised: bool = True
    failing: float = 0.0
    zeroed: bool = False
    certificate: Certificate = field(default_factory=Certificate)
    alarm: int | None = None
    """First step whose audits show a mean gap inside the interval above ALARM."""


class Scores:
    """Value of every candidate by one cascade, the auditor's reward, whether the judge is needed, whether the reply may
    be audited, and strata."""

    def __init__(self, cascade: Cascade, world: World, *, rules: bool) -> None:
        pairs = list(zip(world.s_r.ravel().tolist(), world.s_j.ravel().tolist(), strict=True))
        self.interval = (cascade.tau_a, cascade.tau_b)
        self.value = np.reshape([cascade.mix(s_r, s_j) for s_r, s_j in pairs], world.s_r.shape)
        mix = np.reshape([cascade.audited_mix(s_r, s_j) for s_r, s_j in pairs], world.s_r.shape)
        self.mix = world.true if rules else mix
        self.inside = ~np.reshape([cascade.needs_judge(s_r) for s_r, _ in pairs], world.s_r.shape)
        self.auditable = np.ones_like(self.inside) if rules else self.inside
        binned, ends = (self.value, (0.0, 1.0)) if rules else (world.s_r, self.interval)
        self.binned, self.ends, self._world = binned, ends, world
        self._strata: dict[tuple[int, ...], Strata] = {}

    def strata(self, at: tuple[int, ...], correction: AuditCorrection, *, by_words: bool) -> Strata:
        """Return the strata of a candidate, with the level of its words if it is a text."""
        words = self._world.words[at]
        level = correction.word_level(words) if by_words and words else -1
        if (*at, level) not in self._strata:
            own = {name: int(levels[at]) for name, levels in self._world.features.items()}
            own |= {"words": level} if level >= 0 else {}
            self._strata[*at, level] = strata(self.binned[at], self.ends, own)
        return self._strata[*at, level]


def score(arm: Arm, world: World, scores: Scores, at: tuple[Any, Any], step: int, rng: Any) -> tuple[Any, int]:
    """Return the rewards of the replies `at` (NaN: failed) and the judge calls. The arm learns from its audits."""
    s_r, s_j = world.s_r[at], world.s_j[at]
    lost = rng.random(s_r.shape) < arm.failing
    if arm.truth:
        return world.true[at], 0
    if arm.judged:
        return np.where(lost, 0.0 if arm.zeroed else np.nan, s_j), s_r.size
    value, mix, auditable = scores.value[at], scores.mix[at], scores.auditable[at]
    audited = auditable & (rng.random(s_r.shape) < arm.audit_frac)
    calls = int((~scores.inside[at]).sum() + (0 if arm.rules else audited.sum()))
    free = value  # the reward without an audit
    if arm.correction is not None:
        each = list(zip(np.broadcast_to(at[0], s_r.shape).ravel().tolist(), at[1].ravel().tolist(), strict=True))
        words = [world.words[one] for one in each]
        names = [scores.strata(one, arm.correction, by_words=arm.words) for one in each]
        shift = np.reshape([arm.correction.shift(own) for own in names], s_r.shape)
        free = np.where(auditable, np.clip(value + shift, 0.0, 1.0), value)
        found = [
            Residual(step=step, strata=names[k], residual=float(mix.flat[k] - value.flat[k]), words=words[k])
            for k in np.flatnonzero(audited)
        ]
        arm.correction.update(step + 1, found)
    gapped = audited & scores.inside[at]
    arm.certificate.add(list(zip(s_r[gapped].tolist(), (free - mix)[gapped].tolist(), strict=True)))
    if arm.alarm is None and arm.certificate.excess(ALARM):
        arm.alarm = step
    if arm.limit is not None and arm.certificate.excess(arm.limit):
        ends = arm.certificate.largest_part(scores.interval, arm.limit)
        arm.cascade, arm.certificate = Cascade(*ends, arm.cascade.w1, arm.cascade.w2), Certificate()
    if arm.aipw:
        return value + np.where(audited, (mix - value) / AUDIT_FRAC, 0.0), calls
    return (np.where(audited, mix, free) if arm.correction is not None else free), calls


def train(arm: Arm, setting: Setting, seed: int) -> dict[str, float]:
    """Train a softmax policy over the candidates with group-relative advantages.

    Return its end, the judge calls, and the steps of the onset of exploitation and from there to the alarm (NaN: none).
    """
    rng = np.random.default_rng(seed)
    world = World(rng, setting)
    cascade, scores = arm.cascade, Scores(arm.cascade, world, rules=arm.rules)
    own, shared, calls = np.zeros((PROMPTS, CANDIDATES)), np.zeros(world.traits.shape[-1]), 0

    def policy(prompts: Any) -> Any:
        logits = own[prompts] + world.traits[prompts] @ shared
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    onset: int | None = None
    for step in range(STEPS):
        prompts = rng.choice(PROMPTS, BATCH, replace=False)
        shares = policy(prompts)
        if onset is None and (shares * world.fools[prompts]).sum() > ONSET * world.fools[prompts].mean() * BATCH > 0.0:
            onset = step
        drawn = (
            (shares.cumsum(axis=1)[:, None, :] < rng.random((BATCH, GROUP, 1))).sum(axis=-1).clip(max=CANDIDATES - 1)
        )
        if arm.cascade != cascade:
            cascade, scores = arm.cascade, Scores(arm.cascade, world, rules=arm.rules)
        rewards, asked = score(arm, world, scores, (prompts[:, None], drawn), step, rng)
        calls += asked
        advantages = group_advantages(rewards, normalised=arm.normalised)
        gradient = -advantages.mean(axis=1, keepdims=True) * shares
        np.add.at(gradient, (np.arange(BATCH)[:, None], drawn), advantages / GROUP)
        own[prompts] += gradient
        shared += 0.1 * np.einsum("bk,bkd->d", gradient, world.traits[prompts]) / BATCH
    shares = policy(np.arange(PROMPTS))
    return {
        "true": float((shares * world.true).sum(axis=1).mean()),
        "fooling": float((shares * world.fools).sum(axis=1).mean()),
        "judge_calls": calls / (STEPS * BATCH * GROUP),
        "alarm": float(arm.alarm is not None),
        "onset": np.nan if onset is None else onset,
        "delay": np.nan if onset is None or arm.alarm is None else arm.alarm - onset,
    }


def group_advantages(rewards: Any, *, normalised: bool) -> Any:
    """Return GRPO's advantages; without `normalised` the differences from the mean in units of 0.25. A failed reward
    (NaN) has advantage 0 and is not part of its group's baseline."""
    known = ~np.isnan(rewards)
    count = known.sum(axis=1, keepdims=True).clip(min=1)
    centred = np.where(known, rewards - np.where(known, rewards, 0.0).sum(axis=1, keepdims=True) / count, 0.0)
    if not normalised:
        return centred / 0.25
    deviation = np.sqrt((centred**2).sum(axis=1, keepdims=True) / count)
    return np.where(deviation > 1e-6, centred / (deviation + 1e-3), 0.0)


def arms(setting: Setting) -> list[Arm]:
    audits = {"audit_frac": AUDIT_FRAC}
    if setting.judge_too:
        return [
            Arm("true reward", truth=True),
            Arm("judge only", judged=True),
            Arm("cascade"),
            Arm("stratified", correction=AuditCorrection(), **audits),
            Arm("stratified, by rules", correction=AuditCorrection(), rules=True, **audits),
        ]
    plain = [Arm("stratified, without words", correction=AuditCorrection(), words=False, **audits)]
    return [
        Arm("judge only", judged=True),
        Arm("cascade"),
        Arm("audits only", **audits),
        Arm("AIPW", aipw=True, **audits),
        Arm("AIPW, no std", aipw=True, normalised=False, **audits),
        Arm("stratified", correction=AuditCorrection(), **audits),
        *(plain if setting.written else []),
        *(Arm(f"widened to {low}", cascade=Cascade(low, 0.98, 0.05, 0.72)) for low in (0.9, 0.94, 0.97)),
        Arm("certificate", limit=0.05, **audits),
    ]


def defences(setting: Setting, seeds: int) -> list[dict[str, Any]]:
    """Every arm in one world: mean and deviation over the seeds."""
    rows = []
    for i, first in enumerate(arms(setting)):
        ends = [train(arms(setting)[i], setting, seed) for seed in range(seeds)]
        rows.append({"world": setting.name, "arm": first.name, **summary(ends)})
    judged = next(row["true"] for row in rows if row["arm"] == "judge only")
    return [{**row, "damage": judged - row["true"]} for row in rows]


def summary(ends: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    means: dict[str, Any] = {}
    for key in ends[0]:
        known = [end[key] for end in ends if not np.isnan(end[key])]
        means[key] = float(np.mean(known)) if known else None
    delays = [end["delay"] for end in ends if not np.isnan(end["delay"])]
    means["longest_delay"] = max(delays, default=None)
    return {**means, "true_std": float(np.std([end["true"] for end in ends]))}


def damage(seeds: int) -> list[dict[str, Any]]:
    """The judge alone with failing answers: typed (excluded), or mapped to a reward of 0.0."""
    rows = []
    for failing in (0.0, 0.05, 0.1, 0.2, 0.4):
        for zeroed in (False, True):
            ends = [
                train(Arm("", judged=True, failing=failing, zeroed=zeroed), NO_FOOLING, seed) for seed in range(seeds)
            ]
            rows.append({"failing": failing, "outcome": "0.0" if zeroed else "typed", **summary(ends)})
    return rows


def coverage(runs: int, audits: int, seed: int) -> list[dict[str, Any]]:
    """Shares of runs in which the interval held after every audit, and the alarm's bound after every tenth one.

    `half`: half width of the interval at the end. `alarm`: distance of the alarm's bound from the highest mean then.
    """
    rows = []
    for name in ("constant", "moving"):
        rng = np.random.default_rng(seed)
        held, alarm_held, widths, distances = 0, 0, [], []
        share = np.full(audits, 0.15) if name == "constant" else np.linspace(0.02, 0.6, audits)
        for _ in range(runs):
            bound, weighted, before, ok = MeanBound(), 0.0, 0.0, True
            fooled = np.where(rng.random(audits) < share, 0.5, 0.0)
            gaps = np.clip(fooled + rng.normal(0.0, 0.1, audits), -1.0, 1.0)
            for gap, mean in zip(gaps, 0.5 * share, strict=True):
                bound.add(float(gap))
                weighted += (bound.weight - before) * mean
                before = bound.weight
                low, high = bound.interval
                ok &= low <= weighted / before <= high
            held += ok
            widths.append((high - low) / 2.0)
            lower = np.array([lower_bound(gaps[:count]) for count in range(10, audits + 1, 10)])
            alarm_held += bool((lower <= 0.5 * share[9::10]).all())
            distances.append(0.5 * share[-1] - lower[-1])
        ends = {"half": float(np.mean(widths)), "alarm": float(np.mean(distances))}
        rows.append(
            {"gap": name, "runs": runs, "audits": audits, "held": held / runs, "alarm_held": alarm_held / runs, **ends}
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    keys = list(rows[0])
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    return "\n".join(
        [
            *lines,
            *(
                "| "
                + " | ".join(f"{v:.3f}" if isinstance(v, float) else "" if v is None else str(v) for v in r.values())
                + " |"
                for r in rows
            ),
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--coverage-runs", type=int, default=1000)
    parser.add_argument("--audits", type=int, default=600, help="audits in a coverage run")
    parser.add_argument("--world", choices=[w.name for w in WORLDS], help="only this one; the file keeps the others")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "hacking_simulated.json")
    args = parser.parse_args(argv)
    settings = {"seeds": list(range(args.seeds)), "steps": STEPS, "audit_frac": AUDIT_FRAC, "cascade": START.parameters}
    found: dict[str, Any] = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": settings,
        "audits_needed": [{"half": half, "audits": audits_needed(half, 0.2)} for half in (0.2, 0.1, 0.05, 0.03)],
        "defences": [],
    }

    def show(rows: Sequence[Mapping[str, Any]]) -> None:
        print(table(rows) + "\n", flush=True)
        write_results(args.out, found)

    if args.world is not None:
        before = json.loads(args.out.read_text())
        [setting] = (world for world in WORLDS if world.name == args.world)
        rows = defences(setting, args.seeds)
        others = [row for row in before["defences"] if row["world"] != args.world]
        found |= {**before, "defences": [*others, *rows]}
        found.setdefault("added", {})[args.world] = {"when": datetime.now(UTC).isoformat(timespec="seconds")}
        show(rows)
        return
    for setting in WORLDS:
        rows = defences(setting, args.seeds)
        found["defences"] += rows
        show(rows)
    found["damage"] = damage(args.seeds)
    show(found["damage"])
    found["coverage"] = coverage(args.coverage_runs, args.audits, seed=0)
    show(found["coverage"])
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
