"""Bundled model `compact`: a Qwen3 of less than a million parameters with the vocabulary of one service task.

It learns everything in a warm-up, except for the meaning of words: its token embeddings are those of SmolLM2-135M,
projected onto their first principal components, so that words unseen in training are near related seen ones. All other
weights are random. Both parts are deterministic.

The random weights follow "Mimetic Initialization of Self-Attention Layers" (Trockman and Kolter, 2023): an attention
head initially copies what it attends to, because names and amounts of a ticket have to be copied into answers. For the
same reason a number is one token, independent of the preceding text, and its embedding differs from other numbers'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hamr.config.schema import SageDataConfig
from hamr.data.actions import render_action
from hamr.data.rendering import policy_messages
from hamr.data.sage_samples import generate_samples
from hamr.models.tiny_model import byte_level_tokenizer, qwen3

RECIPE_VERSION = "6"
VOCABULARY = 1536
CONTEXT = 1024
HIDDEN, LAYERS, HEADS, HEAD_DIM, FEED_FORWARD = 128, 3, 4, 32, 384
COPY = 0.15
"""Scale of the output projection, the transpose of the orthonormal value projection."""
LIKENESS = 0.5
"""Correlation of key and query projections: tokens attend to tokens like themselves."""
NUMBERNESS = 0.6
"""Share of the direction that all numbers have in common. The rest is a number's own direction."""
CORPUS = SageDataConfig(train=1500, validation=600, test=600, seed=0, procedure=False)
"""Data of the vocabulary. It covers the words of all splits, as a pretrained model's vocabulary would."""


def build_compact(pretrained: Path, out: Path) -> None:
    """Write the model to `out`: float32 safetensors, `config.json`, tokenizer and chat template.

    Args:
        pretrained: Folder of a model with a tokenizer and `model.embed_tokens.weight`.
    """
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = byte_level_tokenizer(_corpus(), VOCABULARY, context=CONTEXT, whole_numbers=True)
    tokenizer.save_pretrained(out)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = qwen3(
            tokenizer,
            hidden_size=HIDDEN,
            intermediate_size=FEED_FORWARD,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            head_dim=HEAD_DIM,
            initializer_range=HIDDEN**-0.5,
            max_position_embeddings=CONTEXT,
        )
        with torch.no_grad():
            for layer in model.model.layers:
                _let_copy(layer)
            embeddings = model.get_input_embeddings().weight
            words = [tokenizer.decode([token]) for token in range(len(tokenizer))]
            meaning = word_vectors(pretrained, words, HIDDEN)
            embeddings.copy_(_with_distinct_numbers(meaning * (embeddings.std() / meaning.std()), words))
    model.save_pretrained(out)


def _let_copy(layer: Any) -> None:
    """Set the mimetic weights of one decoder layer, in place; its feed-forward part starts small."""
    import torch

    attention = layer.self_attn
    value = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN))[0]
    attention.v_proj.weight.copy_(value)
    attention.o_proj.weight.copy_(COPY * value.T)
    query = attention.q_proj.weight
    noise = torch.randn_like(query) * query.std()
    attention.k_proj.weight.copy_(LIKENESS * query + (1 - LIKENESS**2) ** 0.5 * noise)
    layer.mlp.down_proj.weight.mul_(0.3 * (2 * LAYERS) ** -0.5 * (HIDDEN / FEED_FORWARD) ** 0.5)


def _with_distinct_numbers(rows: Any, words: Sequence[str]) -> Any:
    """Give every number a direction of its own, next to the mean direction of all numbers.

    Pretrained embeddings of two numbers have a cosine of 0.99, too near for an amount to be copied from a ticket.
    """
    import torch
    from torch.nn.functional import normalize

    numbers = [i for i, word in enumerate(words) if word.strip().isdecimal()]
    own = normalize(torch.randn(len(numbers), rows.shape[1]), dim=1)
    shared = normalize(rows[numbers].mean(0), dim=0)
    length = rows[numbers].norm(dim=1, keepdim=True)
    rows = rows.clone()
    rows[numbers] = length * (NUMBERNESS * shared + (1 - NUMBERNESS**2) ** 0.5 * own)
    return rows


def word_vectors(pretrained: Path, words: Sequence[str], size: int) -> Any:
    """Return a [words, size] tensor of word embeddings.

    Each word's embedding is its mean embedding in the pretrained model, centred, in the basis of the words' first
    `size` principal components.
    """
    import torch
    from safetensors import safe_open
    from tokenizers import Tokenizer

    with safe_open(pretrained / "model.safetensors", framework="pt") as file:
        table = file.get_tensor("model.embed_tokens.weight").float()
    tokenizer = Tokenizer.from_file(str(pretrained / "tokenizer.json"))
    pieces = [tokenizer.encode(word, add_special_tokens=False).ids for word in words]
    rows = torch.stack([table[ids].mean(0) if ids else table.mean(0) for ids in pieces])
    rows = rows - rows.mean(0)
    _, _, basis = torch.linalg.svd(rows, full_matrices=False)
    return rows @ basis[:size].T


def _corpus() -> Iterator[str]:
    """Yield the turns of the prompts, and the references, of generated samples."""
    splits = generate_samples(CORPUS)
    for sample in (*splits.train, *splits.validation, *splits.test):
        yield from (f"{turn['role']}\n{turn['content']}" for turn in policy_messages(sample))
        yield from (f"assistant\n{render_action(reference.action)}" for reference in sample.references)
