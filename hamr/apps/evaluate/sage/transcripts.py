"""Browser of the transcripts of a SAGE evaluation: transcripts.html, every turn with its scores and faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hamr.bench.sage.assessment import Assessment
from hamr.bench.sage.metrics import VALUES
from hamr.bench.sage.run import Evaluated
from hamr.bench.sage.traces import Trace, read_turn
from hamr.files import write_atomic
from hamr.report.html import render
from hamr.security.redaction import redact_text

TRANSCRIPTS = "transcripts.html"
MOST = 1000
"""Maximum number of dialogues on the page, the lowest scores first; traces.jsonl has all of them."""
_LONGEST = 2000
"""Maximum number of characters of a turn."""


def write_transcripts(found: Evaluated, traces: Sequence[Trace], folder: Path) -> None:
    """Write transcripts.html into `folder`. Secrets are redacted."""
    every = sorted(transcripts(found, traces), key=lambda one: -1.0 if one["score"] is None else one["score"])
    shown = every[:MOST]
    choices = {
        name: sorted({one["filters"][name] for one in shown})
        for name in ("agent", "scenario", "level", "ended", "customer")
    }
    page = render("transcripts.html.j2", transcripts=shown, total=len(every), choices=choices)
    write_atomic(folder / TRANSCRIPTS, redact_text(page))


def transcripts(found: Evaluated, traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """Yield the dialogues of the evaluated agents, with the names that the template has for their parts."""
    by_dialogue: dict[tuple[str, str], dict[int, Assessment]] = {}
    for agent, by_scenario in found.assessed.items():
        for a in (a for some in by_scenario.values() for a in some):
            by_dialogue.setdefault((agent, a.dialogue), {})[a.turn] = a
    for trace in traces:
        if trace.agent in found.assessed and trace.plan.scenario in found.scenarios:
            yield _transcript(found, trace, by_dialogue.get((trace.agent, trace.plan.id), {}))


def _transcript(found: Evaluated, trace: Trace, assessed: dict[int, Assessment]) -> dict[str, Any]:
    plan = trace.plan
    audit = found.audits[trace.agent].get(plan.id)
    faults = audit.faults if audit is not None else ()
    logic = [value for a in assessed.values() if (value := VALUES["logic"](a)) is not None]
    score = sum(logic) / len(logic) if logic else None
    ended = trace.outcome.replace("_", " ")
    shown = "no score" if score is None else f"logic {score:.0f}"
    return {
        "title": f"{trace.agent}: {plan.id}, {shown}, {ended}",
        "filters": {
            "agent": trace.agent,
            "scenario": plan.scenario,
            "level": plan.level or "unknown",
            "ended": ended,
            "customer": "faulty" if faults else "faultless",
        },
        "case": ", ".join(
            [
                *(f"{name} {text}" for name, text in (("intent", plan.intent), ("persona", plan.persona)) if text),
                *(f"{name}={value}" for name, value in {**plan.fields, **plan.system}.items()),
            ]
        ),
        "customer": [f"message {f.message + 1}, {f.kind.replace('_', ' ')}: {f.detail}" for f in faults],
        "turns": [_turn(found, trace, number, assessed.get(number)) for number in range(1, len(trace.turns) + 1)],
        "parting": trace.parting,
        "score": score,
    }


def _turn(found: Evaluated, trace: Trace, number: int, a: Assessment | None) -> dict[str, str]:
    """Return one exchange. `did`: the path and action that the agent named, or its calls; `right`: the reference's."""
    exchange = trace.turns[number - 1]
    reading = read_turn(found.scenarios[trace.plan.scenario], trace.turns[:number])
    output = reading.output
    did = [] if output is None else [*output.path, output.action]
    if exchange.calls is not None:
        did = [f"{use.name}({use.arguments})" for use in exchange.calls]
    scores = {name: VALUES[name](a) if a is not None else None for name in ("logic", "chat", "overall")}
    return {
        "user": exchange.user[:_LONGEST],
        "agent": (exchange.agent if output is None else output.chat)[:_LONGEST] or "(nothing)",
        "did": " ".join(filter(None, did)),
        "right": f"{' '.join(a.reference.path)} {a.reference.action}" if a is not None and a.reference else "",
        "faults": ", ".join(kind.replace("_", " ") for kind in reading.kinds),
        "scores": ", ".join(f"{name} {value:.0f}" for name, value in scores.items() if value is not None),
    }
