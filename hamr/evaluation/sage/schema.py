"""What a scenario file may say. A file that contradicts itself is refused before it is used."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, model_validator

Value = str | bool | int


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Variable(_Strict):
    """A classification field or a system variable: one of `options`, or a whole number from `minimum` on."""

    description: str
    options: tuple[Value, ...] | None = None
    minimum: int | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Variable:
        if (self.options is None) == (self.minimum is None):
            raise ValueError("a variable needs either options or minimum")
        return self

    def problem(self, value: object) -> str | None:
        """Why `value` cannot be this variable's, or None. A bool is no number here."""
        if self.options is not None:
            fits = any(type(value) is type(option) and value == option for option in self.options)
            return None if fits else f"allowed: {list(self.options)}"
        if isinstance(value, bool) or not isinstance(value, int):
            return "must be a whole number"
        assert self.minimum is not None
        return None if value >= self.minimum else f"must be at least {self.minimum}"


class Condition(_Strict):
    """A condition on one variable's value."""

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


class Stage(_Strict):
    """Either goes on unconditionally (`next`) or reads one variable and branches."""

    title: str
    next: str | None = None
    reads: str | None = None
    branches: tuple[Branch, ...] = ()

    @model_validator(mode="after")
    def _one_kind(self) -> Stage:
        if (self.next is None) == (self.reads is None) or bool(self.reads) != bool(self.branches):
            raise ValueError("a stage needs either next, or reads with branches")
        return self

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.next,) if self.next else tuple(b.to for b in self.branches)


class Refusal(_Strict):
    """A combination of system variables that cannot be."""

    when: Mapping[str, Condition]
    why: str


class Coverage(_Strict):
    """How the listing of cases crosses the fields; see `Scenario.cases`."""

    crossed: tuple[str, ...]
    filled: Mapping[str, Value]


class ScenarioFile(_Strict):
    name: str
    code: str
    start: str
    fields: Mapping[str, Variable]
    system: Mapping[str, Variable]
    system_states: tuple[Mapping[str, Value], ...]
    refused: tuple[Refusal, ...] = ()
    actions: Mapping[str, str]
    stages: Mapping[str, Stage]
    coverage: Coverage

    @model_validator(mode="after")
    def _closed(self) -> ScenarioFile:
        variables = {**self.fields, **self.system}
        places = {**self.stages, **self.actions}
        if self.start not in self.stages:
            raise ValueError(f"start {self.start!r} is no stage")
        for name, stage in self.stages.items():
            for target in stage.targets:
                if target not in places:
                    raise ValueError(f"stages.{name}: {target!r} is neither a stage nor an action")
            if stage.reads is not None:
                self._check_branches(name, stage, variables)
        named = {*self.coverage.crossed, *self.coverage.filled}
        if named != set(self.fields):
            raise ValueError(f"coverage names {sorted(named)}, the fields are {sorted(self.fields)}")
        return self

    @staticmethod
    def _check_branches(name: str, stage: Stage, variables: Mapping[str, Variable]) -> None:
        """Every value of the variable that is read must fire exactly one branch."""
        if stage.reads is None or stage.reads not in variables:
            raise ValueError(f"stages.{name}.reads: {stage.reads!r} is no variable")
        variable = variables[stage.reads]
        if variable.options is not None:
            tried: tuple[Value, ...] = variable.options
        else:
            assert variable.minimum is not None
            edges = [variable.minimum, *(b.above for b in stage.branches if b.above is not None)]
            edges += [v for b in stage.branches for v in b.values or () if isinstance(v, int)]
            tried = tuple(sorted({n for e in edges for n in (e, e + 1) if n >= variable.minimum}))
        for value in tried:
            fired = sum(branch.holds(value) for branch in stage.branches)
            if fired != 1:
                raise ValueError(f"stages.{name}: {stage.reads}={value!r} fires {fired} branches instead of one")
