"""Report of an OlaBench evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hamr.apps.evaluate.olabench import figures
from hamr.bench.folder import usage_table
from hamr.report.drawing import draw
from hamr.report.values import Cell, Column, Fold, Interval, Page, PageSection, Prose, Table

GRADES = {"dialogue": "dialogue", "policy": "policy", "tool": "tools"}
GROUPS = ("all", "rag", "workflow", "agent", "core", "risk", "hallucination")
KINDS = ("all", "rag", "workflow", "agent")
_SHOWN = 12
"""Number of responses shown per policy."""
_GRADE, _PERCENT, _COUNT, _TOKENS = "{:.2f}", "{:.1f}", "{:,}", "{:.0f}"


def olabench_page(metrics: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Page:
    policies, grading = metrics["policies"], metrics["grading"]
    return Page(
        title="OlaBench",
        summary=verdict(metrics),
        facts=_facts(metrics),
        sections=(
            *(
                PageSection.of(
                    name,
                    _scores(f"Scores of {name}", groups, [group for group in GROUPS if group in groups]),
                    _responses(f"Responses of {name}", groups, [kind for kind in KINDS if kind in groups]),
                    _corrected_scores(groups["all"]),
                    _types(f"Faults of {name}", groups["all"]),
                    Fold(
                        "Scores and responses of all groups of items",
                        (_scores("Scores", groups, list(groups)), _responses("Responses", groups, list(groups))),
                    ),
                    lead="Grades from 1 to 5, rates in percent of responses, overall = 100 times the mean of the three "
                    "grades / 5 and of the two shares without risk and hallucination. Below each the 95 % interval of "
                    "a bootstrap over items.",
                )
                for name, groups in policies.items()
            ),
            PageSection.of(
                "Plots",
                draw("figures", "The five terms of the overall score", partial(figures.terms, policies)),
                draw("kinds", "Overall score by scenario kind", partial(figures.by_kind, policies)),
            ),
            *(
                PageSection.of(
                    f"Judges on {Path(file).name}",
                    _detection(f"Faults that judges found in {Path(file).name}", judges),
                    _agreement(f"Agreement on {Path(file).name}", judges),
                    lead="Responses with known verdicts. Precision: of those to which a judge gave the type, the share "
                    "that has it; recall: of those that have it, the share to which it gave the type. A grade of a "
                    "call says that it is wrong but not why, so its precision is that of all faults. Intervals: Wilson "
                    "or a bootstrap over wordings where responses share one.",
                )
                for file, judges in grading.items()
            ),
            PageSection.of(
                "The judges",
                _judges(metrics["judges"]),
                usage_table(metrics["usage"]),
                lead="A judgement that is missing is left out of its mean.",
                detail=True,
            ),
            PageSection.of(
                "Faults found by judges",
                *(_faults(name, rows) for name in policies),
                lead="Risks and hallucinations first, then the lowest grades.",
                detail=True,
            ),
        ),
    )


def verdict(metrics: Mapping[str, Any]) -> str:
    """Return the result of the evaluation in one or two sentences, from measured values only."""
    texts = []
    for name, groups in metrics["policies"].items():
        found = groups["all"]["overall"]
        if found["mean"] is None:
            texts.append(f"{name} has no overall score: not all of its five terms could be measured.")
        else:
            texts.append(f"{name} scores {found['mean']:.1f} of 100 on {groups['all']['items']} items.")
    for file, judges in metrics["grading"].items():
        shares = [
            f"{name} {100 * judge['accuracy']['mean']:.0f} %"
            for name, judge in judges.items()
            if judge.get("accuracy", {}).get("mean") is not None
        ]
        if shares:
            texts.append(f"Right verdicts on {Path(file).name}: {', '.join(shares)}.")
    return " ".join(texts)


def _facts(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    judgements = sum(judge["asked"] - sum(judge["missing"].values()) for judge in metrics["judges"].values())
    cot = {"none": "answers alone", "pre": "thinking first", "post": "answer first, stopped at its end"}
    return (
        f"{len(metrics['policies'])} policies",
        f"{judgements:,} judgements",
        cot[metrics["options"]["cot"]],
        f"judges by {metrics['options']['judged']}",
    )


def _scores(title: str, groups: Mapping[str, Any], names: Sequence[str]) -> Table:
    rows = tuple(
        (
            name,
            groups[name]["items"],
            Interval.of(groups[name]["overall"]),
            *(_share(groups[name][rate]["rate"]) for rate in ("risk", "hallucination")),
            *(Interval.of(groups[name]["grades"][grade]) for grade in GRADES),
        )
        for name in names
    )
    rates = (Column(name, _PERCENT) for name in ("overall", "risk %", "hallucination %"))
    grades = (Column(name, _GRADE) for name in GRADES.values())
    return Table(title, (Column("items"), Column("n", _COUNT), *rates, *grades), rows)


def _corrected_scores(group: Mapping[str, Any]) -> Table:
    rows = tuple(
        (name, found["naive"] * scale, Interval.of(found, scale), int(found["audits"]))
        for name, found in group["debiased"].items()
        for scale in [100 if name in ("risk", "hallucination") else 1]
    )
    scores = (Column(name, _GRADE) for name in ("by the judges", "corrected"))
    return Table("Corrected by people's labels", (Column("score"), *scores, Column("labels", _COUNT)), rows)


def _responses(title: str, groups: Mapping[str, Any], names: Sequence[str]) -> Table:
    rows = []
    for name in names:
        latency, counts = groups[name]["latency"], groups[name]["responses"]
        loaded = latency["concurrent"] or {"seconds": {"mean": None}, "at_once": None}
        alone = (latency["seconds"]["mean"], latency["median_s"], latency["p95_s"], latency["at_once"])
        seconds = (*alone, loaded["seconds"]["mean"], loaded["at_once"])
        tokens = (latency[key]["mean"] for key in ("response_tokens", "cot_tokens"))
        given = (counts[key] for key in ("given", "malformed", "cut_off", "failed"))
        rows.append((name, *seconds, *tokens, *given))
    columns = (
        Column("items"),
        *(Column(name, _GRADE) for name in ("mean s", "median s", "p95 s")),
        Column("in flight", _COUNT),
        Column("mean s under load", _GRADE),
        Column("load", _COUNT),
        *(Column(name, _TOKENS) for name in ("response tokens", "thought tokens")),
        *(Column(name, _COUNT) for name in ("given", "malformed", "cut off", "failed")),
    )
    return Table(title, columns, tuple(rows))


def _types(title: str, group: Mapping[str, Any]) -> Table:
    rows = tuple(
        (f"{rate}: {kind.replace('_', ' ')}", _share(estimate), estimate["n"])
        for rate in ("risk", "hallucination")
        for kind, estimate in group[rate]["types"].items()
        if estimate["n"]
    )
    return Table(title, (Column("type"), Column("share %", _PERCENT), Column("judged", _COUNT)), rows)


def _detection(title: str, judges: Mapping[str, Any]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for judge, found in judges.items():
        for kind, entry in ({"any": found["any"], **found["types"]} if "any" in found else {}).items():
            precision, recall = entry["precision"], entry["recall"]
            rows.append(
                (
                    f"{judge}: {kind.replace('_', ' ')}",
                    _share(precision) if precision else None,
                    precision["n"] if precision else None,
                    _share(recall),
                    recall["n"],
                    entry.get("texts"),
                )
            )
    columns = (
        Column("known label"),
        Column("precision %", _PERCENT),
        Column("given", _COUNT),
        Column("recall %", _PERCENT),
        Column("known", _COUNT),
        Column("texts", _COUNT),
    )
    return Table(title, columns, tuple(rows))


def _agreement(title: str, judges: Mapping[str, Any]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, judge in judges.items():
        counts = (judge["asked"], judge["missing"])
        if "accuracy" in judge:
            exact = _share(judge["exact"]) if "exact" in judge else None
            rows.append((name, _share(judge["accuracy"]), exact, None, *counts))
        for part in (p for p in ("grades", "good") if p in judge):
            rho = judge[part]["spearman"]
            rows.append(
                (f"{name} ({part})", _share(judge[part]["accuracy"]), None,
                 Interval.of({**rho, "mean": rho["rho"]}), *counts)
            )  # fmt: skip
    columns = (
        Column("judge"),
        *(Column(name, _PERCENT) for name in ("accuracy %", "exact label %")),
        Column("Spearman", _GRADE),
        *(Column(name, _COUNT) for name in ("asked", "missing")),
    )
    return Table(title, columns, tuple(rows))


def _judges(judges: Mapping[str, Any]) -> Table:
    rows = []
    for name, judge in judges.items():
        missing = ", ".join(f"{why.removeprefix('judge_')} {count}" for why, count in judge["missing"].items())
        prompts = ", ".join(judge["prompts"])
        counts = (judge["asked"], judge["compared"])
        rows.append((name, *counts, missing or "none", judge["pool"], judge["model"], prompts))
    counted = (Column(name, _COUNT) for name in ("responses", "compared at most"))
    return Table(
        "", (Column("judge"), *counted, *(Column(n) for n in ("missing", "pool", "model", "prompts"))), tuple(rows)
    )


def _faults(policy: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the policy's responses with the most faults found by judges."""

    def fault_order(row: Mapping[str, Any]) -> tuple[bool, int]:
        judgements = row["judgements"].values()
        labels = [label for judgement in judgements for label in judgement["labels"] if label != "none"]
        return not labels, min((j["grade"] for j in judgements if j["grade"] is not None), default=5)

    mine = [row for row in rows if row["policy"] == policy and row["judgements"]]
    shown = []
    for row in sorted(mine, key=fault_order)[:_SHOWN]:
        judgements = row["judgements"]
        verdicts = [f"{name}: {j['grade'] or ', '.join(j['labels']) or 'none'}" for name, j in judgements.items()]
        reason = " · ".join(j["reason"] for j in judgements.values() if j["reason"])
        shown.append((row["id"], Prose(row["response"]), Prose("; ".join(verdicts)), Prose(reason)))
    return Table(policy, tuple(Column(name) for name in ("item", "response", "verdicts", "reason")), tuple(shown))


def _share(estimate: Mapping[str, Any]) -> Interval:
    return Interval.of(estimate, 100)
