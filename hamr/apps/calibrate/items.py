"""`hamr calibrate items=`: fits the cascade over rubric items to recorded answers of their reranker and the judge."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from hamr.apps.calibrate.run import Fitted, fit_and_write
from hamr.calibration.cascade import confidence
from hamr.calibration.ranks import Floats, spearman
from hamr.calibration.search import mix_scores
from hamr.data.samples import read_rows
from hamr.data.triples import Triples
from hamr.errors import DataError, first_fault
from hamr.rewards.rubric_reward import name as RUBRIC
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.record_json import record_from_dict
from hamr.types import Judgement, RewardRecord

if TYPE_CHECKING:
    from hamr.apps.calibrate.command import CalibrateItems
    from hamr.calibration.fit import Calibration

_BOTH = "rewards.rubric.cascade={tau_a: 0.5, tau_b: 0.5}"
"""Trusts no confidence but exactly 0.5, so that the judge answers every item."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemAnswers:
    """Answers to all items of recorded responses, as columns. `response` numbers the response of each item."""

    s_r: Floats
    s_j: Floats
    y: Floats
    weight: Floats
    response: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def confidence(self) -> Floats:
        """Score that the trust interval is over."""
        return confidence(self.s_r)

    def rewards(self, values: Floats) -> Floats:
        """Return the value of each response's rubric, given the R of every item."""
        weight = np.abs(self.weight)
        return np.bincount(self.response, weight * np.asarray(values)) / np.bincount(self.response, weight)


def calibrate_items(command: CalibrateItems) -> int:
    """Fit the cascade to the items. Raises BadInput for invalid input."""
    command.check()
    answers = read_items(command.items, command.teacher)
    triples = Triples(s_r=answers.s_r.tolist(), s_j=answers.s_j.tolist(), y=answers.y.tolist())

    def describe(fit: Calibration) -> Fitted:
        found = response_figures(answers, fit)

        def rho(method: str) -> str:
            return "none" if found[method] is None else f"{found[method]:.4f}"

        rubric = {"reading": "items", "cascade": asdict(fit.cascade)}
        line = (
            f"{found['responses']} responses: rho of the rubric's value with the teacher is "
            f"{rho('spearman')} by the fit, {rho('judge')} by the judge alone, {rho('reranker')} by "
            f"the reranker alone; the judge answers {fit.escalated_frac:.1%} of the items and is asked about "
            f"{found['asked_frac']:.1%} of the responses"
        )
        return Fitted(
            rows="items", content={"rubric": {"weight": 1.0, **rubric}}, figures={"responses": found}, lines=(line,)
        )

    return fit_and_write(command, triples, f"items of {command.items.name}", describe=describe, over="confidence")


def response_figures(answers: ItemAnswers, fit: Calibration) -> dict[str, float | None]:
    """Return rho of the responses' values with the teacher's, and the share of responses with an item in doubt.

    rho is None if it is not defined: for one response, or equal values.
    """
    target = answers.rewards(answers.y)
    methods = {"spearman": mix_scores(fit.cascade, answers.s_r, answers.s_j, answers.confidence)}
    methods |= {"judge": answers.s_j, "reranker": answers.s_r}
    doubt = (answers.confidence < fit.cascade.tau_a) | (answers.confidence > fit.cascade.tau_b)
    asked = np.bincount(answers.response, doubt) > 0
    found = {name: float(spearman(answers.rewards(values), target)) for name, values in methods.items()}
    rhos = {name: None if math.isnan(rho) else rho for name, rho in found.items()}
    return {**rhos, "responses": int(target.size), "asked_frac": float(asked.mean())}


def read_items(path: Path, teacher: Path | None) -> ItemAnswers:
    """Return the items of every response for which reranker, judge and teacher have answered all of them.

    `y` is the teacher's verdict, from the records of the same responses, else that of the judge. Raises DataError if no
    response is complete.
    """
    truth = {_key(record): _verdicts(found) for record, found in _judgements(teacher)} if teacher else {}
    rows: list[tuple[float, float, float, float, int]] = []
    left_out = responses = 0
    for record, found in _judgements(path):
        verdicts = _verdicts(found)
        target = truth.get(_key(record)) if teacher else verdicts
        if not found.item_scores or verdicts is None or target is None or len(target) != len(verdicts):
            left_out += 1
            continue
        scores = zip(found.item_scores, verdicts, target, strict=True)
        rows += [(item.s_r, s_j, y, item.weight, responses) for item, s_j, y in scores]
        responses += 1
    if left_out:
        print(f"left out {left_out} of {left_out + responses} responses, which lack an answer to an item")
    if not rows:
        remedy = f"no response has the answers of reranker and judge to every item; record them with '{_BOTH}'"
        raise DataError(
            "items", str(path), remedy if not teacher else f"{remedy}, and the same responses for `teacher`"
        )
    s_r, s_j, y, weight, response = (np.array(column) for column in zip(*rows, strict=True))
    return ItemAnswers(s_r=s_r, s_j=s_j, y=y, weight=weight, response=response)


def _key(record: RewardRecord) -> tuple[object, ...]:
    """Return the response of a record in another scoring of the same file, whose runs have other names."""
    key = record.key
    return key.step, key.prompt, key.sample, key.attempt, key.turn


def _verdicts(judgement: Judgement) -> list[float] | None:
    """Return the judge's verdict on every item, None if it lacks one."""
    if not judgement.item_scores:
        return [float(passed) for _, passed in judgement.items] or None
    known = [score.s_j for score in judgement.item_scores]
    return [s_j for s_j in known if s_j is not None] if None not in known else None


def _judgements(path: Path) -> Iterator[tuple[RewardRecord, Judgement]]:
    """Yield the records of a file or a run folder that have a judged rubric, each with it."""
    for record in _records(path):
        for judgement in record.judgements:
            if judgement.component == RUBRIC:
                yield record, judgement


def _records(path: Path) -> Iterator[RewardRecord]:
    if path.is_dir():
        with Ledger(path / "ledger.sqlite", readonly=True) as ledger:
            yield from ledger.rows()
        return
    for number, row in read_rows(path):
        try:
            yield record_from_dict(row)
        except (KeyError, TypeError, ValidationError) as error:
            fault = first_fault(error) if isinstance(error, ValidationError) else error
            raise DataError(f"{path}:{number}", fault, "is not a record; give the output of hamr score") from error
