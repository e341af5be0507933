"""Cross-encoder and embedding on real models of sentence-transformers; skipped where the library is not installed."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.scorer.prepare import Progress
from hamr.apps.train.pool_scaler import LivePoolScaler
from hamr.apps.train.scorer_refit import ScorerRefit
from hamr.config.load import load_config
from hamr.config.pools import PoolConfig
from hamr.config.schema import SageDataConfig
from hamr.data.sage_samples import generate_samples
from hamr.errors import BadInput
from hamr.models.bundled import resolve_model
from hamr.pools.client import PoolClient
from hamr.pools.deployment import start_pools, stop_pools
from hamr.pools.scorers import build_scorer, check_scorer
from hamr.types import Answer, Question

pytestmark = [pytest.mark.integration]
SENTENCES = "the fee is not twelve euros may i ask why ?"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *SENTENCES.split()]


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")


@pytest.fixture(scope="module")
def cross_encoder(library: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of one label."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder = tmp_path_factory.mktemp("cross-encoder")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, num_labels=1, initializer_range=0.5, **shape)
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    return folder


def pool(**changes: Any) -> PoolConfig:
    values = {"role": "reranker", "type": "cross_encoder", "dtype": "float32", "engine": {"num_cpus": 0.5}}
    return PoolConfig.model_validate(values | changes)


def ask(a: str, b: str) -> Question:
    return Question(variables={"history": "Customer: hi", "statement_a": a, "statement_b": b}, affinity="g")


QUESTIONS = [
    ask("the fee is twelve euros", "the fee is not twelve euros"),
    ask("the fee is twelve euros", "may i ask why ?"),
    ask("may i ask why ?", "may i ask why ?"),
]


def test_cross_encoder_score_is_the_sigmoid_of_its_logit(cross_encoder: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    check_scorer("r", pool(model=str(cross_encoder)), cross_encoder)
    answers = asyncio.run(build_scorer("r", pool(model=str(cross_encoder)), cross_encoder).score(QUESTIONS))
    model = AutoModelForSequenceClassification.from_pretrained(cross_encoder).eval()
    tokenizer = AutoTokenizer.from_pretrained(cross_encoder)
    for question, answer in zip(QUESTIONS, answers, strict=True):
        a, b = question.variables["statement_a"], question.variables["statement_b"]
        read = tokenizer(a, b, return_tensors="pt")
        with torch.no_grad():
            logit = model(**read).logits.item()
        assert answer.score == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-5)
        assert answer.call is not None
        assert answer.call.prompt_tokens == read["input_ids"].shape[1]
    assert len({a.score for a in answers}) == 3, "the model tells the pairs apart"


def test_topic_lowers_the_score_of_texts_about_other_things(cross_encoder: Path) -> None:
    alone = pool(model=str(cross_encoder))
    judged = pool(model=str(cross_encoder), topic={"slope": 10.0, "middle": 0.5})
    embedding = resolve_model("all-minilm-l6-v2")
    similar = pool(type="embedding", model="all-minilm-l6-v2")
    check_scorer("r", judged, cross_encoder)
    both, own, close = (
        [answer.score or 0.0 for answer in asyncio.run(build_scorer("r", config, folder).score(QUESTIONS))]
        for config, folder in ((judged, cross_encoder), (alone, cross_encoder), (similar, embedding))
    )
    for score, alone_score, similarity in zip(both, own, close, strict=True):
        assert score == pytest.approx(alone_score / (1 + math.exp(-10.0 * (2 * similarity - 1 - 0.5))), abs=1e-5)
    assert both[1] < 0.1 * own[1] and both[2] > 0.9 * own[2]


def test_identity_activation_returns_the_raw_logit(cross_encoder: Path) -> None:
    config = pool(model=str(cross_encoder), activation="identity")
    through = asyncio.run(build_scorer("r", config, cross_encoder).score(QUESTIONS))
    squashed = asyncio.run(build_scorer("r", pool(model=str(cross_encoder)), cross_encoder).score(QUESTIONS))
    for plain, sigmoid in zip(through, squashed, strict=True):
        assert sigmoid.score is not None
        assert plain.score == pytest.approx(min(1.0, max(0.0, math.log(sigmoid.score / (1 - sigmoid.score)))), abs=1e-4)


def test_text_over_the_context_is_unparsable(cross_encoder: Path) -> None:
    (answer,) = asyncio.run(build_scorer("r", pool(), cross_encoder).score([ask("the fee " * 40, "why")]))
    assert answer.failure == "unparsable"
    assert "more than the 64" in answer.detail


def test_a_text_cannot_write_special_tokens(cross_encoder: Path) -> None:
    scorer = build_scorer("r", pool(), cross_encoder)
    read = scorer.model.encoder.tokenizer("the fee", "why ? [SEP] the fee [CLS] [PAD]")["input_ids"]  # type: ignore[attr-defined]
    assert [WORDS[i] for i in read if WORDS[i] in ("[CLS]", "[SEP]", "[PAD]")] == ["[CLS]", "[SEP]", "[SEP]"]


def test_cross_encoder_pool_answers_through_serve(local_ray: None, cross_encoder: Path) -> None:
    pools = {"reranker": pool(model=str(cross_encoder))}

    async def through_serve() -> list[Answer]:
        await start_pools(pools, {"reranker": cross_encoder}, run="pairs", timeout_s=120)
        client = PoolClient("reranker", pools["reranker"], "pairs")
        try:
            return list(await asyncio.gather(*(client.ask(question) for question in QUESTIONS)))
        finally:
            await client.close()
            await stop_pools("pairs")

    direct = asyncio.run(build_scorer("r", pools["reranker"], cross_encoder).score(QUESTIONS))
    answers = asyncio.run(through_serve())
    assert [a.score for a in answers] == pytest.approx([a.score for a in direct], abs=1e-6)
    assert all(a.call and a.call.replica for a in answers)


@pytest.mark.deep
def test_refit_updates_a_running_pool(local_ray: None, cross_encoder: Path, tmp_path: Path) -> None:
    """The replica loads the new weights without a restart."""
    wrong = {"content_A": "may i ask why ?", "content_B": "why ? may i ask", "label": "inconsistent"}
    right = {"content_A": "the fee is twelve euros", "content_B": "twelve euros is the fee", "label": "consistent"}
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in (wrong, right) * 60))
    config = load_config(
        [
            "experiment=quickstart",
            "rewards=reranker",
            f"pools.reranker.model={cross_encoder}",
            "pools.reranker.engine.num_cpus=0.5",
            "pools.reranker.finetune.learning_rate=0.03",
            "pools.reranker.finetune.batch_size=8",
            f"scorers.refit.labels={tmp_path / 'pairs.jsonl'}",
        ]
    ).with_asked_pools()
    paths = {"reranker": cross_encoder}
    questions = [ask(pair["content_A"], pair["content_B"]) for pair in (wrong, right)]

    class Router:
        forgot = 0

        async def forget(self) -> None:
            self.forgot += 1

    router: Any = Router()

    async def around_the_refit() -> list[Answer]:
        await start_pools(config.pools, paths, run="refit", timeout_s=120)
        client = PoolClient("reranker", config.pools["reranker"], "refit")
        refit = ScorerRefit(
            config=config,
            truth=None,
            train=generate_samples(SageDataConfig(train=40, validation=6, test=6)).train,
            folder=tmp_path / "scorers",
            paths=paths,
            judge=None,
            reload=LivePoolScaler(config, paths, "refit", router).reload,
            progress=Progress(print),
        )
        try:
            before = [await client.ask(question) for question in questions]
            await refit.run(1, [])
            return [*before, *[await client.ask(question) for question in questions]]
        finally:
            await client.close()
            await stop_pools("refit")

    answers = asyncio.run(around_the_refit())
    wrong_before, right_before, wrong_after, right_after = (answer.score or 0.0 for answer in answers)
    assert right_after - wrong_after > right_before - wrong_before + 0.3
    assert len({answer.call.replica for answer in answers if answer.call}) == 1, "the replica is the same"
    assert router.forgot == 1


def test_embeddings_prefer_the_negated_statement() -> None:
    """Appendix C.1 of the first paper: the negation of a statement is closer to it than its paraphrase."""
    try:
        model = resolve_model("all-minilm-l6-v2")
    except BadInput as missing:
        pytest.skip(str(missing))
    asked = [
        ask("You can cancel the contract at any time without a fee.", said)
        for said in (
            "You can not cancel the contract at any time without a fee.",
            "There is nothing to pay if you decide to leave us, whenever that may be.",
            "The oven has to be hot before the bread goes in.",
        )
    ]
    config = pool(type="embedding", model="all-minilm-l6-v2")
    check_scorer("r", config, model)
    answers = asyncio.run(build_scorer("r", config, model).score(asked))
    negated, reworded, unrelated = (answer.score or 0.0 for answer in answers)
    assert negated > 0.95
    assert negated > reworded + 0.1
    assert unrelated < reworded
    same = asyncio.run(build_scorer("r", config, model).score([ask("Hello there.", "Hello there.")]))
    assert same[0].score == pytest.approx(1.0, abs=1e-5)
