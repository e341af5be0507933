"""Report metrics from assessed turns (SAGE 3.2.4, 4.3 to 4.7): means over turns, intervals over dialogues."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hamr.bench.sage.assessment import Assessment, Worth
from hamr.bench.sage.judging import ASSESSED
from hamr.config.sage import SageConfig
from hamr.procedures.prompts import DIMENSIONS

MeanInterval = dict[str, float | None]
"""`mean`, and the bounds `low` and `high` of the 95 % bootstrap interval. All None where there is nothing to
average."""


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


VALUES: Mapping[str, Callable[[Assessment], float | None]] = {
    "overall": lambda a: a.worth.overall,
    "logic": lambda a: a.worth.logic.logic if a.worth.logic else None,
    "chat": lambda a: a.worth.chat,
    "classification": lambda a: _percent(a.worth.logic.classification) if a.worth.logic else None,
    "path": lambda a: _percent(a.worth.logic.path) if a.worth.logic else None,
    "action": lambda a: _percent(a.worth.logic.action) if a.worth.logic else None,
    "truth": lambda a: a.truth.logic if a.truth else None,
    "truth_action": lambda a: _percent(a.truth.action) if a.truth else None,
    "judges_right": lambda a: None if a.judges_right is None else 100 * a.judges_right,
    "readable": lambda a: 100.0 if a.readable else 0.0,
    "unreadable": lambda a: 0.0 if a.readable else 100.0,
    "format_error": lambda a: 100.0 if a.faults else 0.0,
    "fenced": lambda a: 100.0 if a.fenced else 0.0,
    "chat_length": lambda a: a.chat_words,
}
"""All in [0, 100] except `chat_length`, in words. `unreadable` is the paper's format error rate: the share of turns
whose JSON cannot be parsed, and `readable` the share of the others. `format_error` counts every contract violation, and
`fenced` the turns with a code fence around the JSON, also those that `fence=strip` reads.
`truth` and `truth_action` are logic and action against the customer's own case, without a judge, and `judges_right`
measures how well the judges identify that case; these three cover last turns only."""

AT_LAST = ("truth", "truth_action")
EARNED = ("overall", "logic", "chat", "classification", "path", "action", *AT_LAST)
"""Scores of an agent. They are 0 where no turn of it can be parsed."""


def figures(assessed: Sequence[Assessment], config: SageConfig) -> dict[str, MeanInterval]:
    """Return every value's mean over the turns that have it, with its interval."""
    draws, mean = _draws(assessed, config), means(assessed)
    return {name: _figure(mean[name], draws[:, i]) for i, name in enumerate(VALUES)}


def average_scenarios(by_scenario: Mapping[str, Sequence[Assessment]], config: SageConfig) -> dict[str, MeanInterval]:
    """Return the unweighted mean of the scenarios' means, as in the paper's Table 1.

    A scenario counts once, however many turns it has. The interval is that of the mean of independent draws of every
    scenario's dialogues.
    """
    tables = [(means(turns), _draws(turns, config)) for turns in by_scenario.values()]
    found = {}
    for i, name in enumerate(VALUES):
        known = [(mean, draws[:, i]) for named, draws in tables if (mean := named[name]) is not None]
        draws = np.mean([drawn for _, drawn in known], axis=0) if known else None
        found[name] = _figure(sum(mean for mean, _ in known) / len(known) if known else None, draws)
    return found


def means(assessed: Sequence[Assessment]) -> dict[str, float | None]:
    """Return every value's mean over the turns that have it."""
    found: dict[str, float | None] = {}
    for name in VALUES:
        known = [v for v in turn_values(name, assessed) if v is not None]
        found[name] = sum(known) / len(known) if known else None
    return found


def turn_values(name: str, assessed: Sequence[Assessment]) -> list[float | None]:
    """Return the value of each turn of one agent in one scenario.

    A score of `EARNED` is 0 where no turn can be parsed. One that no readable turn has (no judge voted, or a reply by
    tools) is unknown at the unreadable turns too.
    """
    values = [VALUES[name](a) for a in assessed]
    if name not in EARNED:
        return values
    has_score = [a.last or name not in AT_LAST for a in assessed]
    readable = [v for a, v, has in zip(assessed, values, has_score, strict=True) if has and a.readable]
    if not readable:
        return [0.0 if has else None for has in has_score]
    return [None] * len(values) if all(v is None for v in readable) else values


