"""What finished runs said, as scores: arm -> measure -> seed -> item."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from ablation.arms import Arm
from ablation.runs import Sweep
from ablation.verdict import judged
from hamr.config.load import load_config
from hamr.data.actions import ResponseFormat, answer_of
from hamr.data.responses import ResponseGroup
from hamr.data.samples import to_json, write_rows
from hamr.jobs.ecs_request import read_policy
from hamr.observability.metrics import read_metrics
from hamr.types import MalformedResponse

GRADES = ("dialogue", "policy", "tool", "risk", "hallucination")
Judged = Mapping[tuple[str, str], tuple[float | None, float | None]]
"""(sample, answer) -> (Multi-ECS, Single-ECS) by the judge."""


def said(sweep: Sweep, arm: Arm, seed: int) -> Sequence[ResponseGroup]:
    """The arm's held-out responses: before RL of an arm that only looks, else after it."""
    folder, stage = sweep.answers(arm, seed)
    return read_policy(folder, load_config(), stage).groups


def plain(text: str, response_format: ResponseFormat) -> str:
    """The part of a response that acts, as the plain format writes it; "" for what is malformed."""
    answer = answer_of(text, response_format)
    return "" if isinstance(answer, MalformedResponse) else answer


def exact_scores(groups: Iterable[ResponseGroup], response_format: ResponseFormat) -> dict[str, dict[str, float]]:
    """measure -> sample -> mean over its responses, by the rule engine."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for group in groups:
        verdicts = [judged(group.sample, text, response_format) for text in group.responses]
        item = group.sample.id
        found["rule_engine"][item] = fmean(v.ecs for v in verdicts)
        calls = [v.call for v in verdicts if v.call is not None]
        if calls:
            found["call_tool"][item] = fmean(calls)
        for name in GRADES:
            found[name][item] = fmean(getattr(v, name) for v in verdicts)
        found["overall"][item] = fmean(v.overall for v in verdicts)
    return found


def judge_scores(
    groups: Sequence[ResponseGroup], response_format: ResponseFormat, votes: Judged
) -> dict[str, dict[str, float]]:
    """Multi- and Single-ECS by the judge, of the samples whose votes all came. Nothing where it was not asked about one
    of the answers: those that another arm gave too are no fair draw of them."""
    asked = [[(group.sample.id, plain(text, response_format)) for text in group.responses] for group in groups]
    if not all(one in votes for own in asked for one in own):
        return {}
    found: dict[str, dict[str, float]] = {"judge_multi": {}, "judge_single": {}}
    for answers in asked:
        item, given = answers[0][0], [votes[one] for one in answers]
        for name, own in zip(found, zip(*given, strict=True), strict=True):
            known = [vote for vote in own if vote is not None]
            if len(known) == len(given):
                found[name][item] = fmean(known)
    return found


def entropies(folder: Path) -> list[float]:
    """The policy's entropy at every RL step, nats a token."""
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["stage"] == "rl"]
    return [row["policy/entropy"] for row in sorted(rows, key=lambda row: row["step"]) if row.get("policy/entropy")]


def last_third(curve: Sequence[float]) -> float:
    """Mean of the last third of a curve's points, one at least."""
    return fmean(curve[-max(1, len(curve) // 3) :])


# --- the judge's part --------------------------------------------------------------------------


def write_answers(path: Path, said: Iterable[tuple[Sequence[ResponseGroup], ResponseFormat]]) -> int:
    """Every sample once, with all different answers that any arm gave to it; returns how many answers. An arm that
    comes later adds its own, and the judge is asked about those alone."""
    answers: dict[str, dict[str, None]] = {}
    rows = {}
    for groups, response_format in said:
        for group in groups:
            rows[group.sample.id] = to_json(group.sample)
            answers.setdefault(group.sample.id, {}).update(
                dict.fromkeys(plain(text, response_format) for text in group.responses)
            )
    write_rows(path, ({**row, "responses": list(answers[item])} for item, row in rows.items()))
    return sum(map(len, answers.values()))


def read_votes(folder: Path) -> Judged:
    """What `hamr evaluate benchmark=ecs` wrote into `folder`; nothing where it has not been run."""
    path = folder / "items.jsonl"
    if not path.is_file():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["id"], row["response"]): (row["multi"], row["single"]) for row in rows}
