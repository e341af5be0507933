"""Reading a score from label probabilities, and fitting a template to a model's tokens."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from hamr.apps.scorer.prepare import prepare_scorers
from hamr.config.load import load_config
from hamr.config.pools import PoolConfig
from hamr.config.resources import resource
from hamr.errors import BadInput, ConfigError, VerdictUnparsable
from hamr.models.tokenizer import load_tokenizer
from hamr.pools.scorer_prompt import MIN_LABEL_MASS, ScorerPrompt, read_labels
from hamr.pools.scorers import check_scorer
from hamr.prompting.templates import PromptTemplate, VerdictToken

VARIABLES = {"history": "Customer: hi", "statement_a": "Hello!", "statement_b": "Good morning."}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as far as its tokenizer goes: byte-level BPE that knows the labels as whole words."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        ["yes no Yes Part No Verdict:", "Verdict: Yes Verdict: Part Verdict: No yes\nno\n"] * 50,
        trainers.BpeTrainer(
            vocab_size=400,
            show_progress=False,
            special_tokens=["<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    path = tmp_path_factory.mktemp("model")
    core.save(str(path / "tokenizer.json"))
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    settings = {"eos_token": "<|im_end|>", "chat_template": template}
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def judge(folder: Path) -> ScorerPrompt:
    return ScorerPrompt(PromptTemplate.load("judge.en"), load_tokenizer(folder))


def test_score_matches_hand_computed_values() -> None:
    """0.3, 0.2, 0.1 of the whole are 1/2, 1/3, 1/6 of the labels: 1/2 + 0.5 / 3 = 2/3."""
    reading = read_labels({"yes": 0.3, "part": 0.2, "no": 0.1})
    assert reading.score == pytest.approx(2 / 3)
    assert reading.label_mass == pytest.approx(0.6)
    assert reading.probabilities == pytest.approx({"yes": 1 / 2, "part": 1 / 3, "no": 1 / 6})
    assert reading.verdict == "yes"


def test_two_labels_give_p_yes() -> None:
    assert read_labels({"yes": 0.06, "no": 0.02}).score == pytest.approx(0.75)


def test_hard_verdict_may_differ_from_the_soft_score() -> None:
    reading = read_labels({"yes": 0.40, "part": 0.15, "no": 0.45})
    assert reading.verdict == "no"
    assert reading.score == pytest.approx(0.475)


@pytest.mark.parametrize("mass", [0.0, MIN_LABEL_MASS / 4, math.nan])
def test_zero_label_mass_is_unparsable(mass: float) -> None:
    with pytest.raises(VerdictUnparsable):
        read_labels({"yes": mass, "no": mass})


@given(st.tuples(*[st.floats(1e-4, 1.0)] * 3))
def test_score_is_in_the_unit_interval(masses: tuple[float, float, float]) -> None:
    total = sum(masses) * 1.000001
    reading = read_labels(dict(zip(("yes", "part", "no"), (m / total for m in masses), strict=True)))
    assert 0.0 <= reading.score <= 1.0
    assert math.isclose(sum(reading.probabilities.values()), 1.0)


def test_log_probabilities_are_looked_up_by_token(judge: ScorerPrompt) -> None:
    said = {judge.labels["yes"]: math.log(0.3), judge.labels["part"]: math.log(0.2), judge.labels["no"]: math.log(0.1)}
    assert judge.read(said).score == pytest.approx(2 / 3)


def test_label_is_one_token_after_the_prefix(judge: ScorerPrompt) -> None:
    encode = judge.tokenizer.encode
    for label, said in judge.template.labels.items():
        assert encode(judge.template.verdict_prefix + said.token) == [
            *judge.verdict_ids(after_thinking=False),
            judge.labels[label],
        ]


def test_question_ends_at_the_start_of_the_answer(judge: ScorerPrompt) -> None:
    text = judge.tokenizer.core.decode(judge.question_ids(VARIABLES), skip_special_tokens=False)
    assert text.endswith("<|im_start|>assistant\n")
    assert "Good morning." in text


def test_multi_token_label_is_rejected(judge: ScorerPrompt) -> None:
    labels = judge.template.labels | {"part": VerdictToken(token=" somewhat-consistent", value=0.5)}
    with pytest.raises(BadInput, match=r"labels\.part\.token.*' somewhat-consistent'.*exactly one token"):
        ScorerPrompt(judge.template.model_copy(update={"labels": labels}), judge.tokenizer)


def test_unknown_template_is_rejected_before_engines_start(folder: Path) -> None:
    with pytest.raises(ConfigError, match="reranker"):
        check_scorer("r", PoolConfig(role="reranker", prompt="rerankr.en"), folder)


def test_pool_with_unsuitable_labels_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = PromptTemplate.load("reranker.en")
    labels = template.labels | {"no": VerdictToken(token="nein!", value=0.0)}
    odd = template.model_copy(update={"labels": labels})
    monkeypatch.setattr(PromptTemplate, "read", classmethod(lambda cls, name: odd))
    with pytest.raises(BadInput, match=r"^pools\.ranker: prompt reranker\.en: labels\.no\.token"):
        check_scorer("ranker", PoolConfig(role="reranker", prompt="reranker.en"), folder)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{{ statement_b }}", "{{ reply }}", r"its template uses the unknown variables \['reply'\]"),
        ("{{ statement_b }}", "{{ statement_a }}", "does not show {{ statement_b }}"),
    ],
)
def test_template_with_unknown_variables_is_rejected_before_ray_starts(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = resource("prompts", "reranker_short.en.yaml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "mine.yaml").write_text(text.replace(old, new), encoding="utf-8")
    job = load_config(["experiment=smoke", f"pools.reranker.prompt={tmp_path / 'mine.yaml'}"])
    with pytest.raises(ConfigError, match=said) as refused:
        prepare_scorers(job, (), (), lambda line: None)
    assert refused.value.where == "pools.reranker.prompt"
    assert "\n" not in str(refused.value)
