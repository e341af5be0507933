from __future__ import annotations

import pytest

from hamr.bench.answers import PolicyResponse
from hamr.bench.olabench import hallucination_rates, overall, risk_rates
from hamr.bench.olabench.figures import ItemOutcome, policy_figures
from hamr.bench.olabench.items import BenchItem
from hamr.bench.olabench.labelled import Labelled, Labels
from hamr.errors import BadInput
from hamr.types import Judgement, ServiceSample

# Overall, dialogue quality, policy compliance, tool calling, risk in %, hallucination in %.
TABLE_3 = {
    "GPT-5.2": (70.58, 3.61, 3.62, 3.27, 40.6, 16.5),
    "Gemini 3 Pro": (70.84, 3.37, 3.77, 3.21, 32.7, 20.1),
    "Kimi K2 Thinking": (64.62, 3.65, 3.49, 3.24, 50.5, 34.0),
    "Proprietary Model-A": (64.28, 3.24, 3.20, 3.02, 45.2, 22.6),
    "DeepSeek-R1": (63.88, 3.68, 3.41, 3.28, 53.3, 34.7),
    "DeepSeek-V3.2": (67.24, 3.24, 3.44, 3.20, 33.9, 27.5),
    "Qwen3-Max": (64.60, 3.55, 3.44, 3.14, 53.5, 26.1),
    "Qwen3-8B base": (55.08, 3.13, 2.75, 2.61, 49.1, 45.3),
    "Qwen3-8B Zero-Think": (58.46, 3.37, 2.80, 2.62, 41.5, 42.0),
    "Qwen3-8B Cold-Start": (65.34, 3.67, 3.05, 2.88, 15.0, 50.3),
    "Qwen3-8B Stage-1": (72.22, 4.05, 3.60, 3.46, 15.8, 45.3),
    "Qwen3-8B Re-Cold-Start": (68.72, 3.72, 3.42, 3.27, 18.4, 46.2),
    "Qwen3-8B Stage-2": (76.14, 3.91, 3.62, 3.52, 12.1, 28.2),
    "Qwen3-14B base": (56.06, 3.16, 3.00, 2.77, 56.9, 41.4),
    "Qwen3-14B Zero-Think": (60.22, 3.36, 3.05, 2.81, 45.9, 37.4),
    "Qwen3-14B Cold-Start": (66.88, 3.71, 3.23, 3.04, 16.8, 48.4),
    "Qwen3-14B Stage-1": (73.48, 4.08, 3.68, 3.58, 17.9, 41.5),
    "Qwen3-14B Re-Cold-Start": (70.54, 3.75, 3.54, 3.34, 16.7, 43.2),
    "Qwen3-14B Stage-2": (78.72, 3.95, 3.85, 3.78, 12.9, 25.1),
    "Model-B base": (67.04, 3.28, 3.33, 2.89, 31.1, 23.7),
    "Model-B Zero-Think": (67.32, 3.39, 3.35, 2.96, 29.7, 27.7),
    "Model-B Cold-Start": (71.08, 3.81, 3.43, 3.28, 11.1, 43.9),
    "Model-B Stage-1": (79.66, 4.25, 4.15, 4.10, 13.6, 38.1),
    "Model-B Re-Cold-Start": (74.24, 3.85, 3.82, 3.65, 16.6, 38.6),
    "Model-B Stage-2": (83.64, 4.03, 4.19, 4.11, 8.7, 19.7),
}
TABLE_5 = {
    "Stage-2 (ours)": (83.64, 4.03, 4.19, 4.11, 8.7, 19.7),
    "w/o Rubric": (81.88, 3.95, 4.10, 3.90, 10.0, 19.6),
    "w/o Dialogue Quality": (82.56, 3.93, 4.19, 4.09, 10.8, 20.6),
    "w/o Policy Compliance": (82.50, 4.00, 4.11, 4.03, 9.7, 20.6),
    "w/o Tool Calling": (80.94, 3.93, 4.05, 3.93, 9.9, 23.6),
    "w/o Risk": (81.98, 4.01, 4.17, 4.15, 16.2, 20.5),
    "w/o Hallucination": (80.72, 4.07, 4.19, 4.12, 11.3, 32.7),
    "RFT w/ LLM CoT": (63.30, 3.42, 3.01, 2.76, 27.2, 40.1),
    "SFT w/ human reply only": (64.92, 3.26, 3.27, 3.08, 39.5, 28.1),
    "Single-stage RL": (80.70, 3.98, 4.02, 3.99, 10.9, 25.4),
}
ROWS = [("Table 3", *row) for row in TABLE_3.items()] + [("Table 5", *row) for row in TABLE_5.items()]

# No row of the tables is wrong; two figures of the prose are. (what the prose says, what the tables say, why)
PROSE_SLIPS = {
    "hallucination rate without its reward": (27.7, 32.7, "27.7 would make w/o Hallucination 81.72, printed is 80.72"),
    "overall of the cold start": (67.32, 71.08, "67.32 is the row of Zero-Think"),
}


