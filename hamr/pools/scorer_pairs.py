"""Scorers that compare two texts directly: a cross-encoder, and the similarity of embeddings.

They take no instructions, so there is no template. They read `statement_a` (the reference) and `statement_b` (the
response), not the dialogue before them. Both run in a thread of their replica, through sentence-transformers.

| type            | S_R                                                                                  |
|-----------------|--------------------------------------------------------------------------------------|
| `cross_encoder` | sigmoid(z) of the model's one logit z; with `activation: identity` z itself, clipped |
|                 | to [0, 1], for models that were trained to output the score itself                   |
| `embedding`     | (1 + cos(a, b)) / 2: order and distances are the cosine's, opposite vectors are 0    |

With a `topic` section, a cross-encoder's score is multiplied by sigmoid(slope (cos(a, b) - middle)) of an embedding
model. A cross-encoder decides between two classes, so its verdict (`rewards.consistency.mode=hard_judge`) is yes above
0.5 and no otherwise. An embedding gives no verdict.

An embedding represents the topic of a text, not whether two texts agree: a reply and its negation are close (the first
paper's Appendix C.1 and Table 6). It serves as a baseline, and for pools that cannot afford more.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hamr.config.pools import PoolConfig
from hamr.errors import BadInput
from hamr.files import encodable
from hamr.models.bundled import PAIRS_INSTALL, resolve_model
from hamr.pools.pair_training import MARKED, mark_numbers
from hamr.pools.scorer_base import Scorer, record_call
from hamr.types import Answer, Question

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder, SentenceTransformer

NO_PAIR = "this pool compares statement_a and statement_b; the question has no such pair, or needs a written answer"

Pair = tuple[str, str]


class PairModel(Protocol):
    """Model that compares two texts. `tokens` returns the tokens of a pair and the model's maximum."""

    def tokens(self, pair: Pair) -> tuple[int, int]: ...

    def scores(self, pairs: Sequence[Pair]) -> list[float]: ...


class PairScorer(Scorer):
    """Scores the agreement of `statement_a` and `statement_b`, one call at a time, off the replica's event loop.

    A text that the model would truncate is a failure, because the score would not cover all of it.
    """

    def __init__(self, pool: str, config: PoolConfig, model: PairModel, name: str) -> None:
        self.pool, self.config, self.model, self.name = pool, config, model, name
        self._turn = asyncio.Lock()

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        started = time.monotonic()
        async with self._turn:
            return await asyncio.to_thread(self._answers, questions, started)

    def _answers(self, questions: Sequence[Question], started: float) -> list[Answer]:
        pairs = [_pair(question) for question in questions]
        sizes = [self.model.tokens(pair) if pair else (0, 0) for pair in pairs]
        fitting = [pair for pair, (tokens, most) in zip(pairs, sizes, strict=True) if pair and tokens <= most]
        scores = iter(self.model.scores(fitting)) if fitting else iter(())
        answers = []
        for pair, (tokens, most) in zip(pairs, sizes, strict=True):
            if pair is None:
                answers.append(Answer(failure="unparsable", detail=NO_PAIR))
            elif tokens > most:
                detail = f"the question has {tokens} tokens, more than the {most} that the model reads"
                answers.append(Answer(failure="unparsable", detail=detail))
            else:
                answers.append(self._answer(next(scores), tokens, started))
        return answers

    def _answer(self, score: float, tokens: int, started: float) -> Answer:
        call = record_call(self.pool, self.config, self.name, self.config.type, started, tokens)
        if not math.isfinite(score):
            return Answer(failure="unparsable", detail=f"the model returned {score}, which is not a score", call=call)
        verdict = ("yes" if score > 0.5 else "no") if self.config.type == "cross_encoder" else None
        return Answer(score=score, verdict=verdict, label_mass=1.0, call=call)


class CrossEncoderModel:
    """Cross-encoder: a pair in, one logit out."""

    def __init__(self, config: PoolConfig, model: Path) -> None:
        from sentence_transformers import CrossEncoder

        self.config = config
        self.encoder: CrossEncoder = CrossEncoder(str(model), **_loading(config))
        _take_literally(self.encoder.tokenizer)
        self.most = min(int(self.encoder.max_length or config.max_context), config.max_context)
        self.marks_numbers = bool(_json(model / "config.json").get(MARKED))
        self.topic = EmbeddingModel(config, resolve_model(config.topic.model)) if config.topic else None

    def tokens(self, pair: Pair) -> tuple[int, int]:
        if self.topic is not None:
            tokens, most = self.topic.tokens(pair)
            if tokens > most:
                return tokens, most
        return len(self.encoder.tokenizer(*self._read(pair), truncation=False, verbose=False)["input_ids"]), self.most

    def scores(self, pairs: Sequence[Pair]) -> list[float]:
        import torch

        logits = self.encoder.predict(
            [self._read(pair) for pair in pairs],
            batch_size=self.config.batch_size,
            show_progress_bar=False,
            activation_fn=torch.nn.Identity(),
            convert_to_numpy=False,
            convert_to_tensor=True,
        )
        scores = [activate(float(z), self.config.activation) for z in logits.float().flatten()]
        if self.topic is None or self.config.topic is None:
            return scores
        slope, middle = self.config.topic.slope, self.config.topic.middle
        cosines = [2.0 * similar - 1.0 for similar in self.topic.scores(pairs)]
        return [s * activate(slope * (cos - middle), "sigmoid") for s, cos in zip(scores, cosines, strict=True)]

    def _read(self, pair: Pair) -> Pair:
        return mark_numbers(*pair) if self.marks_numbers else pair


