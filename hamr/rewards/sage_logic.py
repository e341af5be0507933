"""Logic reward: does the response follow the procedure, by SAGE's rule engine without a model (SAGE 3.2.4)?

For policies that answer in the SAGE format: one JSON object with labels, path, action and chat. The gold comes with the
sample: `privileged.fields` (shown by the dialogue), `privileged.path`, and `privileged.action`, null while the
procedure waits for the customer. `meta.scenario` names the procedure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hamr.config.rewards import SageLogicConfig
from hamr.config.sage import PathForm
from hamr.data.actions import ResponseFormat, answer_of
from hamr.errors import ConfigError
from hamr.procedures import Scenario, load_scenario, scenario_names
from hamr.procedures.contract import read_output
from hamr.procedures.schema import Value
from hamr.procedures.scores import classification, path_score
from hamr.types import Absent, MalformedResponse, Scored, ServiceSample

LogicOutcome = Scored | MalformedResponse | Absent
Scenarios = Mapping[str, Scenario]
"""Procedures by name."""


def load_scenarios(files: Iterable[str] = ()) -> Scenarios:
    """Load the shipped procedures and those of the files. Raise BadInput for an unusable file."""
    return {scenario.name: scenario for scenario in map(load_scenario, (*scenario_names(), *files))}


def check_gold(config: SageLogicConfig, samples: Sequence[ServiceSample]) -> None:
    """Raise BadInput if the reward has a weight but no sample has its gold, or if a procedure file is unusable."""
    if not config.weight:
        return
    scenarios = load_scenarios(config.scenarios)
    if not any(gold_of(sample, scenarios) for sample in samples):
        named = sorted({str(sample.meta.get("scenario")) for sample in samples})
        raise ConfigError(
            "rewards.sage_logic.weight",
            config.weight,
            f"no training sample has its gold: privileged.fields and path, and a known meta.scenario (found: "
            f"{', '.join(named[:6])}; known: {', '.join(scenarios)}); make samples with `hamr data sage scenario=... "
            "form=sage`, name your own procedure's file in rewards.sage_logic.scenarios, or set the weight to 0",
        )


def sage_logic(
    text: str,
    sample: ServiceSample,
    scenarios: Scenarios,
    *,
    path: PathForm = "intersection",
    response_format: ResponseFormat = "plain",
) -> LogicOutcome:
    """Return a score in [0, 1]: 0.4 classification + 0.4 path + 0.2 action, with the weights of the scenario.

    While the procedure waits for the customer, no action is correct and the other two terms share its weight. If no
    field is shown yet, path and action also share the weight of the labels. A response that is not in the SAGE format
    is malformed: a genuine 0. Absent for a sample without gold, or whose scenario is not in `scenarios`.
    """
    gold = gold_of(sample, scenarios)
    if gold is None:
        return Absent(detail="no scenario, or no gold fields and path")
    scenario, fields, reference = gold
    answer = answer_of(text, response_format)
    if isinstance(answer, MalformedResponse):
        return answer
    reading = read_output(answer, scenario)
    if reading.output is None:
        return MalformedResponse(detail=reading.kinds[0])
    weights, action = scenario.file.metrics, sample.privileged.get("action")
    parts = [(weights.path, path_score(reading.output.path, reference, path))]
    if fields:
        parts.append((weights.classification, classification(reading.output.fields, fields)))
    if action is not None:
        parts.append((weights.action, float(reading.output.action == action)))
    whole = sum(weight for weight, _ in parts)
    return Scored(value=sum(weight * value for weight, value in parts) / whole) if whole else Absent(detail="no weight")


def gold_of(sample: ServiceSample, scenarios: Scenarios) -> tuple[Scenario, Mapping[str, Value], Sequence[str]] | None:
    """Return (procedure, fields shown, path) if the sample has all three."""
    name, fields, path = sample.meta.get("scenario"), sample.privileged.get("fields"), sample.privileged.get("path")
    scenario = scenarios.get(name) if isinstance(name, str) else None
    if scenario is None or not isinstance(fields, Mapping) or not _is_path(path):
        return None
    return scenario, fields, list(path or ())


def _is_path(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(stage, str) for stage in value)
    )