def test_both_tables_are_complete():
    assert (len(TABLE_3), len(TABLE_5)) == (25, 10)


@pytest.mark.parametrize(("table", "row", "figures"), ROWS, ids=[f"{table}: {row}" for table, row, _ in ROWS])
def test_paper_rows_are_reproduced_exactly(table, row, figures):
    printed, dialogue, policy, tool, risk, hallucination = figures
    # Grades and rates are printed so exactly that the formula's value of them has two decimals itself.
    assert overall(dialogue, policy, tool, risk / 100, hallucination / 100) == pytest.approx(printed, abs=1e-9)


def test_figures_in_prose_deviate_from_the_tables():
    said, printed, _ = PROSE_SLIPS["hallucination rate without its reward"]
    figures = TABLE_5["w/o Hallucination"]
    assert printed == figures[5]
    assert overall(4.07, 4.19, 4.12, 0.113, said / 100) == pytest.approx(81.72)
    said, printed, _ = PROSE_SLIPS["overall of the cold start"]
    assert (said, printed) == (TABLE_3["Model-B Zero-Think"][0], TABLE_3["Model-B Cold-Start"][0])


def test_overall_score_has_the_expected_extremes():
    assert overall(5, 5, 5, 0, 0) == pytest.approx(100.0)
    assert overall(1, 1, 1, 1, 1) == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ((4, 4, 4, 8.7, 0.2), "risk_rate: 8.7: is not a share"),
        ((4, 4, 4, 0.1, -0.2), "hallucination_rate: -0.2"),
        ((0.8, 4, 4, 0.1, 0.2), "dialogue: 0.8: is not a grade"),
        ((4, 5.1, 4, 0.1, 0.2), "policy: 5.1"),
        ((4, 4, float("nan"), 0.1, 0.2), "tool: nan"),
    ],
)
def test_values_off_the_scale_are_rejected(figures, said):
    with pytest.raises(BadInput, match=said):
        overall(*figures)


def test_labels_of_all_files_correct_the_means():
    def outcome(n: int) -> ItemOutcome:
        sample = ServiceSample(id=f"i{n}", ticket={}, policy="", tools=(), history=(), references=())
        item = BenchItem(sample=sample, kind="agent")
        rows = (Labels(risk="no"), Labels(grades={"dialogue": 3}), Labels(grades={"dialogue": 1}))
        return ItemOutcome(
            item=item,
            response=PolicyResponse(text="Hi."),
            reading=None,
            judgements={"dialogue": Judgement(component="dialogue", grade=4, labels=(), reason="")},
            labelled=tuple(Labelled(item=item, response="Hi.", labels=labels) for labels in rows),
        )

    found = policy_figures([outcome(n) for n in range(25)], resamples=50, seed=0)["all"]["debiased"]
    assert found["dialogue"]["mean"] == pytest.approx(3.0), "the first file with a label of the reward counts"


def test_risk_types_are_counted_separately():
    found = risk_rates(
        {
            "a": Judgement(component="risk", labels=("liability", "overcommitment")),
            "b": Judgement(component="risk", labels=("overcommitment",)),
            "c": Judgement(component="risk"),
            "d": None,
            "e": Judgement(component="risk"),
        }
    )
    assert (found.rate.mean, found.rate.n, found.unjudged) == (0.5, 4, 1)
    shares = {kind: share.mean for kind, share in found.types.items()}
    assert shares == {"liability": 0.25, "role": 0.0, "overcommitment": 0.5, "disparagement": 0.0}
    assert found.rate.low <= 0.5 <= found.rate.high


def test_hallucination_types_sum_to_the_rate():
    labels = ["none", "misuse", "factual", "factual", "none", "logical", "none", "none"]
    found = hallucination_rates(
        {str(i): Judgement(component="hallucination", labels=(label,)) for i, label in enumerate(labels)}
    )
    assert found.rate.mean == 0.5
    assert {kind: share.mean for kind, share in found.types.items()} == {
        "misuse": 0.125,
        "factual": 0.25,
        "relevance": 0.0,
        "logical": 0.125,
    }


def test_zero_of_twenty_has_a_nonzero_upper_bound():
    found = risk_rates({str(i): Judgement(component="risk") for i in range(20)})
    assert found.rate.mean == found.rate.low == 0.0
    assert 0.1 < found.rate.high < 0.2


def test_rate_without_judgements_is_none():
    found = risk_rates({"a": None})
    assert (found.rate.mean, found.rate.n, found.unjudged) == (None, 0, 1)


@pytest.mark.parametrize("labels", [(), ("none", "factual"), ("odd",)])
def test_hallucination_requires_exactly_one_known_label(labels):
    with pytest.raises(BadInput, match="sample x: give one of"):
        hallucination_rates({"x": Judgement(component="hallucination", labels=labels)})


def test_unknown_risks_are_rejected():
    with pytest.raises(BadInput, match="sample x: give some of"):
        risk_rates({"x": Judgement(component="risk", labels=("odd",))})
