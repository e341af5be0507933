"""The bundled model `compact-encoder`: a cross-encoder of random weights, small enough to be trained from nothing.

Two layers of a BERT with the WordPiece vocabulary of `all-minilm-l6-v2`, of which it shares no weight. After some ten
thousand labelled pairs it is a cheap reranker for one service task; as it is, it carries no signal.
"""

from __future__ import annotations

from pathlib import Path

RECIPE_VERSION = "1"
HIDDEN, LAYERS, HEADS, FEED_FORWARD, CONTEXT = 128, 2, 2, 256, 256


def build_compact_encoder(vocabulary: Path, out: Path) -> None:
    """Write the model into `out`, with the tokenizer of the model at `vocabulary`."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(vocabulary)
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
        BertForSequenceClassification(config).to(torch.float32).save_pretrained(out)
