"""The bundled models, read back by transformers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hamr.errors import BadInput
from hamr.models.bundled import describe, resolve_model
from hamr.models.tokenizer import load_tokenizer
from hamr.trainer.scorer_training import keep_layers

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

CHAT = [
    {"role": "system", "content": "You are polite.\n\nKeep it short."},
    {"role": "user", "content": "  Hi, ünïcode & <tags>! My bill is $12.50 too high… "},
    {"role": "assistant", "content": "Sorry to hear that."},
    {"role": "user", "content": "And now?"},
]


@pytest.mark.parametrize("name", ["tiny", pytest.param("compact", marks=pytest.mark.deep), "smollm2-135m"])
def test_light_tokenizer_equals_transformers(name: str) -> None:
    from transformers import AutoTokenizer

    path = resolve_model(name)
    light, full = load_tokenizer(path), AutoTokenizer.from_pretrained(path)
    for messages in (CHAT, CHAT[1:], CHAT[:2]):
        for prompt in (True, False):
            expected = full.apply_chat_template(
                messages, add_generation_prompt=prompt, tokenize=True, return_dict=False
            )
            assert light.chat_ids(messages, add_generation_prompt=prompt) == expected
    ids = full.encode(CHAT[1]["content"], add_special_tokens=False)
    assert light.encode(CHAT[1]["content"]) == ids
    assert light.decode([*ids, full.eos_token_id]) == full.decode([*ids, full.eos_token_id], skip_special_tokens=True)
    assert light.eos_id == full.eos_token_id


def test_tiny_has_the_documented_size_and_tokens(tiny: Path) -> None:
    said = describe(tiny)
    assert 500_000 < said["parameters"] < 2_000_000
    assert (said["architecture"], said["context"]) == ("Qwen3ForCausalLM", 4096)
    tokenizer = load_tokenizer(tiny)
    labels = [f"{space}{word}" for space in ("", " ") for word in ("yes", "no", "Yes", "Part", "No")]
    ids = [tokenizer.encode(label) for label in labels]
    assert {len(each) for each in ids} == {1} and len({each[0] for each in ids}) == 10
    assert tokenizer.decode(tokenizer.encode('{"name": "été"} ☎')) == '{"name": "été"} ☎'
    assert len(tokenizer) == said["vocabulary"]


def embeddings_of(folder: Path, words: list[str]) -> Any:
    """Return the normalised token embeddings of words that are one token each."""
    import torch
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    return torch.nn.functional.normalize(rows[[tokenizer.token_to_id(word) for word in words]], dim=1)


def test_compact_vocabulary_is_limited_to_the_dialogues(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from hamr.config.schema import SageDataConfig
    from hamr.data.actions import render_action
    from hamr.data.rendering import policy_messages
    from hamr.data.sage_samples import generate_samples
    from hamr.models.compact_model import build_compact

    path = resolve_model("compact")
    said = describe(path)
    assert 500_000 < said["parameters"] < 5_000_000 and said["architecture"] == "Qwen3ForCausalLM"
    tokenizer = load_tokenizer(path)
    other = generate_samples(SageDataConfig(train=60, validation=6, test=6, procedure=False, seed=99)).train
    texts = [m["content"] for s in other for m in policy_messages(s)[1:]]
    numbers = embeddings_of(path, ["60", "70", "120", "170"])
    cosines = numbers @ numbers.T
    assert cosines.fill_diagonal_(0).max() < 0.75, "close numbers cannot be copied"
    assert cosines.sum() / 12 > 0.2, "numbers share a direction"
    texts += [render_action(r.action) for s in other for r in s.references]
    assert sum(len(tokenizer.encode(t)) for t in texts) < 1.6 * sum(len(t.split()) for t in texts)
    assert [tokenizer.decode(tokenizer.encode(t)) for t in texts] == texts
    build_compact(resolve_model("smollm2-135m"), tmp_path)
    for file in ("tokenizer.json", "chat_template.jinja"):
        same = (tmp_path / file).read_bytes() == (path / file).read_bytes()
        assert same, f"built twice, {file} is not the same"
    # LAPACK's rounding depends on the number of threads, and the first build may be an actor's.
    first, again = (load_file(folder / "model.safetensors") for folder in (path, tmp_path))
    torch.testing.assert_close(again, first, atol=1e-3, rtol=0)


def test_word_vectors_of_synonyms_are_close() -> None:
    from torch.nn.functional import cosine_similarity

    from hamr.models.compact_model import word_vectors

    words = [" cancel", " terminate", " internet", " web", " angry", " furious"]
    padding = [
        f" {word}"
        for word in [
            "the",
            "a",
            "of",
            "to",
            "my",
            "your",
            "is",
            "are",
            "and",
            "or",
            "not",
            "please",
            "now",
            "today",
            "fee",
            "plan",
            "data",
            "call",
        ]
    ]
    vectors = word_vectors(resolve_model("smollm2-135m"), words + padding, 16)
    for i in range(0, len(words), 2):
        near = cosine_similarity(vectors[i], vectors[i + 1], dim=0)
        far = [cosine_similarity(vectors[i], vectors[j], dim=0) for j in range(len(words)) if j // 2 != i // 2]
        assert near > max(far), words[i]


@pytest.mark.deep
def test_tiny_build_is_reproducible(tiny: Path, tmp_path: Path) -> None:
    """Two concurrent builds produce one complete folder with the same bytes as any other build."""
    code = "from hamr.models.bundled import resolve_model; print(resolve_model('tiny'))"
    env = os.environ | {"HAMR_CACHE": str(tmp_path)}
    builders = [subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) for _ in range(2)]
    said = {builder.communicate(timeout=200)[0].decode().splitlines()[-1] for builder in builders}
    assert len(said) == 1
    [built] = [Path(line) for line in said]
    assert [p for p in built.parent.iterdir() if p.is_dir()] == [built]
    for file in ("model.safetensors", "tokenizer.json", "chat_template.jinja"):
        assert (built / file).read_bytes() == (tiny / file).read_bytes()


def test_bundled_smollm2_answers_a_question() -> None:
    """The conversion keeps weights, head and chat template: greedy decoding answers a simple question."""
    import torch
    from transformers import AutoModelForCausalLM

    path = resolve_model("smollm2-135m")
    assert describe(path)["parameters"] == 134_515_008
    tokenizer = load_tokenizer(path)
    prompt = torch.tensor([tokenizer.chat_ids([{"role": "user", "content": "What is the capital of France?"}])])
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        answer = model.generate(prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt.shape[1] :].tolist())


def test_model_that_keeps_two_layers_equals_the_model_without_the_others(tiny: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    cut = tmp_path / "cut"
    shutil.copytree(tiny, cut)
    keep_layers(cut, 2)
    assert describe(cut)["layers"] == 2
    whole, small = (AutoModelForCausalLM.from_pretrained(p, dtype=torch.float32) for p in (tiny, cut))
    whole.model.layers = whole.model.layers[:2]
    ids = torch.tensor([load_tokenizer(cut).chat_ids(CHAT)])
    with torch.no_grad():
        torch.testing.assert_close(small(ids).logits, whole(ids, use_cache=False).logits)
    with pytest.raises(BadInput, match="2 decoder layers"):
        keep_layers(cut, 3)
