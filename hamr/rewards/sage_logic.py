"""The logic reward: does the response keep to the procedure, by SAGE's rule engine and no model (SAGE 3.2.4)?

For policies that answer in SAGE's form: one JSON object with labels, path, action and chat. What is right comes with
the sample: `privileged.fields` (what the dialogue has shown), `privileged.path`, and `privileged.action`, null where
the procedure still waits for the customer; `meta.scenario` names the procedure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hamr.config.sage import PathForm
from hamr.data.actions import ResponseFormat, answer_of
from hamr.errors import BadInput
from hamr.evaluation.sage import Scenario, load_scenario
from hamr.evaluation.sage.contract import read_output
from hamr.evaluation.sage.scores import classification, path_score
from hamr.types import Absent, MalformedResponse, Scored, ServiceSample

LogicOutcome = Scored | MalformedResponse | Absent


def sage_logic(
    text: str, sample: ServiceSample, *, path: PathForm = "intersection", response_format: ResponseFormat = "plain"
) -> LogicOutcome:
    """In [0, 1]: 0.4 classification + 0.4 path + 0.2 action, with the scenario's own weights.

    Where the procedure waits for the customer no action is right yet, and the other two share its weight; where nothing
    is shown yet, so do path and action with the labels'. A response that is not in SAGE's form is malformed: a genuine
    0. Absent for a sample that has no gold, or whose scenario hamr does not know.
    """
    scenario = _scenario(sample)
    gold = sample.privileged
    fields, reference = gold.get("fields"), gold.get("path")
    if scenario is None or not isinstance(fields, Mapping) or not _is_path(reference):
        return Absent(detail="no scenario, or no gold fields and path")
    answer = answer_of(text, response_format)
    if isinstance(answer, MalformedResponse):
        return answer
    reading = read_output(answer, scenario)
    if reading.output is None:
        return MalformedResponse(detail=reading.kinds[0])
    weights, action = scenario.file.metrics, gold.get("action")
    parts = [(weights.path, path_score(reading.output.path, list(reference or ()), path))]
    if fields:
        parts.append((weights.classification, classification(reading.output.fields, fields)))
    if action is not None:
        parts.append((weights.action, float(reading.output.action == action)))
    whole = sum(weight for weight, _ in parts)
    return Scored(value=sum(weight * value for weight, value in parts) / whole) if whole else Absent(detail="no weight")


def _scenario(sample: ServiceSample) -> Scenario | None:
    name = sample.meta.get("scenario")
    if not isinstance(name, str):
        return None
    try:
        return load_scenario(name)
    except BadInput:
        return None


def _is_path(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(stage, str) for stage in value)
    )
