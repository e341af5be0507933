"""Report of an ECS evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from hamr.apps.evaluate.ecs import figures
from hamr.bench.folder import usage_table
from hamr.report.drawing import draw
from hamr.report.values import Column, Interval, Page, PageSection, Prose, Table, number_columns

NAMES = {"multi_ecs": "Multi-ECS", "single_ecs": "Single-ECS", "call_tool_accuracy": "call-tool accuracy"}
_KINDS = {"reply": "replies", "tool_call": "tool calls", "type_mismatch": "wrong type", "malformed": "malformed"}
_SHOWN = 8
"""Number of responses shown per policy."""
_SCORE, _COUNT = "{:.3f}", "{:,}"


def ecs_page(metrics: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> Page:
    policies, judges, pairs = metrics["policies"], metrics["judges"], metrics["between_judges"]
    return Page(
        title="Ensemble-Consistency Score",
        summary=verdict(metrics),
        facts=_facts(metrics),
        sections=(
            PageSection.of(
                "Scores",
                _scores(policies),
                _corrected_scores(metrics["debiased"]),
                lead="Per response the mean of the judges' votes on each reference, then the highest of them: over all "
                "references (Multi), and on the logged one alone (Single). Call-tool accuracy: of the responses where "
                "a tool call was logged (or, where nothing was, all references are tool calls) those that are exactly "
                "one of the references. Means of samples, with 95 % bootstrap intervals over them.",
            ),
            _comparison(metrics["comparison"]),
            PageSection.of(
                "Plots",
                draw("figures", "Scores and their intervals", partial(figures.score_bars, policies, NAMES)),
                draw("distribution", "Responses by Multi-ECS", partial(figures.distribution, items)),
            ),
            PageSection.of(
                "The judges", _judges(judges, pairs), _pairs(pairs), lead="A missing vote is left out of its mean."
            ),
            _people(metrics["people"]),
            _utility(metrics["utility"]),
            PageSection.of(
                "Responses and prompts",
                _responses(policies),
                _prompts(judges),
                usage_table(metrics["usage"]),
                detail=True,
            ),
            PageSection.of(
                "Farthest from any reference",
                *(_lowest(name, items) for name in policies),
                lead="Votes: one per judge, references separated by semicolons.",
                detail=True,
            ),
        ),
    )


def verdict(metrics: Mapping[str, Any]) -> str:
    """Return the result of the evaluation in one or two sentences, from measured values only."""
    name, policy = next(iter(metrics["policies"].items()))
    multi = policy["values"]["multi_ecs"]
    if multi["mean"] is None:
        return f"{name}: no response could be scored; the table of judges says why."
    text = f"{name} reaches a Multi-ECS of {multi['mean']:.3f} on {multi['n']} samples."
    if policy["unanswered"]:
        text = f"{text[:-1]}; {policy['unanswered']} more have no answer."
    found = metrics["comparison"]
    if found is None or found["multi_ecs"]["p_value"] is None:
        return text
    by, p = found["multi_ecs"]["difference"]["mean"], found["multi_ecs"]["p_value"]
    if by == 0:
        return f"{text} {found['b']} reaches the same."
    chance = "" if p < 0.05 else ", which may be chance"
    return f"{text} That is {abs(by):.3f} {'above' if by > 0 else 'below'} {found['b']} (p = {p:.4f}){chance}."


def _facts(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    responses = sum(policy["responses"] for policy in metrics["policies"].values())
    votes = sum(judge["asked"] - sum(judge["missing"].values()) for judge in metrics["judges"].values())
    return (
        f"{responses:,} responses",
        f"{len(metrics['judges'])} judges",
        f"{votes:,} votes",
        f"{metrics['options']['scores']} scores",
    )


def _scores(policies: Mapping[str, Any]) -> Table:
    rows = tuple(
        (name, *(Interval.of(policy["values"][value]) for value in NAMES), policy["samples"], policy["unscored"])
        for name, policy in policies.items()
    )
    scores = (Column(name, _SCORE) for name in NAMES.values())
    return Table("ECS", (Column("policy"), *scores, *number_columns(_COUNT, "samples", "unscored")), rows)


def _corrected_scores(policies: Mapping[str, Any]) -> Table:
    rows = tuple((name, own["naive"], Interval.of(own), int(own["audits"])) for name, own in policies.items())
    scores = (Column(name, _SCORE) for name in ("by the judges", "corrected"))
    return Table("Multi-ECS corrected by people's labels", (Column("policy"), *scores, Column("labels", _COUNT)), rows)


def _responses(policies: Mapping[str, Any]) -> Table:
    rows = tuple(
        (
            name,
            policy["responses"],
            policy["unanswered"],
            policy["unlogged"],
            *(policy["kinds"].get(kind, 0) for kind in _KINDS),
            f"{policy['missing']:,} of {policy['asked']:,}",
        )
        for name, policy in policies.items()
    )
    heads = ("responses", "samples without an answer", "without a logged reference", *_KINDS.values(), "missing votes")
    return Table("Responses", (Column("policy"), *number_columns(_COUNT, *heads)), rows)


def _comparison(found: Mapping[str, Any] | None) -> PageSection:
    if found is None:
        return PageSection.of("")
    rows = tuple(
        (name, Interval.of(found[key]["difference"]), found[key]["p_value"],
         *(found[key][count] for count in ("wins", "ties", "losses", "left_out")))
        for key, name in NAMES.items()
    )  # fmt: skip
    title = f"{found['a']} minus {found['b']}"
    columns = (Column("score"), Column("difference", "{:+.3f}"), Column("p", "{:.4f}"))
    return PageSection.of(
        title,
        Table(title, (*columns, *number_columns(_COUNT, "better", "equal", "worse", "left out")), rows),
        lead="On the same samples; p is that of a two-sided paired permutation test.",
    )


def _judges(judges: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for name, judge in judges.items():
        kappas = [p["kappa"] for p in pairs if name in p["judges"] and p["kappa"] is not None]
        levels = (judge["levels"].get(level, 0) for level in ("yes", "part", "no"))
        mean_kappa = sum(kappas) / len(kappas) if kappas else None
        rows.append((name, judge["asked"], *levels, sum(judge["missing"].values()), judge["mean"], mean_kappa))
    scores = (Column(name, _SCORE) for name in ("mean", "kappa with the others"))
    columns = (Column("judge"), *number_columns(_COUNT, "asked", "yes", "part", "no", "missing"), *scores)
    return Table("Judges", columns, tuple(rows))


def _prompts(judges: Mapping[str, Any]) -> Table:
    rows = []
    for name, judge in judges.items():
        missing = ", ".join(f"{why} {count}" for why, count in judge["missing"].items()) or "none"
        rows.append((name, judge["model"], judge["prompt"], missing))
    return Table("Judges", tuple(Column(n) for n in ("judge", "model", "prompt", "missing votes")), tuple(rows))


def _pairs(pairs: Sequence[Mapping[str, Any]]) -> Table:
    rows = tuple((" and ".join(p["judges"]), p["n"], p["same"], p["kappa"]) for p in pairs)
    heads = (*number_columns(_COUNT, "both answered"), Column("same level", _SCORE), Column("Cohen's kappa", _SCORE))
    return Table("Agreement of every two judges", (Column("judges"), *heads), rows)


def _people(found: Mapping[str, Any] | None) -> PageSection:
    if found is None:
        return PageSection.of("")
    rows = tuple(
        (
            name,
            Interval.of(entry["accuracy"]),
            Interval.of(entry["clear_accuracy"]),
            entry["kappa"],
            Interval.of({**entry["spearman"], "mean": entry["spearman"]["rho"]}),
            entry["missing"],
        )
        for name, entry in [("ensemble", found["ensemble"]), *found["judges"].items()]
    )
    scores = (Column(name, _SCORE) for name in ("accuracy", "clear pairs", "Cohen's kappa", "Spearman"))
    return PageSection.of(
        "Agreement with people",
        Table(
            f"Agreement with people on {found['pairs']} labelled pairs",
            (Column("judge"), *scores, *number_columns(_COUNT, "missing")),
            rows,
            note="Accuracy: the same of three levels. Clear pairs: on the right side of one half, where the people's "
            "label is consistent or inconsistent.",
        ),
    )


def _utility(found: Mapping[str, Any] | None) -> PageSection:
    if found is None:
        return PageSection.of("")
    row = (found["judge"], Interval.of(found["accuracy"]), found["kappa"], found["missing"])
    columns = (Column("judge"), Column("accuracy", _SCORE), Column("Cohen's kappa", _SCORE))
    return PageSection.of(
        "Utility judge and people",
        Table(
            f"Agreement with people on {found['replies']} rated replies",
            (*columns, *number_columns(_COUNT, "missing")),
            (row,),
            note="Accuracy: available or not, as people rated the reply.",
        ),
    )


def _lowest(policy: str, items: Sequence[Mapping[str, Any]]) -> Table:
    """Return the policy's responses with the lowest scores."""

    def votes(item: Mapping[str, Any]) -> str:
        by_reference = (
            " ".join("-" if vote is None else f"{vote:.2f}" for vote in votes) for votes in item["votes"].values()
        )
        return "; ".join(by_reference)

    known = [item for item in items if item["policy"] == policy and item["multi"] is not None]
    rows = tuple(
        (item["id"], Prose(item["response"]), item["kind"].replace("_", " "), votes(item), item["multi"])
        for item in sorted(known, key=lambda item: item["multi"])[:_SHOWN]
    )
    heads = (*(Column(name) for name in ("sample", "response", "taken as", "votes")), Column("Multi-ECS", _SCORE))
    return Table(policy, heads, rows)
