"""The papers' tables beside ours: figures, and per row whether the paper's ordering is there. Pure.

A row is held against one other row of its table (`than`), as the paper's own argument does. What is compared is the
sign of the paper's difference with our interval of the same difference, never the levels: those belong to another
model, other data and other judges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hamr.evaluation.ordering import BySeed, Difference, Verdict, difference, mean_of, seed_difference, verdict

RESAMPLES = 2000
LUCK = 0


@dataclass(frozen=True, kw_only=True)
class Row:
    """`paper`: the paper's figures by its names for them. `than`: the arm of the row that this one is held against;
    None for the row that only others are held against. A row without figures of the paper's is a control of ours."""

    arm: str
    label: str
    than: str | None
    paper: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Table:
    """`stands_for`: per metric of the paper the measures that stand for it here, the first being the one to go by."""

    name: str
    title: str
    stands_for: Mapping[str, tuple[str, ...]]
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Two rows, and what was found of their ordering by one measure. `paper` and `ours` are the row's figure and the
    other's. `ordering`: whether the paper has one; without, as without figures of ours, `verdict` is None. `missing`:
    the arms that were not run."""

    table: str
    row: str
    than: str
    metric: str
    measure: str
    paper: tuple[float, float] | None
    ours: tuple[float | None, float | None]
    ordering: bool
    difference: Difference
    verdict: Verdict | None
    missing: tuple[str, ...]


Scores = Mapping[str, Mapping[str, BySeed]]
"""Arm -> measure -> seed -> item -> score."""

ECS = {"Multi-ECS": ("rule_engine", "judge_multi"), "Single-ECS": ("judge_single",)}

_MIX_DRA = {"Multi-ECS": 0.337, "Single-ECS": 0.242, "Call Tool Acc": 0.279}
TABLE_1 = Table(
    name="sft",
    title="First paper, Table 1: SFT arms",
    stands_for={**ECS, "Call Tool Acc": ("call_tool",)},
    rows=(
        Row(
            arm="look_original",
            label="original model",
            than=None,
            paper={"Multi-ECS": 0.299, "Single-ECS": 0.178, "Call Tool Acc": 0.082},
        ),
        Row(
            arm="look_decision",
            label="SFT decision",
            than="look_original",
            paper={"Multi-ECS": 0.293, "Single-ECS": 0.193, "Call Tool Acc": 0.096},
        ),
        Row(
            arm="look_decision_dra",
            label="SFT decision, DRA",
            than="look_decision",
            paper={"Multi-ECS": 0.319, "Single-ECS": 0.224, "Call Tool Acc": 0.139},
        ),
        Row(
            arm="look_mix",
            label="SFT mix",
            than="look_decision",
            paper={"Multi-ECS": 0.326, "Single-ECS": 0.233, "Call Tool Acc": 0.149},
        ),
        Row(
            arm="look_mix_dra",
            label="SFT mix, DRA",
            than="look_mix",
            paper=_MIX_DRA,
        ),
        Row(arm="look_mix_dra", label="SFT mix, DRA", than="look_decision_dra", paper=_MIX_DRA),
        Row(arm="look_mix", label="control: SFT mix", than="look_decision_twice", paper={}),
        Row(arm="look_mix_dra", label="control: SFT mix, DRA", than="look_decision_dra_twice", paper={}),
    ),
)
_OURS = {"Multi-ECS": 0.429, "Single-ECS": 0.357}


def _variant(arm: str, label: str, multi: float, single: float) -> Row:
    return Row(arm=arm, label=label, than="ours", paper={"Multi-ECS": multi, "Single-ECS": single})


_DEFAULT = Row(arm="ours", label="SFT mix, DRA + hybrid + single GT", than=None, paper=_OURS)
TABLE_2_INIT = Table(
    name="init",
    title="First paper, Table 2 (1): where RL starts",
    stands_for=ECS,
    rows=(
        _DEFAULT,
        _variant("init_original", "no SFT", 0.348, 0.231),
        _variant("init_decision", "SFT decision", 0.353, 0.331),
        _variant("init_decision_dra", "SFT decision, DRA", 0.406, 0.336),
        _variant("init_mix", "SFT mix", 0.407, 0.346),
    ),
)
TABLE_2_MODES = Table(
    name="modes",
    title="First paper, Table 2 (2): the reward",
    stands_for=ECS,
    rows=(
        _DEFAULT,
        _variant("reranker", "reranker alone", 0.389, 0.309),
        _variant("hard_judge", "hard judge", 0.406, 0.336),
        _variant("soft_judge", "soft judge", 0.413, 0.344),
    ),
)
TABLE_2_GT = Table(
    name="gt",
    title="First paper, Table 2 (3): one or several references",
    stands_for=ECS,
    rows=(_DEFAULT, _variant("multi_gt", "multi GT", 0.441, 0.347)),
)


def _without(term: str, *figures: float) -> Row:
    return Row(
        arm=f"without_{term}" if term else "all_terms",
        label=f"without {term}" if term else "all six terms",
        than="all_terms" if term else None,
        paper=dict(zip(_OLA, figures, strict=True)),
    )


_OLA = {
    "Overall": ("overall",),
    "Dialogue Quality": ("dialogue",),
    "Policy Compliance": ("policy",),
    "Tool Calling": ("tool",),
    "Risk Rate": ("risk",),
    "Hallucination Rate": ("hallucination",),
}
TABLE_5 = Table(
    name="rewards",
    title="Second paper, Table 5: reward terms, graded by the rule engine",
    stands_for=_OLA,
    rows=(
        _without("", 83.64, 4.03, 4.19, 4.11, 0.087, 0.197),
        _without("rubric", 81.88, 3.95, 4.10, 3.90, 0.100, 0.196),
        _without("dialogue", 82.56, 3.93, 4.19, 4.09, 0.108, 0.206),
        _without("policy", 82.50, 4.00, 4.11, 4.03, 0.097, 0.206),
        _without("tool", 80.94, 3.93, 4.05, 3.93, 0.099, 0.236),
        _without("risk", 81.98, 4.01, 4.17, 4.15, 0.162, 0.205),
        _without("hallucination", 80.72, 4.07, 4.19, 4.12, 0.113, 0.327),
    ),
)
TABLES = (TABLE_1, TABLE_2_INIT, TABLE_2_MODES, TABLE_2_GT, TABLE_5)


def claims(table: Table, scores: Scores) -> list[Claim]:
    """Every row beside the one that it is held against, by every measure."""
    papers = {row.arm: row.paper for row in reversed(table.rows) if row.paper}
    return [
        _claim(table, row, row.than, metric, measure, papers, scores)
        for row in table.rows
        if row.than is not None
        for metric, measures in table.stands_for.items()
        for measure in measures
    ]


def _claim(
    table: Table,
    row: Row,
    than: str,
    metric: str,
    measure: str,
    papers: Mapping[str, Mapping[str, float]],
    scores: Scores,
) -> Claim:
    ours, theirs = (scores.get(arm, {}).get(measure, {}) for arm in (row.arm, than))
    found = difference(ours, theirs, resamples=RESAMPLES, seed=LUCK)
    paper = (row.paper[metric], papers[than][metric]) if row.paper else None
    missing = tuple(arm for arm, runs in ((row.arm, ours), (than, theirs)) if not runs)
    said = verdict(found, paper[0] - paper[1]) if paper and found.mean is not None else None
    return Claim(
        table=table.name,
        row=row.label,
        than=than.removeprefix("look_"),
        metric=metric,
        measure=measure,
        paper=paper,
        ours=(mean_of(ours), mean_of(theirs)),
        ordering=paper is not None and paper[0] != paper[1],
        difference=found,
        verdict=said,
        missing=missing,
    )


def entropy_claim(single: Mapping[int, float], multi: Mapping[int, float]) -> Claim:
    """Figure 2: with several references the policy keeps more entropy. One figure a run, so that one seed says
    nothing of chance; the paper draws curves and names no numbers."""
    found = seed_difference(multi, single)
    means = [sum(x.values()) / len(x) if x else None for x in (multi, single)]
    return Claim(
        table="gt",
        row="multi GT",
        than="ours",
        metric="policy entropy (Figure 2)",
        measure="entropy of the last third",
        paper=None,
        ours=(means[0], means[1]),
        ordering=True,
        difference=found,
        verdict=verdict(found, 1.0) if found.mean is not None else None,
        missing=tuple(arm for arm, runs in (("multi_gt", multi), ("ours", single)) if not runs),
    )


# --- as text -----------------------------------------------------------------------------------


def markdown(title: str, found: Sequence[Claim]) -> str:
    """One line an ordering. A row that was not run says so; nothing is left out."""
    lines = [
        f"### {title}",
        "",
        "| row | than | metric, by | paper | ours | difference (95 %) | seeds x items | paper's ordering |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for c in found:
        paper = "none" if c.paper is None else f"{_number(c.paper[0])} / {_number(c.paper[1])}"
        ours = f"{_number(c.ours[0])} / {_number(c.ours[1])}"
        size = f"{c.difference.seeds} x {c.difference.items}"
        by = c.measure.replace("_", " ")
        lines.append(
            f"| {c.row} | {c.than} | {c.metric}, {by} | {paper} | {ours} | {_interval(c.difference)} | {size} "
            f"| {_said(c)} |"
        )
    return "\n".join(lines)


def counted(found: Sequence[Claim]) -> str:
    """How many of the papers' orderings came out which way."""
    names = ("reproduced", "contradicted", "not decided", "not run")
    said = [_said(c) for c in found if c.ordering]
    return ", ".join(f"{said.count(name)} {name}" for name in names)


def as_json(found: Sequence[Claim]) -> list[dict[str, Any]]:
    return [asdict(c) for c in found]


def _said(c: Claim) -> str:
    if c.missing:
        return "not run"
    if c.verdict is not None:
        return c.verdict
    if c.paper is not None:
        return "the paper has none"
    return "a control"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if abs(value) >= 2 else f"{value:.3f}"


def _interval(found: Difference) -> str:
    if found.mean is None:
        return ""
    if found.low is None or found.high is None:
        return f"{found.mean:+.3f}"
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
