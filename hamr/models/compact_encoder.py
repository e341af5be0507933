"""Bundled model `compact-encoder`: a small cross-encoder of which only the token embeddings are pretrained.

It is a two-layer BERT with the WordPiece vocabulary of `all-minilm-l6-v2`, but none of its weights. Its embeddings are
those of SmolLM2-135M, projected (`compact_model.word_vectors`); all other weights are random. After about ten thousand
labelled pairs it is a cheap reranker for one service task. Without training it carries no signal.
"""

from __future__ import annotations

from pathlib import Path

from hamr.models.compact_model import word_vectors

RECIPE_VERSION = "2"
HIDDEN, LAYERS, HEADS, FEED_FORWARD, CONTEXT = 128, 2, 2, 256, 256


def build_compact_encoder(vocabulary: Path, pretrained: Path, out: Path) -> None:
    """Write the model to `out`: tokenizer of the model at `vocabulary`, embeddings of the one at `pretrained`."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(vocabulary, trust_remote_code=False)
    tokenizer.save_pretrained(out)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=FEED_FORWARD,
        max_position_embeddings=CONTEXT,
        num_labels=1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertForSequenceClassification(config).to(torch.float32)
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    words = [piece.removeprefix("##") if piece.startswith("##") else f" {piece}" for piece in pieces]
    meaning = word_vectors(pretrained, words, HIDDEN)
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings.copy_(meaning * (embeddings.std() / meaning.std()))
    model.save_pretrained(out)
