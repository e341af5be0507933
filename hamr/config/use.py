"""The sections of `score` and `serve`: the reward system used without training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from hamr.config.section import Section


class ScoreConfig(Section):
    groups_in_flight: PositiveInt = 64
    """Groups (a sample with its responses) that are scored at a time; the next is read when the first is done."""


class ServeConfig(Section):
    host: str = "127.0.0.1"
    """Address to listen on. There is no authentication: another machine's trainer belongs into the same private net."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8711
    """0 takes a free one and says which."""
    missing: Literal["refuse", "null", "nan", "group_mean"] = "refuse"
    """What `/get_reward`, whose protocol knows only numbers, says of a response that could not be scored. `refuse`:
    503 for the whole request; the trainer's client asks again, and a scorer that is back then costs nothing but time.
    `group_mean`: the mean of the group's scored responses, which gives the response no advantage and leaves the
    baseline where it is; 503 for a group without any. `null`, `nan`: for a trainer that is known to leave them out."""
    max_body_mb: PositiveFloat = 32.0
    """A larger request is refused (413)."""
    end_texts: tuple[str, ...] = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>", "<eos>")
    """Taken off the end of a query of `/get_reward`, which comes with its special tokens: none of them is part of an
    action, and an action with one behind it would be malformed."""
    records: str | None = None
    """JSONL that gets every served record; null keeps none. The trainers' own protocols carry only the rewards."""
    drain_s: PositiveFloat = 30.0
    """Longest wait for requests under way when the server is told to stop."""
