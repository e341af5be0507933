"""The light tokenizer on a small, readable vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from hamr.errors import BadInput
from hamr.models.tokenizer import load_tokenizer

TEMPLATE = (
    "{% for m in messages %}\n<s>{{ m.role }} {{ m.content }}</s>\n{% endfor %}\n"
    "{% if add_generation_prompt %}\n<s>agent\n{% endif %}\n"
)


def folder_with(path: Path, settings: dict[str, Any], template: str | None = None) -> Path:
    words = ["<s>", "</s>", "customer", "agent", "hello", "yes", "no", "?"]
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="?"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    core.add_special_tokens(["<s>", "</s>"])
    core.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return path


SETTINGS = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}}


def test_encode_adds_no_special_tokens_and_decode_drops_them(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, SETTINGS))
    assert tokenizer.encode("hello no") == [4, 6]
    assert tokenizer.decode([0, 4, 6, 1]) == "hello no"
    assert tokenizer.encode("hello \ud83d no") == [4, 7, 6], "JSON can contain half a surrogate pair"
    assert (tokenizer.eos_id, tokenizer.count("yes yes no"), len(tokenizer)) == (1, 3, 8)


def test_chat_follows_the_template(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, SETTINGS, TEMPLATE))
    messages = [{"role": "customer", "content": "hello"}]
    assert tokenizer.chat_ids(messages) == [0, 2, 4, 1, 0, 3]
    assert tokenizer.chat_ids(messages, add_generation_prompt=False) == [0, 2, 4, 1]


def test_generation_marks_of_a_template_are_not_shown(tmp_path: Path) -> None:
    marked = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    messages = [{"role": "customer", "content": "hello"}, {"role": "agent", "content": "yes"}]
    assert load_tokenizer(folder_with(tmp_path, SETTINGS, marked)).chat_text(messages) == "helloyes"


def test_invalid_template_is_reported_in_one_line(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, SETTINGS, "{% nonsense %}"))
    with pytest.raises(BadInput, match=r"model.path: .*nonsense.*the model's chat template is not valid"):
        tokenizer.chat_text([{"role": "customer", "content": "hello"}])


def test_thinking_is_disabled_if_the_template_supports_it(tmp_path: Path) -> None:
    """With Qwen3's template, the model would otherwise open a thought at the position of the label."""
    switch = "{% if enable_thinking is defined and enable_thinking is false %}no{% endif %}"
    tokenizer = load_tokenizer(folder_with(tmp_path, SETTINGS, TEMPLATE + switch))
    messages = [{"role": "customer", "content": "hello"}]
    assert tokenizer.chat_ids(messages, thinks=False) == [*tokenizer.chat_ids(messages), 6]


@pytest.mark.parametrize(
    "inside", ["{{ bos_token }}yes", [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]]
)
def test_template_may_be_in_the_settings(tmp_path: Path, inside: Any) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, SETTINGS | {"chat_template": inside}))
    assert tokenizer.chat_ids([])[-1] == 5


def test_template_cannot_leave_its_sandbox(tmp_path: Path) -> None:
    import jinja2

    escape = "{{ messages.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(jinja2.exceptions.SecurityError):
        load_tokenizer(folder_with(tmp_path, SETTINGS, escape)).chat_ids([])


def test_error_raised_by_a_template_is_reported(tmp_path: Path) -> None:
    refusing = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(BadInput, match="roles must alternate"):
        load_tokenizer(folder_with(tmp_path, SETTINGS, refusing)).chat_ids([])


def test_json_in_templates_is_not_escaped_for_html(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, SETTINGS, "{{ messages[0] | tojson }}"))
    assert tokenizer.chat_text([{"role": "é", "content": "a<b"}]) == '{"role": "é", "content": "a<b"}'


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({}, "no eos_token"), ({"eos_token": "<gone>"}, "lacks its own eos_token")],
)
def test_invalid_folders_are_rejected(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        load_tokenizer(folder_with(tmp_path, settings))


def test_missing_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no tokenizer_config\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(BadInput, match="no chat template"):
        load_tokenizer(folder_with(tmp_path, SETTINGS)).chat_ids([])


def test_spans_are_the_tokens_with_their_characters(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, SETTINGS))
    assert tokenizer.spans("hello no") == [(4, 0, 5), (6, 6, 8)]
    assert tokenizer.special_ids == {0, 1}
