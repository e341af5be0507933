"""Noisy logs for the supervised warm-up: samples some of whose references are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from hamr.data.samples import action_json
from hamr.types import Action, Reference, Reply, ServiceSample

WRONG_ARGUMENT = 0.25
"""Share of the wrong references that take the right act with another sample's facts, where the act has any."""
Render = Callable[[ServiceSample, str], Sequence[Action]]
"""The actions of an act in the words and with the facts of a sample."""


def corrupt(samples: Sequence[ServiceSample], noise: float, seed: int, render: Render) -> tuple[ServiceSample, ...]:
    """Replace the references of a share `noise` of the samples: by another act with the sample's own facts, or by the
    right act with another sample's facts. The true ones are kept in `privileged["references"]`.

    A sample needs `meta.act`. The draw depends on the seed and the sample's id alone.
    """
    by_act: dict[str, list[ServiceSample]] = {}
    for sample in samples:
        by_act.setdefault(str(sample.meta["act"]), []).append(sample)
    return tuple(_corrupted(s, by_act, Random(f"noise/{seed}/{s.id}"), noise, render) for s in samples)


def _corrupted(
    sample: ServiceSample, by_act: Mapping[str, Sequence[ServiceSample]], rng: Random, noise: float, render: Render
) -> ServiceSample:
    if rng.random() >= noise:
        return sample
    own = str(sample.meta["act"])
    if rng.random() < WRONG_ARGUMENT:
        donor = rng.choice(by_act[own])
        if _says(donor).isdisjoint(_says(sample)):
            return _with(sample, [reference.action for reference in donor.references])
    others = [act for act in by_act if act != own]
    return _with(sample, render(sample, rng.choice(others))) if others else sample


def _with(sample: ServiceSample, actions: Sequence[Action]) -> ServiceSample:
    truth = [action_json(reference.action) for reference in sample.references]
    return replace(
        sample,
        references=tuple(Reference(action=action, source="corrupted") for action in actions),
        privileged={**sample.privileged, "references": truth},
    )


def _says(sample: ServiceSample) -> set[str]:
    return {_text(reference.action) for reference in sample.references}


def _text(action: Action) -> str:
    return action.content if isinstance(action, Reply) else f"{action.name} {sorted(action.parameters.items())}"
