"""Schema of scenario files. `checks` validates that the parts fit together."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hamr.procedures.formulas import Expression
from hamr.types import Language

Value = str | bool | int
LANGUAGES: tuple[Language, ...] = ("en", "zh")


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Text(Strict):
    """A text in every language. A plain text in the file is used for all of them."""

    en: str
    zh: str

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, given: Any) -> Any:
        return {"en": given, "zh": given} if isinstance(given, str) else given

    def of(self, language: str) -> str:
        return self.zh if language == "zh" else self.en


class Variable(Strict):
    """A classification field or a system variable: one of `options`. A system variable may also be a whole number of at
    least `minimum`.

    `examples`: numbers for generated data, in addition to those of `system_states`. `hidden`: a system variable that
    the back end knows and the customer does not.
    """

    type: Literal["enum", "boolean", "integer"]
    description: Text
    meanings: Mapping[Value, Text] | None = Field(default=None, alias="options")
    minimum: int | None = None
    examples: tuple[int, ...] = ()
    hidden: bool = False

    @model_validator(mode="after")
    def _one_kind(self) -> Variable:
        if self.type == "integer":
            if self.meanings is not None or self.minimum is None:
                raise ValueError("an integer needs minimum, and has no options")
            if any(example < self.minimum for example in self.examples):
                raise ValueError("examples must be at least minimum")
        elif not self.meanings or self.minimum is not None or self.examples:
            raise ValueError(f"a variable of type {self.type} needs options, and has no minimum and no examples")
        elif (self.type == "boolean") != all(isinstance(option, bool) for option in self.meanings):
            raise ValueError("true and false are the options of a boolean, and only of a boolean")
        return self

    @property
    def options(self) -> tuple[Value, ...] | None:
        return None if self.meanings is None else tuple(self.meanings)

    def problem(self, value: object) -> str | None:
        """Return the reason if `value` is invalid, else None. A bool is not a number here."""
        if self.options is not None:
            fits = any(type(value) is type(option) and value == option for option in self.options)
            return None if fits else f"allowed: {list(self.options)}"
        if isinstance(value, bool) or not isinstance(value, int):
            return "must be a whole number"
        assert self.minimum is not None
        return None if value >= self.minimum else f"must be at least {self.minimum}"


class Fact(Strict):
    """Another fact of the ticket about this customer that no stage reads.

    One of `one_of`, or a whole number from `low` to `high` in steps of `step`. Formulas may use the numbers.
    """

    description: Text
    one_of: tuple[str | int, ...] | None = None
    low: int | None = None
    high: int | None = None
    step: int = Field(default=1, ge=1)
    hidden: bool = False

    @model_validator(mode="after")
    def _one_kind(self) -> Fact:
        ranged = self.low is not None and self.high is not None
        if bool(self.one_of) == ranged or (self.low is None) != (self.high is None):
            raise ValueError("a fact needs either one_of, or low and high")
        if ranged and not self.values:
            raise ValueError("low must be at most high")
        return self

    @property
    def values(self) -> tuple[str | int, ...]:
        if self.one_of:
            return self.one_of
        assert self.low is not None and self.high is not None
        return tuple(range(self.low, self.high + 1, self.step))

    @property
    def number(self) -> bool:
        return all(isinstance(value, int) for value in self.values)


class Condition(Strict):
    """Condition on the value of one variable."""

    values: tuple[Value, ...] | None = None
    above: int | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Condition:
        if (self.values is None) == (self.above is None):
            raise ValueError("a condition needs either values or above")
        return self

    def holds(self, value: object) -> bool:
        if self.values is not None:
            return any(type(value) is type(v) and value == v for v in self.values)
        assert self.above is not None
        return isinstance(value, int) and value > self.above


class Branch(Condition):
    to: str


class ProcedureStage(Strict):
    """A stage that either continues unconditionally (`next`) or reads one variable and branches.

    A stage that is reached from several sides with different successors is written once per side, as `stage6@course`
    and `stage6@other`. In the requested and scored path both are `stage6`.
    """

    title: Text
    next: str | None = None
    reads: str | None = None
    branches: tuple[Branch, ...] = ()

    @model_validator(mode="after")
    def _one_kind(self) -> ProcedureStage:
        if (self.next is None) == (self.reads is None) or bool(self.reads) != bool(self.branches):
            raise ValueError("a stage needs either next, or reads with branches")
        return self

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.next,) if self.next else tuple(b.to for b in self.branches)


class FormulaCase(Strict):
    """`value` applies if every condition of `when` holds."""

    when: Mapping[str, Condition] = {}
    value: Expression

    def applies(self, values: Mapping[str, object]) -> bool:
        return all(test.holds(values[name]) for name, test in self.when.items())


class Formula(Strict):
    """An amount, computed by the first of `cases` whose conditions hold, in whole units (rounded down)."""

    description: Text
    cases: tuple[FormulaCase, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ends(self) -> Formula:
        if self.cases[-1].when or not all(case.when for case in self.cases[:-1]):
            raise ValueError("every case but the last needs `when`; the last has none and covers all others")
        return self

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for case in self.cases for name in (*case.when, *case.value.names))


class ScenarioAction(Strict):
    """An action that ends a walk.

    `reply`: a text only; all others are tool calls. `amount` names the formula of the paid amount. Actions of one
    `group` are the options of one tool (PLAN with its options A to F).
    """

    description: Text
    reply: bool = False
    amount: str | None = None
    group: str | None = None
    option: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> ScenarioAction:
        if (self.group is None) != (self.option is None):
            raise ValueError("group and option go together")
        if self.reply and (self.amount or self.group):
            raise ValueError("a reply has no amount and no group")
        if self.amount and self.group:
            raise ValueError("an option of a group has no amount")
        return self

    def tool(self, name: str) -> str:
        """Return the tool name of the action with this name.

        >>> ScenarioAction(description={"en": "", "zh": ""}).tool("RescheduleOrRefund+HandlingFee")
        'reschedule_or_refund_handling_fee'
        """
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.group or name)
        return re.sub(r"[^a-z0-9]+", "_", spaced.lower())


class Intent(Strict):
    """Intent of a customer. `pins`: the fields that it determines. All others may have any value."""

    description: Text
    pins: Mapping[str, Value]

    def allows(self, fields: Mapping[str, object]) -> bool:
        return all(name not in fields or fields[name] == value for name, value in self.pins.items())


class Persona(Strict):
    description: Text


class ScoreWeights(Strict):
    """Weights of the score of a turn.

    Logic (SAGE 3.2.4) weights classification, path and action. Overall (Eq. 9) weights logic and chat. `group_credit`:
    score of an action of the right group with the wrong option. None: 0, as for any other wrong action (Eq. 7).
    """

    classification: float = Field(default=0.4, ge=0)
    path: float = Field(default=0.4, ge=0)
    action: float = Field(default=0.2, ge=0)
    logic: float = Field(default=0.8, ge=0)
    chat: float = Field(default=0.2, ge=0)
    group_credit: float | None = Field(default=None, ge=0, le=1)

    @model_validator(mode="after")
    def _sums(self) -> ScoreWeights:
        if abs(self.classification + self.path + self.action - 1) > 1e-9 or abs(self.logic + self.chat - 1) > 1e-9:
            raise ValueError("classification, path and action must sum to 1, and so must logic and chat")
        return self


class Refusal(Strict):
    """An impossible combination of system variables."""

    when: Mapping[str, Condition]
    why: str


class Coverage(Strict):
    """Coverage of the fields in the list of cases; see `Scenario.cases`."""

    crossed: tuple[str, ...]
    filled: Mapping[str, Value]


class ScenarioFile(Strict):
    name: str
    code: str
    title: Text
    description: Text
    start: str
    fields: Mapping[str, Variable]
    system: Mapping[str, Variable]
    listed_states: tuple[Mapping[str, Value], ...] | None = Field(default=None, alias="system_states")
    refused: tuple[Refusal, ...] = ()
    facts: Mapping[str, Fact] = {}
    catalogue: Mapping[str, Text] = {}
    formulas: Mapping[str, Formula] = {}
    actions: Mapping[str, ScenarioAction]
    stages: Mapping[str, ProcedureStage]
    coverage: Coverage
    intents: Mapping[str, Intent] = Field(min_length=1)
    personas: Mapping[str, Persona] = Field(min_length=1)
    adversity: Mapping[str, Text] = Field(min_length=1)
    """Description of each adversarial level, easiest first."""
    fitting_levels: Mapping[str, Mapping[Value, tuple[str, ...]]] = {}
    """Field -> option -> the adversarial levels that do not contradict it. An option without an entry fits all."""
    metrics: ScoreWeights = ScoreWeights()

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of the adversarial levels, easiest first."""
        return tuple(self.adversity)

    @property
    def system_states(self) -> tuple[Mapping[str, Value], ...]:
        """States of the system variables that matter for the procedure: those listed, else every combination of their
        options that is not refused."""
        if self.listed_states is not None:
            return self.listed_states
        options = [variable.options or () for variable in self.system.values()]
        states = (dict(zip(self.system, values, strict=True)) for values in itertools.product(*options))
        return tuple(state for state in states if self.refusal(state) is None)

    def refusal(self, system: Mapping[str, object]) -> Refusal | None:
        """Return the entry of `refused` that matches this complete state, or None."""
        fits = (r for r in self.refused if all(test.holds(system[name]) for name, test in r.when.items()))
        return next(fits, None)