def by_turn(assessed: Sequence[Assessment]) -> dict[str, dict[str, float | None]]:
    """Return means at the first, fifth, tenth and fifteenth turn, and at the last of each dialogue (which may be one of
    them).

    Turns that no dialogue reached are absent.
    """
    at = {str(turn): [a for a in assessed if a.turn == turn] for turn in ASSESSED}
    at["last"] = [a for a in assessed if a.last]
    return {turn: {**means(there), "turns": float(len(there))} for turn, there in at.items() if there}


def by_level(
    assessed: Sequence[Assessment], levels: Iterable[str], config: SageConfig
) -> dict[str, dict[str, MeanInterval]]:
    """Return the metrics at each adversarial level that has turns, the easiest first."""
    at = {level: [a for a in assessed if a.level == level] for level in levels}
    return {level: figures(there, config) for level, there in at.items() if there}


def execution_gap(assessed: Sequence[Assessment]) -> float | None:
    """Return classification minus action, in points (section 4.4): the understood part that was not executed."""
    mean = means(assessed)
    labels, action = mean["classification"], mean["action"]
    return None if labels is None or action is None else labels - action


def fault_rates(assessed: Sequence[Assessment]) -> dict[str, float]:
    """Return the percentage of the assessed turns with each kind of fault, in descending order."""
    counts = Counter(kind for a in assessed for kind in a.faults)
    return {kind: 100 * count / len(assessed) for kind, count in counts.most_common()}


def stages(assessed: Sequence[Assessment]) -> dict[str, dict[str, int]]:
    """Return, per node of the graph, how often the agent arrived there on the right path, and how often it left it
    there."""
    passed = Counter(node for a in assessed for node in a.passed)
    departed = Counter(a.departed for a in assessed if a.departed is not None)
    return {node: {"passed": passed[node], "wrong": departed[node]} for node in sorted(passed)}


def alone(assessed: Sequence[Assessment]) -> dict[str, dict[str, float | None]]:
    """Return single-judge bias (Appendix A.1): the agent's scores by each judge alone, and by all judges as `panel`.

    One row of the paper's heat maps per judge, one column per agent. Unreadable turns count as in all other metrics.
    """
    judges = dict.fromkeys(judge for a in assessed for judge in a.alone)
    rows: dict[str, dict[str, float | None]] = {
        "panel": _worths([a.worth for a in assessed if a.alone or not a.readable])
    }
    for judge in judges:
        seen = [a for a in assessed if judge in a.alone or not a.readable]
        rows[judge] = _worths([a.alone[judge] if a.readable else a.worth for a in seen])
    return rows


def _worths(worths: Sequence[Worth]) -> dict[str, float | None]:
    known = {
        "overall": [w.overall for w in worths if w.overall is not None],
        "logic": [w.logic.logic for w in worths if w.logic is not None and w.logic.logic is not None],
        "chat": [w.chat for w in worths if w.chat is not None],
    }
    return {name: sum(values) / len(values) if values else None for name, values in known.items()}


def correlation(assessed: Sequence[Assessment]) -> dict[str, dict[str, float | None]]:
    """Return the relation of each dimension of chat quality to the total (section 4.7).

    Least squares of the dimension's mean grade (times ten) on the chat score, over dialogues of every agent. `r2` is
    None for fewer than three dialogues, or where one of the two is constant.
    """
    _, x, grades = _chat_points(assessed)
    found = {}
    for name, y in grades.items():
        mean = float(y.mean()) if len(y) else None
        if len(x) < 3 or np.ptp(x) < 1e-9 or np.ptp(y) < 1e-9:
            found[name] = {"mean": mean, "r2": None, "slope": None}
            continue
        r = float(np.corrcoef(x, y)[0, 1])
        found[name] = {"mean": mean, "r2": r * r, "slope": float(np.polyfit(x, y, 1)[0])}
    return found


