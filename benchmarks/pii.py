"""Share of private values that `hamr data import` hides, and of ordinary sentences that it takes for private.

    python benchmarks/pii.py

36 sentences written by hand, and generated ones (`tests/pii_probes.py`) with a value of 25 kinds in English, Chinese,
German and French, some in lower case and some among ordinary sentences. A value is hidden if every letter and digit
of it is. Names are not among them. Counts only, the same on every machine: writes results/pii.json and prints a table
in Markdown.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.results_json import write_results
from hamr.data.pii import find_pii
from tests.pii_probes import LANGUAGES, THE_36, Probe, is_hidden, ordinary, probes

RESULTS = Path(__file__).parent / "results" / "pii.json"
COUNT = 500
SEED = 7
"""The rules were written against other seeds of the same templates, so this is not a test on foreign data."""


def figures() -> dict[str, Any]:
    made = probes(COUNT, SEED)
    missed = [probe for probe in made if not _is_found(probe)]
    sentences = ordinary(COUNT, SEED)
    alarms = [text for _, text in sentences if find_pii(text)]
    return {
        "by hand": {"values": len(THE_36), "hidden": sum(_is_found(probe) for probe in THE_36)},
        "generated": {
            "seed": SEED,
            "values": len(made),
            "hidden": len(made) - len(missed),
            "recall": round(1 - len(missed) / len(made), 4),
            "recall by language": {
                language: round(
                    1 - sum(p.language == language for p in missed) / sum(p.language == language for p in made), 4
                )
                for language in LANGUAGES
            },
            "missed by kind": dict(sorted(Counter(probe.kind for probe in missed).items())),
        },
        "ordinary": {"sentences": len(sentences), "false alarms": len(alarms), "share": len(alarms) / len(sentences)},
    }


def _is_found(probe: Probe) -> bool:
    return is_hidden(probe, [(found.start, found.end) for found in find_pii(probe.text)])


def table(told: dict[str, Any]) -> str:
    hand, generated, plain = told["by hand"], told["generated"], told["ordinary"]
    rows = [
        ("written by hand", f"{hand['hidden']} of {hand['values']} hidden"),
        ("generated", f"{generated['hidden']} of {generated['values']} hidden"),
        *((f"... {language}", f"recall {share:.3f}") for language, share in generated["recall by language"].items()),
        ("ordinary sentences", f"{plain['false alarms']} of {plain['sentences']} false alarms"),
    ]
    return "\n".join(["| sentences | result |", "|---|---|", *(f"| {what} | {result} |" for what, result in rows)])


if __name__ == "__main__":
    told = figures()
    write_results(RESULTS, told)
    print(table(told))
