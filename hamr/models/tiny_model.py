"""Bundled model `tiny`: a random Qwen3 of about a million parameters with a byte-level BPE tokenizer.

It has the file layout, chat template and code paths of a real model, but is built in seconds without a download. The
tests and `experiment=smoke` use it. Both parts are deterministic: the tokenizer is trained on the words below, the
weights come from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

RECIPE_VERSION = "1"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VERDICTS = ("yes", "no", "Yes", "Part", "No")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = """
a able about above accept access account action active activate add address after again agent agree all allow already
also amount an and another answer any anything apologise appear apply appointment approve are area arrange arrive as
ask assist at available away back balance bank basic be because been before begin below benefit best better between
bill book both broken but buy by call cancel cannot card care carrier case change charge cheap check choose city claim
clear close code collect come common company compare complain complete confirm connect consider consistent contact
content continue contract conversation correct cost could country cover create credit current customer damage data
date day deal decide decline deduct delay deliver delivery department describe detail device did different difference
direct discount discuss do document does dollar done door double down due during each early easy either email empty
end enough ensure enter error escalate even evening every exact example except exchange expect expensive expire
explain express extend extra fail false fast fee few field file find fine first five fix follow for form forward four
free friend from full function further future general get give glad go goal good goods grant great guarantee had hand
happen has have he hear hello help her here high him history hold holiday home hope hour house how however if immediate
important in include incorrect information inform inquire inside instead instruction interest into invoice is issue it
item its job join just keep kind know large last late later lead leave left less let level like limit line link list
little live local long look lose lost low made mail main make manage many match matter maximum may me mean meet member
message method minimum minute miss mobile moment money month more morning most move much must my name nature near need
network never new next night nine none normal not note nothing notice now number object of off offer office often ok
old on once one online only open operate option or order original other our out outside over own package page paid
parameter parcel part partly pass password past pay payment penalty per period permit person phone pick place plan
please point policy polite possible post prefer present previous price print problem procedure process product promise
proper provide public purchase purpose put quality question quick rate reach read ready real reason receive recent
record reduce reference refund refuse regard register regret reject relate remain remember remind remove renew repair
repeat replace reply report request require reserve resolve respond response rest result retain return reveal review
reward right risk room rule safe same satisfy save say schedule score search second secure see select sell send
sentence service session set seven several share she ship shipment shop short should show sign similar simple since
single site six small so solution solve some soon sorry source speak special speed standard start state statement
station status stay step still stop store street strong subject submit subscribe such suggest suit supply support sure
switch system take talk tariff tax team technical telecom telephone tell ten term test than thank that the their them
then there these they thing think third this those though three through ticket till time title to today together told
tomorrow tone too tool top total toward track trade train transfer travel trial true trust try turn two type under
understand unit until up update upgrade upon urgent use user utility valid value verify version very visit voice wait
want warn warranty was way we wednesday week weekend welcome well went were what when where whether which while who
whole why wide will willing window wish with within without wonder word work world worry would write wrong year
yesterday yet you your zero
"""
JSON_PIECES = (
    '{"name": "", "parameters": {"": ""}}\n{"type": "object", "properties": {}, "required": []}\n[0, 1, 2, 3]\n'
)


def build_tiny(out: Path) -> None:
    """Write the model to `out`: bf16 safetensors, `config.json`, tokenizer and chat template."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = _train_tokenizer()
    tokenizer.save_pretrained(out)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(out)


def _train_tokenizer():  # type: ignore[no-untyped-def]  # transformers is imported only here
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
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
        model_max_length=4096,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _corpus() -> Iterator[str]:
    """Yield every word at a line's start and after a space, in lower case and capitalised.

    The verdict labels are the most frequent, so that each of them becomes one token.
    """
    words = WORDS.split()
    for _ in range(3):
        for word in words:
            yield f"{word} {word}"
            yield f"{word.capitalize()} {word.capitalize()}"
        yield JSON_PIECES
    for _ in range(50):
        for verdict in VERDICTS:
            yield f"{verdict} {verdict}"
