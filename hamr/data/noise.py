"""Noisy logs for the supervised warm-up: samples with some deliberately wrong references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from hamr.data.samples import action_json
from hamr.data.words import facts
from hamr.types import Action, Reference, Reply, ServiceSample

WRONG_ARGUMENT = 0.25
"""Share of the wrong references with the right act and another sample's facts, if the act has any."""
Render = Callable[[ServiceSample, str, Random], Sequence[Action]]
"""Actions of an act with the wording and facts of a sample. Empty if the act is impossible there."""


def corrupt(samples: Sequence[ServiceSample], noise: float, seed: int, render: Render) -> tuple[ServiceSample, ...]:
    """Replace the references of a share `noise` of the samples.

    The replacement is another act with the sample's own facts, or the right act with another sample's facts. The true
    references are kept in `privileged["references"]`. A sample needs `meta.act`; replacements come from its own
    `meta.scenario`. The draw depends only on the seed and the sample id.
    """
    by_act: dict[object, dict[str, list[ServiceSample]]] = {}
    for sample in samples:
        by_act.setdefault(sample.meta.get("scenario"), {}).setdefault(str(sample.meta["act"]), []).append(sample)
    return tuple(
        _corrupt(s, by_act[s.meta.get("scenario")], Random(f"noise/{seed}/{s.id}"), noise, render) for s in samples
    )


def _corrupt(
    sample: ServiceSample, by_act: Mapping[str, Sequence[ServiceSample]], rng: Random, noise: float, render: Render
) -> ServiceSample:
    if rng.random() >= noise:
        return sample
    own = str(sample.meta["act"])
    if rng.random() < WRONG_ARGUMENT:
        donor = rng.choice(by_act[own])
        if _facts(donor) != _facts(sample):
            return _with(sample, [reference.action for reference in donor.references])
    others = [act for act in by_act if act != own]
    actions = render(sample, rng.choice(others), rng) if others else ()
    return _with(sample, actions) if actions else sample


def _with(sample: ServiceSample, actions: Sequence[Action]) -> ServiceSample:
    truth = [action_json(reference.action) for reference in sample.references]
    return replace(
        sample,
        references=tuple(Reference(action=action, source="corrupted") for action in actions),
        privileged={**sample.privileged, "references": truth},
    )


def _facts(sample: ServiceSample) -> set[str]:
    """Return the facts of the first reference: numbers with the names before them, or the parameters of a call."""
    action = sample.references[0].action
    return facts(action.content) if isinstance(action, Reply) else {repr(sorted(action.parameters.items()))}