def residuals(assessed: Sequence[Assessment]) -> dict[str, dict[str, float]]:
    """Return, by agent and dimension of chat quality, the mean distance of its dialogues from the line of
    `correlation`: positive where the agent is better in the dimension than its total says (section 4.7).

    Empty for fewer than three dialogues, or where all have the same total.
    """
    agents, x, grades = _chat_points(assessed)
    if len(x) < 3 or np.ptp(x) < 1e-9:
        return {}
    found: dict[str, dict[str, float]] = {agent: {} for agent in dict.fromkeys(agents)}
    for name, y in grades.items():
        apart = y - np.polyval(np.polyfit(x, y, 1), x)
        for agent in found:
            found[agent][name] = float(np.mean([d for d, own in zip(apart, agents, strict=True) if own == agent]))
    return found


def _chat_points(assessed: Sequence[Assessment]) -> tuple[list[str], np.ndarray, dict[str, np.ndarray]]:
    """Return for every dialogue with grades: its agent, its chat score, and its grade (times ten) in each
    dimension."""
    groups: dict[tuple[str, str], list[Assessment]] = {}
    for a in assessed:
        if a.grades:
            groups.setdefault((a.agent, a.dialogue), []).append(a)
    x = np.array([np.mean([a.worth.chat for a in group]) for group in groups.values()])
    grades = {
        name: np.array([10 * np.mean([a.grades[name] for a in group]) for group in groups.values()])
        for name in DIMENSIONS
    }
    return [agent for agent, _ in groups], x, grades


def votes(assessed: Sequence[Assessment]) -> dict[str, Any]:
    """Return statistics of the panel's votes.

    Turns with a judgement, fields that were tied or without a label, and turns whose procedure could not be followed
    because a label is missing.
    """
    held = [a for a in assessed if a.consensus is not None]
    ties = Counter(name for a in held if a.consensus for name in a.consensus.tied)
    unvoted = Counter(name for a in held if a.consensus for name in a.consensus.unvoted)
    return {
        "turns": len(held),
        "tied": dict(ties),
        "unvoted": dict(unvoted),
        "no_reference": sum(a.reference is None for a in held),
        "ungraded": sum(a.worth.chat is None for a in held),
    }


# --- intervals ---------------------------------------------------------------------------------


def _sums(assessed: Sequence[Assessment]) -> tuple[np.ndarray, np.ndarray]:
    """Return (sums, counts) of every value, each [dialogues, values], because turns of one dialogue are not
    independent."""
    dialogues = {key: i for i, key in enumerate(dict.fromkeys((a.agent, a.dialogue) for a in assessed))}
    sums, counts = np.zeros((len(dialogues), len(VALUES))), np.zeros((len(dialogues), len(VALUES)))
    for i, name in enumerate(VALUES):
        for a, v in zip(assessed, turn_values(name, assessed), strict=True):
            if v is not None:
                sums[dialogues[a.agent, a.dialogue], i] += v
                counts[dialogues[a.agent, a.dialogue], i] += 1
    return sums, counts


def _draws(assessed: Sequence[Assessment], config: SageConfig) -> np.ndarray:
    """Return means of resampled dialogues, [resamples, values]; nan where a draw has no value."""
    sums, counts = _sums(assessed)
    size = len(sums)
    if not size:
        return np.full((config.resamples, len(VALUES)), np.nan)
    # Each scenario is resampled separately, because the mean is over independent scenarios.
    rng = np.random.default_rng([config.seed, zlib.crc32(assessed[0].scenario.encode())])
    times = rng.multinomial(size, np.full(size, 1 / size), size=config.resamples)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (times @ sums) / (times @ counts)


def _figure(mean: float | None, draws: np.ndarray | None) -> MeanInterval:
    known = draws[~np.isnan(draws)] if draws is not None else np.array([])
    if mean is None or not len(known):
        return {"mean": mean, "low": None, "high": None}
    low, high = np.percentile(known, [2.5, 97.5])
    return {"mean": mean, "low": float(low), "high": float(high)}
