"""The bundled model `compact`: a Qwen3 of about a million random weights whose tokenizer knows one service task.

It speaks no language until a warm-up has taught it one. Its vocabulary comes from generated dialogues, so that
almost every word of a prompt is one token. Both parts are deterministic.

The random weights follow "Mimetic Initialization of Self-Attention Layers" (Trockman and Kolter, 2023): an attention
head starts as one that copies what it attends to, since names and amounts of a ticket have to be copied into answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hamr.backends.tiny_model import CHAT_TEMPLATE, SPECIAL_TOKENS
from hamr.config.schema import SageDataConfig
from hamr.data.actions import render_action
from hamr.data.rendering import policy_messages
from hamr.data.sage_samples import generated

RECIPE_VERSION = "3"
VOCABULARY = 1536
CONTEXT = 1024
HIDDEN, LAYERS, HEADS, HEAD_DIM, FEED_FORWARD = 128, 3, 4, 32, 384
COPY = 0.15
"""Scale of the output projection, the transpose of the orthonormal value projection."""
LIKENESS = 0.5
"""Correlation of key and query projections: tokens attend to tokens like themselves."""
CORPUS = SageDataConfig(train=1500, validation=1, test=1, seed=0, procedure=False)


def build_compact(out: Path) -> None:
    """Write the model into `out`: float32 safetensors, `config.json`, tokenizer and chat template."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = _train_tokenizer()
    tokenizer.save_pretrained(out)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=FEED_FORWARD,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HEAD_DIM,
        initializer_range=HIDDEN**-0.5,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config).to(torch.float32)
        with torch.no_grad():
            for layer in model.model.layers:
                _let_copy(layer)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(out)


def _let_copy(layer: Any) -> None:
    """Mimetic weights for one decoder layer, in place; its feed-forward part starts small."""
    import torch

    attention = layer.self_attn
    value = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN))[0]
    attention.v_proj.weight.copy_(value)
    attention.o_proj.weight.copy_(COPY * value.T)
    query = attention.q_proj.weight
    noise = torch.randn_like(query) * query.std()
    attention.k_proj.weight.copy_(LIKENESS * query + (1 - LIKENESS**2) ** 0.5 * noise)
    layer.mlp.down_proj.weight.mul_(0.3 * (2 * LAYERS) ** -0.5 * (HIDDEN / FEED_FORWARD) ** 0.5)


def _train_tokenizer():  # type: ignore[no-untyped-def]  # transformers is imported only here
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_corpus(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=CONTEXT,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _corpus() -> Iterator[str]:
    """Prompts and references of generated training samples; what all prompts share, once."""
    samples = generated(CORPUS).train
    for sample in samples:
        system, *turns = policy_messages(sample)
        yield system["content"] if sample is samples[0] else system["content"].rpartition("\n")[2]
        yield from (f"assistant\n{turn['content']}" for turn in turns)
        yield from (render_action(reference.action) for reference in sample.references)
