"""The work that both sides of the step-time benchmark do, and the pipe that they are driven through.

Standard library only (and `tokenizers` where prompts are cut to length), because it is imported in two
environments that share nothing else.

End of sequence is suppressed by construction: `prepare_model` copies a model folder and declares a token as
its end of sequence that lies one past the embedding's last row. The model can never sample it, so every
response runs to its full length on both sides, at no cost in the sampler of either.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

NEVER = "<|never|>"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Size of one step. Lengths in tokens; `samples` per prompt."""

    prompts: int
    prompt_tokens: int
    samples: int
    new_tokens: int

    @property
    def responses(self) -> int:
        return self.prompts * self.samples


SHAPES = {
    "short": Shape(prompts=8, prompt_tokens=100, samples=4, new_tokens=64),
    "service": Shape(prompts=4, prompt_tokens=400, samples=16, new_tokens=64),
}


@dataclass(frozen=True, kw_only=True)
class Work:
    """Everything a side needs to know. `prompts_file` holds a list of {"text", "ids"}: step s uses the
    entries [s * shape.prompts, (s + 1) * shape.prompts). `threads` is OpenMP threads of each phase."""

    model: str
    prompts_file: str
    shape: Shape
    threads: int = 2
    learning_rate: float = 1e-6
    clip_low: float = 0.2
    clip_high: float = 0.28
    entropy_coef: float = 3.5e-4
    options: dict[str, Any]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Work:
        raw = json.loads(text)
        return cls(**{**raw, "shape": Shape(**raw["shape"])})

    def prompts(self, step: int) -> list[dict[str, Any]]:
        entries = json.loads(Path(self.prompts_file).read_text())
        n = self.shape.prompts
        return entries[step * n : (step + 1) * n]


def reward(text: str) -> float:
    """A cheap Python reward that differs between any two texts that differ: share of distinct words, plus a
    little for length in characters. In [0, 1.01]; an empty text gets 0."""
    words = text.split()
    return len(set(words)) / max(1, len(words)) + 1e-6 * min(len(text), 10_000)


# --- model and prompts -------------------------------------------------------------------------


def prepare_model(source: Path, target: Path) -> Path:
    """Copies a Hugging Face folder, with an end-of-sequence token that cannot be sampled. Idempotent."""
    done = target / ".prepared"
    if done.exists() and done.read_text() == str(source.resolve()):
        return target
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix == ".safetensors":
            (target / file.name).symlink_to(file.resolve())
        elif file.is_file():
            shutil.copy(file, target / file.name)
    config = json.loads((target / "config.json").read_text())
    unreachable = config["vocab_size"]
    for name in ("config.json", "generation_config.json"):
        if (target / name).exists():
            _edit(target / name, lambda c: {**c, "eos_token_id": unreachable})
    tokenizer = json.loads((target / "tokenizer.json").read_text())
    if (used := _largest_id(tokenizer)) >= unreachable:
        raise SystemExit(
            f"{source}: the tokenizer uses id {used}, past the embedding of {unreachable} rows; use another model"
        )
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"].append({"id": unreachable, "content": NEVER, **flags})
    # Ids of added tokens are given out in order by the library, so the vocabulary is filled up to the last row.
    tokenizer["model"]["vocab"].update({f"<|fill{i}|>": i for i in range(used + 1, unreachable)})
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    _edit(target / "tokenizer_config.json", lambda c: {**c, "eos_token": NEVER})
    if (target / "special_tokens_map.json").exists():
        _edit(target / "special_tokens_map.json", lambda c: {**c, "eos_token": NEVER})
    done.write_text(str(source.resolve()))
    return target


def _edit(file: Path, change: Any) -> None:
    file.write_text(json.dumps(change(json.loads(file.read_text())), indent=1))


def _largest_id(tokenizer: dict[str, Any]) -> int:
    return max([*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])])


_OPENERS = ("Customer: ", "Agent: ", "Note: ", "Policy: ")
_SUBJECTS = ("my phone plan", "the last bill", "a data package", "the refund", "your roaming offer", "the contract")
_VERBS = ("was changed", "does not work", "should be cancelled", "costs too much", "has expired", "is still pending")
_TAILS = ("since Monday.", "and nobody called back.", "although I paid.", "so please help me.", "as the terms say.")


def make_prompts(model: Path, shape: Shape, steps: int, seed: int) -> list[dict[str, Any]]:
    """Distinct service-like prompts of exactly `shape.prompt_tokens` tokens that survive a round trip through text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = _texts(random.Random(seed), 20 * shape.prompt_tokens)
    made: list[dict[str, Any]] = []
    for text in texts:
        if len(made) == steps * shape.prompts:
            break
        ids = tokenizer.encode(text, add_special_tokens=False).ids[: shape.prompt_tokens]
        cut = tokenizer.decode(ids, skip_special_tokens=False)
        if len(ids) == shape.prompt_tokens and tokenizer.encode(cut, add_special_tokens=False).ids == ids:
            made.append({"text": cut, "ids": ids})
    return made


def _texts(rng: random.Random, characters: int, attempts: int = 100_000) -> Iterator[str]:
    for _ in range(attempts):
        parts: list[str] = [f"Ticket {rng.randrange(10**6)}."]
        while sum(map(len, parts)) < characters:
            parts.append(rng.choice(_OPENERS) + " ".join(map(rng.choice, (_SUBJECTS, _VERBS, _TAILS))))
        yield " ".join(parts)
    raise SystemExit("no prompt of this length survives the tokenizer's round trip; choose another length")


# --- the pipe ----------------------------------------------------------------------------------


class Channel:
    """A side's end of the pipe: one JSON object a line. Whatever else the process prints goes to stderr."""

    def __init__(self) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def send(self, **message: Any) -> None:
        self._out.write(json.dumps(message) + "\n")

    def wait(self) -> bool:
        """Blocks until a step is wanted; False when there is none to come."""
        return sys.stdin.readline().strip() == "step"
