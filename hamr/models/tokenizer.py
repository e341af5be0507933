"""Lightweight tokenizer that loads in milliseconds: the `tokenizers` core and a Jinja chat template, without torch.

It spares the router, the driver and the scorers seconds of imports. `tests/unit/models/test_tokenizer.py` checks that
its output equals transformers'.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hamr.errors import BadInput
from hamr.files import encodable

if TYPE_CHECKING:
    import jinja2
    import tokenizers

SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer:
    """Converts text to ids and back. `encode` adds no special tokens; the chat template contains its own."""

    def __init__(
        self, core: tokenizers.Tokenizer, *, eos_token: str, chat_template: str | None, special: Mapping[str, str]
    ) -> None:
        eos_id = core.token_to_id(eos_token)
        if eos_id is None:
            raise BadInput("model.path", eos_token, "the tokenizer's vocabulary lacks its own eos_token")
        self.core = core
        self.eos_id: int = eos_id
        self.chat_template = chat_template
        self._special = dict(special)

    def encode(self, text: str) -> list[int]:
        """Return the token ids. A lone surrogate counts as "?"; the library raises an error for it."""
        return self.core.encode(encodable(text), add_special_tokens=False).ids

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """Return `encode`'s ids with their positions: (id, start, end), in characters.

        All tokens of a character that needs several have the same position.
        """
        encoded = self.core.encode(text, add_special_tokens=False)
        return [(token, *span) for token, span in zip(encoded.ids, encoded.offsets, strict=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens."""
        return self.core.decode(list(ids), skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> Iterator[tuple[bool, str]]:
        """Yield (whether the tokens are special, their text) of all tokens, special ones included."""
        for special, run in groupby(ids, key=self.special_ids.__contains__):
            yield special, self.core.decode(list(run), skip_special_tokens=False)

    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        thinks: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Fill the chat template with `messages` ({"role", "content"}). Raises BadInput if the model has none.

        Messages and `tools` may be those of an OpenAI request, in which the arguments of a call are JSON text. With
        `thinks=False` the model is to answer without reasoning; templates such as Qwen3's then write an empty thought.
        """
        import jinja2

        given = {**self._special, **({} if thinks else {"enable_thinking": False})}
        try:
            return self._template.render(
                messages=[_with_parsed_arguments(m) for m in messages],
                add_generation_prompt=add_generation_prompt,
                tools=list(tools) or None,
                **given,
            )
        except jinja2.TemplateSyntaxError as error:
            raise BadInput("model.path", str(error), "the model's chat template is not valid; correct it") from error
        except (TypeError, jinja2.UndefinedError) as error:
            remedy = "the model's chat template cannot write these messages and tools; give every tool a description"
            raise BadInput("messages", str(error), remedy) from error

    def chat_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        thinks: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        return self.encode(self.chat_text(messages, add_generation_prompt, thinks=thinks, tools=tools))

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def __len__(self) -> int:
        return self.core.get_vocab_size()

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Tokens that the text of a turn must not contain: ends of turns, roles, padding."""
        return frozenset(i for i, token in self.core.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def _template(self) -> jinja2.Template:
        if self.chat_template is None:
            raise BadInput("model.path", "chat_template", "the model has no chat template; give an instruct model")
        return _environment().from_string(self.chat_template)


def _with_parsed_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose calls have objects as arguments, which is what chat templates expect."""
    if "tool_calls" not in message:
        return dict(message)
    calls = [
        call | {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


@lru_cache(maxsize=8)
def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load the tokenizer of a model folder, once per process and folder.

    A folder without `tokenizer.json` is converted by transformers once (slow, imports torch).
    """
    import tokenizers

    folder = Path(path)
    if not (folder / "tokenizer_config.json").is_file():
        raise BadInput("model.path", str(folder), "the folder has no tokenizer_config.json; give a whole model folder")
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    file = folder / "tokenizer.json"
    core = tokenizers.Tokenizer.from_file(str(file)) if file.is_file() else _convert_tokenizer(folder)
    core.no_padding()
    core.no_truncation()
    special = {name: _token_text(settings[name]) for name in SPECIAL_NAMES if settings.get(name)}
    if "eos_token" not in special:
        raise BadInput("model.path", str(folder), "tokenizer_config.json names no eos_token; add it")
    return Tokenizer(
        core, eos_token=special["eos_token"], chat_template=_chat_template(folder, settings), special=special
    )


def _convert_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    if not tokenizer.is_fast:
        raise BadInput("model.path", str(folder), "its tokenizer has no fast version; save a tokenizer.json next to it")
    return tokenizer.backend_tokenizer


def _token_text(value: str | Mapping[str, Any]) -> str:
    """Return the text of a special token, which is written either as text or as {"content": text, ...}."""
    return value if isinstance(value, str) else str(value["content"])


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the template next to the tokenizer, or inside its settings (one, or a list of named ones)."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    """Return the Jinja environment that published chat templates expect, sandboxed as for any foreign code."""
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the assistant's text for training with transformers, and shows it unchanged."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    # Jinja's own filter escapes HTML characters, which no chat template was trained with.
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> NoReturn:
    raise BadInput("messages", message, "the model's chat template rejects these messages; change their order or roles")
