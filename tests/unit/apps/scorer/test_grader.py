"""Training data of a grader: the question of its reward, and an answer that its reward can parse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.scorer.grader import FLAWS, Grading, labelled_responses
from hamr.apps.scorer.judged import JudgedResponse
from hamr.apps.scorer.lessons import grader_exam
from hamr.config.load import load_config
from hamr.config.pools import ScorerTrainingConfig
from hamr.data.formats import PLAIN
from hamr.data.samples import from_json
from hamr.errors import BadInput, ConfigError
from hamr.models.bundled import resolve_model
from hamr.models.tokenizer import load_tokenizer
from hamr.rewards.judged import VETOES

SAMPLE = {
    "id": "a",
    "ticket": {"Penalty": "$40"},
    "policy": "Name the fee.",
    "tools": [],
    "history": [{"role": "customer", "content": "What does it cost?"}],
    "references": [{"action": "reply", "content": "It costs $40."}],
}


def grading(reward: str) -> Grading:
    return Grading(
        reward=reward,
        rewards=load_config(["experiment=smoke"]).rewards,
        tokenizer=load_tokenizer(resolve_model("tiny")),
        formats=PLAIN,
    )


def judged(*labels: str, reason: str = "as said") -> JudgedResponse:
    return JudgedResponse(sample=from_json(SAMPLE), response="It costs $50.", labels=labels, reason=reason)


@pytest.mark.parametrize("reward", list(FLAWS))
def test_target_answers_parse_to_their_label_and_its_position(reward: str) -> None:
    taught = grading(reward)
    config = getattr(taught.rewards, reward)
    cases: list[tuple[str, ...]] = [(), *((flaw,) for flaw in FLAWS[reward])]
    if reward == "risk":
        cases.append(("liability", "role"))
    for labels in cases:
        ids, at = taught.answer_ids(labels, 'says "50" \\ so')
        text = taught.tokenizer.core.decode(ids)
        (read,) = VETOES[reward].read(text, from_json(SAMPLE), 1, config)
        assert read is not None and read.labels == (labels or (("none",) if reward == "hallucination" else ()))
        before = taught.tokenizer.core.decode(ids[:at])
        assert before.rstrip().endswith(('"judgment":', '"judgment": "', '"types":', '"types": ['))
    opened, values = taught.verdict_ids()
    assert sorted(values.values())[-2:] == [0.0, 1.0], "one token says clean, the others do not"


def test_training_question_matches_the_reward_question() -> None:
    taught = grading("hallucination")
    ids = taught.question_ids(judged())
    text = taught.tokenizer.core.decode(ids, skip_special_tokens=False)
    assert "Name the fee." in text and "<response>\nIt costs $50.\n</response>" in text
    assert taught.prompt_id.startswith("hallucination.en@2+")


def test_planted_responses_are_learnt_without_reasons() -> None:
    """If only clean ones had a reason, it would give the label away."""
    made = grading("hallucination").examples([judged(reason=""), judged("factual", reason="")] * 20)
    assert not any(one.sound for one in made)


def test_half_of_the_examples_have_no_reason_for_each_label() -> None:
    taught = grading("risk")
    rows = [judged(), judged("role")] * 100
    made = taught.examples(rows)
    heard = {False: 0, True: 0}
    for row, one in zip(rows, made, strict=True):
        assert one.target_ids[-1] == taught.tokenizer.eos_id
        assert one.verdict == ((one.target_ids[-1 - one.behind], 1.0),)
        heard[bool(row.labels)] += one.sound
    assert 30 < heard[False] < 70 and 30 < heard[True] < 70


def test_exam_requests_the_label_first_and_has_an_overlap_baseline() -> None:
    taught = grading("hallucination")
    exam = grader_exam(taught, [judged(), judged("factual")])
    opened, values = taught.verdict_ids()
    assert exam.questions[0] == taught.question_ids(judged()) + opened
    assert (exam.labels, exam.values) == ([True, False], values)
    assert exam.overlap == [1 / 3, 1 / 3], "of it, costs and 50 only the first stands in the material"


def labelled(tmp_path: Path, *labels: str) -> ScorerTrainingConfig:
    path = tmp_path / "labelled.jsonl"
    lines: list[dict[str, Any]] = [
        SAMPLE | {"id": str(i), "response": "x", "label": label, "reason": ""} for i, label in enumerate(labels)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ScorerTrainingConfig(labelled=str(path))


def test_files_with_a_single_label_are_rejected(tmp_path: Path) -> None:
    train, held_out = labelled_responses("g", labelled(tmp_path, *["none", "factual"] * 20))
    assert (len(train), len(held_out)) == (32, 8)
    train, _ = labelled_responses("g", labelled(tmp_path, *["none"] * 20, *["factual"] * 20))
    assert 0 < sum(bool(row.labels) for row in train[:12]) < 12, "whatever the order of the file"
    with pytest.raises(BadInput, match=r"pools\.g\.finetune\.labelled: .*has 0 flawed responses of 32 to learn from"):
        labelled_responses("g", labelled(tmp_path, *["none"] * 40))
    tuning = labelled(tmp_path, *["none", "factual"] * 20)
    held = tmp_path / "held.jsonl"
    held.write_text(json.dumps(SAMPLE | {"response": "x", "label": "factual", "reason": "y"}) + "\n")
    with pytest.raises(BadInput, match=r"finetune\.held_out: .*has 1 flawed responses of 1 to be measured on"):
        labelled_responses("g", tuning.model_copy(update={"held_out": str(held)}))


def test_only_a_grader_trains_on_labelled_responses() -> None:
    for override in (
        "pools.side={role: grader, finetune: {}}",
        "pools.judge.finetune={labelled: x.jsonl}",
    ):
        with pytest.raises(ConfigError, match=r"finetune\.labelled=.*only a grader"):
            load_config(["experiment=smoke", override])
    side = load_config(["experiment=smoke", "pools.side={role: grader, finetune: {labelled: x.jsonl}}"]).pools["side"]
    assert not side.learns_pairs