class EmbeddingModel:
    """Embedding model: a text in, a vector out. Embeds each distinct text once (a group shares its reference)."""

    def __init__(self, config: PoolConfig, model: Path) -> None:
        from sentence_transformers import SentenceTransformer

        self.config = config
        self.encoder: SentenceTransformer = SentenceTransformer(str(model), **_loading(config))
        _take_literally(self.encoder.tokenizer)
        self.most = min(int(self.encoder.max_seq_length or config.max_context), config.max_context)

    def tokens(self, pair: Pair) -> tuple[int, int]:
        """Return the length of the longer text, since each is embedded separately."""
        read = [len(self.encoder.tokenizer(text, truncation=False, verbose=False)["input_ids"]) for text in pair]
        return max(read), self.most

    def scores(self, pairs: Sequence[Pair]) -> list[float]:
        import torch

        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        vectors = self.encoder.encode(
            texts, batch_size=self.config.batch_size, show_progress_bar=False, convert_to_tensor=True
        )
        by_text = dict(zip(texts, torch.nn.functional.normalize(vectors.float(), dim=-1), strict=True))
        return [similarity(float(by_text[a] @ by_text[b])) for a, b in pairs]


def activate(logit: float, activation: str) -> float:
    """Map a logit to a score in [0, 1]. NaN stays NaN, which is rejected later.

    >>> activate(0.0, "sigmoid"), activate(1.07, "identity")
    (0.5, 1.0)
    """
    if math.isnan(logit):
        return math.nan
    if activation == "identity":
        return min(1.0, max(0.0, logit))
    return 1.0 / (1.0 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1.0 + math.exp(logit))


def similarity(cosine: float) -> float:
    """Map a cosine to a score in [0, 1]; clips rounding errors.

    >>> similarity(-1.0), similarity(0.5), similarity(1.0000001)
    (0.0, 0.75, 1.0)
    """
    return math.nan if math.isnan(cosine) else min(1.0, max(0.0, (1.0 + cosine) / 2.0))


def load_pair_scorer(pool: str, config: PoolConfig, model: Path, name: str) -> PairScorer:
    """Load the scorer of a `cross_encoder` or an `embedding` pool."""
    check_pair_model(pool, config, model)
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(config.engine.threads)
    kind = CrossEncoderModel if config.type == "cross_encoder" else EmbeddingModel
    return PairScorer(pool, config, kind(config, model), name)


def check_installed(pool: str, config: PoolConfig) -> None:
    """Raise BadInput with the install command if the library is missing."""
    if importlib.util.find_spec("sentence_transformers") is None:
        raise BadInput(f"pools.{pool}.type", config.type, f"needs a library that is not installed; {PAIRS_INSTALL}")


def check_pair_model(pool: str, config: PoolConfig, model: Path) -> None:
    """Check from its JSON files that the folder holds a model of the pool's type. Raises BadInput.

    A wrong type would load without an error: the library adds a random head to a model without one, and treats any
    model as an embedding.
    """
    check_installed(pool, config)
    where = f"pools.{pool}.model"
    if config.type == "embedding":
        _check_embedding(where, config.model, model)
        return
    if config.topic:
        where_topic = f"pools.{pool}.topic.model"
        try:
            _check_embedding(where_topic, config.topic.model, resolve_model(config.topic.model))
        except BadInput as error:
            raise BadInput(where_topic, config.topic.model, error.remedy) from None
    facts = _json(model / "config.json")
    if not is_cross_encoder(model):
        remedy = f"is a {(facts.get('architectures') or ['model without a head'])[0]} and no cross-encoder; give one"
        raise BadInput(where, config.model, remedy)
    labels = len(facts.get("id2label") or ()) or 2  # a config without labels means two
    if _classifies(facts) and labels != 1:
        raise BadInput(where, config.model, f"has {labels} labels; give a cross-encoder with one, a score")


def _check_embedding(where: str, name: str, model: Path) -> None:
    if not (model / "modules.json").is_file():
        remedy = "has no modules.json, so it is not an embedding model; give one that sentence-transformers saved"
        raise BadInput(where, name, remedy)


def is_cross_encoder(model: Path) -> bool:
    """Return whether the folder holds an encoder with a head for pairs, from its JSON files alone."""
    saved_as = _json(model / "config_sentence_transformers.json").get("model_type")
    return saved_as == "CrossEncoder" or _classifies(_json(model / "config.json"))


def _classifies(facts: Mapping[str, Any]) -> bool:
    return any(str(name).endswith("ForSequenceClassification") for name in facts.get("architectures") or ())


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _take_literally(tokenizer: Any) -> None:
    """Disable special tokens in texts: "[SEP]" in a text is five characters and must not split it."""
    tokenizer.split_special_tokens = True


def _loading(config: PoolConfig) -> dict[str, Any]:
    return {
        "device": "cuda" if config.engine.num_gpus else "cpu",
        "model_kwargs": {"dtype": config.dtype},
        "local_files_only": True,
    }


def _pair(question: Question) -> Pair | None:
    if question.is_written:
        return None
    a, b = question.variables.get("statement_a"), question.variables.get("statement_b")
    if not isinstance(a, str) or not isinstance(b, str):
        return None
    # A tokenizer raises an error for a lone surrogate, which would fail all pairs of the call.
    return encodable(a), encodable(b)
