"""Noisy logs for the supervised warm-up: samples some of whose references are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from hamr.data.facts import facts
from hamr.data.samples import action_json
from hamr.types import Action, Reference, Reply, ServiceSample

WRONG_ARGUMENT = 0.25
"""Share of the wrong references that take the right act with another sample's facts, where the act has any."""
Render = Callable[[ServiceSample, str, Random], Sequence[Action]]
"""The actions of an act in the words and with the facts of a sample; empty where the act is impossible there."""


def corrupt(samples: Sequence[ServiceSample], noise: float, seed: int, render: Render) -> tuple[ServiceSample, ...]:
    """Replace the references of a share `noise` of the samples: by another act with the sample's own facts, or by the
    right act with another sample's facts. The true ones are kept in `privileged["references"]`.

    A sample needs `meta.act`; only acts of its own `meta.scenario` take the place of its own. The draw depends on the
    seed and the sample's id alone.
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
    """The facts that the first reference states: numbers with the names before them, or a call's parameters."""
    action = sample.references[0].action
    return facts(action.content) if isinstance(action, Reply) else {repr(sorted(action.parameters.items()))}
