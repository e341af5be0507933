"""Sections of `score` and `serve`: the reward system without training."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from hamr.config.section import Fraction, PositiveFloat, PositiveInt, Section


class ScoreConfig(Section):
    groups_in_flight: PositiveInt = 64
    """Groups (a sample with its responses) scored concurrently. The next one is read when one is done."""
    max_failed_frac: Fraction = 0.1
    """Share of responses without a score above which `hamr score` exits with 1."""


def _read_missing(value: object) -> object:
    """Return the name of the value that YAML reads `null` and `nan` as."""
    return "null" if value is None else "nan" if isinstance(value, float) and math.isnan(value) else value


class ServeConfig(Section):
    host: str = "127.0.0.1"
    """Listening address. Any other than this machine's own requires a token."""
    token_env: Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")] = "HAMR_SERVE_TOKEN"
    """Name of the environment variable with the token that every request has to carry (`Authorization: Bearer TOKEN`,
    or the password of a URL). If it is not set, no token is required, which a loopback address alone allows."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8711
    """Port. 0 selects a free one and prints it."""
    missing: Annotated[Literal["refuse", "null", "nan", "group_mean"], BeforeValidator(_read_missing)] = "refuse"
    """Answer of `/get_reward`, whose protocol has only numbers, for a response that could not be scored. `refuse`: 503
    for the whole request; the trainer's client retries, which only costs time once the scorer is back. `group_mean`:
    the mean of the scored responses in the group, which gives the response no advantage and leaves the baseline
    unchanged; 503 for a group without any. `null`, `nan`: for a trainer that is known to exclude them."""
    max_body_mb: PositiveFloat = 32.0
    """A larger request is rejected (413)."""
    header_timeout_s: PositiveFloat = 10.0
    """Maximum time for receiving the headers of a request. The connection is then closed."""
    body_timeout_s: PositiveFloat = 60.0
    """Maximum time for receiving the body of a request (408)."""
    max_connections: PositiveInt = 1024
    """Further connections are rejected (503)."""
    records: str | None = None
    """JSONL that receives every served record. null: none. The trainers' own protocols carry only the rewards."""
