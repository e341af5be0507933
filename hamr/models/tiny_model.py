"""Bundled model `tiny`: a random Qwen3 of about a million parameters with a byte-level BPE tokenizer.

It has the file layout, chat template and code paths of a real model, but is built in seconds without a download. The
tests and `experiment=smoke` use it. Both parts are deterministic: the tokenizer is trained on the words in
tiny_words.txt, the weights come from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECIPE_VERSION = "1"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VERDICTS = ("yes", "no", "Yes", "Part", "No")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
JSON_PIECES = (
    '{"name": "", "parameters": {"": ""}}\n{"type": "object", "properties": {}, "required": []}\n[0, 1, 2, 3]\n'
)


def build_tiny(out: Path) -> None:
    """Write the model to `out`: bf16 safetensors, `config.json`, tokenizer and chat template."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = byte_level_tokenizer(_corpus(), 4096, context=4096)
    tokenizer.save_pretrained(out)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = qwen3(
            tokenizer,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=4096,
        )
    model.to(torch.bfloat16).save_pretrained(out)


def qwen3(tokenizer: Any, **settings: Any) -> Any:
    """Return a Qwen3 for this tokenizer with tied embeddings and random weights."""
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen3Config(vocab_size=len(tokenizer), tie_word_embeddings=True, bos_token_id=None, **special, **settings)
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(**special)
    return model


def byte_level_tokenizer(corpus: Iterator[str], size: int, *, context: int, whole_numbers: bool = False) -> Any:
    """Return a byte-level BPE tokenizer of `size` tokens, trained on `corpus`.

    `whole_numbers`: a number is never part of a longer token.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    split: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if whole_numbers:
        split = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), split])
    core.pre_tokenizer = split
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(corpus, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=context,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _corpus() -> Iterator[str]:
    """Yield every word at a line's start and after a space, in lower case and capitalised.

    The verdict labels are the most frequent, so that each of them becomes one token.
    """
    words = Path(__file__).with_name("tiny_words.txt").read_text(encoding="utf-8").split()
    for _ in range(3):
        for word in words:
            yield f"{word} {word}"
            yield f"{word.capitalize()} {word.capitalize()}"
        yield JSON_PIECES
    for _ in range(50):
        for verdict in VERDICTS:
            yield f"{verdict} {verdict}"
