"""Scan of imported tickets for what may still be private after hiding.

The patterns are wide, because a person looks at the hits: none of them changes the data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hamr.data.pii import find_pii
from hamr.data.trajectories import Trajectory, trajectory_to_json

NOT_LOOKED_FOR = (
    "places without a street and house number",
    "health, family, work and other facts that identify a person together",
    "values in images and attachments",
    "languages other than English, Chinese, German and French",
)

_SPELLED = (
    r"(?:zero|oh|one|two|three|four|five|six|seven|eight|nine|null|eins|zwei|zwo|drei|vier|fünf|sechs|sieben|acht|neun"
    r"|zéro|un|deux|trois|quatre|cinq|sept|huit|neuf|double)"
)
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "names after an introduction or title": re.compile(
        r"\b(?i:my name is|this is|mein name ist|ich heiße|ich bin|je m'appelle|je suis|mr|mrs|ms"
        r"|dr|herrn?|frau|monsieur|madame)\.? [A-ZÄÖÜÉ][\w'’-]+"
        r"|(?:我叫|我是|姓名[是：: ]*)[\u4e00-\u9fff]{2,3}(?![\u4e00-\u9fff])"
    ),
    "last digits of a card or account": re.compile(
        r"(?:ending (?:in|with)|last (?:four|4)(?: digits)?(?: are| is)?|end(?:et|ziffern?) (?:auf|sind)?|termin\w+ par"
        r"|尾号)\W{0,4}\d{3,6}(?!\d)",
        re.IGNORECASE,
    ),
    "numbers of five or six digits": re.compile(r"(?<![\w.,])\d{5,6}(?![\w]|[.,]\d)"),
    "codes of letters and digits": re.compile(
        r"(?<![\w-])(?=[A-Z-]*\d)(?=[\d-]*[A-Z])(?=(?:[A-Z-]*\d){3})[A-Z\d][A-Z\d-]{5,19}(?![\w-])", re.ASCII
    ),
    "dates of 1920 to 2012": re.compile(
        r"(?<!\d)(?:\d{1,2}[-./]\d{1,2}[-./](?:19[2-9]\d|200\d|201[0-2])"
        r"|(?:19[2-9]\d|200\d|201[0-2])(?:[-./]\d{1,2}[-./]\d{1,2}| ?年 ?\d))(?!\d)"
    ),
    "texts with @, such as an e-mail address": re.compile(r"[^\s\"]@[^\s\"]"),
    "handles": re.compile(r"(?<![\w.@])@[A-Za-z_][\w.]{2,}"),
    "passwords without a digit": re.compile(
        r"(?:pass(?:word|code|phrase|wort)|kennwort|mot de passe|密码|口令)\s?(?:[:：=]|(?:is|ist|est|lautet)\b|是|为)"
        r"[\s\"'“‘]{0,3}(?!(?:not|wrong|incorrect|correct|invalid|expired|required|nicht|falsch)\b)[^\s\[\"'“‘]{4,}",
        re.IGNORECASE,
    ),
    "numbers in words": re.compile(
        rf"\b{_SPELLED}(?:[ ,-]{{1,2}}{_SPELLED}){{5,}}\b|[零〇一二三四五六七八九幺]{{7,}}", re.IGNORECASE
    ),
}


@dataclass(frozen=True, kw_only=True)
class Risk:
    """Hits of one kind, the number of tickets with a hit, and the id of the first."""

    hits: int
    tickets: int
    first: str


def residual_risks(trajectories: Iterable[Trajectory]) -> dict[str, Risk]:
    """Return the kinds with a hit in the turns or the ticket's fields, or in the id, which is never replaced."""
    found: dict[str, Risk] = {}
    for trajectory in trajectories:
        counts = {"ids of tickets": len(find_pii(trajectory.id))}
        text = "\n".join(_texts(trajectory))
        counts |= {kind: sum(1 for _ in pattern.finditer(text)) for kind, pattern in _PATTERNS.items()}
        for kind, count in counts.items():
            if count:
                so_far = found.get(kind, Risk(hits=0, tickets=0, first=trajectory.id))
                found[kind] = Risk(hits=so_far.hits + count, tickets=so_far.tickets + 1, first=so_far.first)
    return found


def _texts(trajectory: Trajectory) -> Iterator[str]:
    row = trajectory_to_json(trajectory)
    for turn in row["turns"]:
        yield turn.get("content") or json.dumps(turn.get("parameters", {}), ensure_ascii=False)
    yield json.dumps(row.get("ticket", {}), ensure_ascii=False)
