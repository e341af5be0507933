"""Scenario files: search, parsing, and validation errors with line numbers."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from hamr.config.resources import resource
from hamr.config.yaml_files import place, read_checked
from hamr.errors import BadInput, did_you_mean
from hamr.procedures.checks import faults
from hamr.procedures.graph import Scenario
from hamr.procedures.schema import ScenarioFile
from hamr.prompting.templates import is_path


def scenario_names() -> list[str]:
    """Return the names of the shipped scenarios."""
    return sorted(path.stem for path in resource("conf", "scenarios").glob("*.yaml"))


def load_scenario(name: str | Path) -> Scenario:
    """Load a shipped scenario by name, or a user's by path (contains a slash or ends in .yaml).

    BadInput names file and line: unknown name (with the nearest one) or file, invalid YAML, unknown key, invalid value,
    parts that do not fit together (see `checks`), or another procedure with the name of a shipped one, whose wordings
    scorers would take.
    """
    own = isinstance(name, Path) or is_path(name)
    return _read(Path(name).expanduser()) if own else _shipped_scenario(str(name))


@lru_cache(maxsize=64)
def _shipped_scenario(name: str) -> Scenario:
    known = scenario_names()
    if name not in known:
        raise BadInput(
            "scenario", name, f"{did_you_mean(name, known)}known: {', '.join(known)}; or give the path of a file"
        )
    return _read(resource("conf", "scenarios") / f"{name}.yaml")


def _read(path: Path) -> Scenario:
    file, tree = read_checked(path, ScenarioFile, "scenario")
    shipped = resource("conf", "scenarios") / f"{file.name}.yaml"
    if file.name in scenario_names() and not path.samefile(shipped):
        raise BadInput(place(path, tree, ("name",)), file.name, "is a shipped procedure; choose another name")
    fault = next(faults(file), None)
    if fault is not None:
        raise BadInput(place(path, tree, fault.where), fault.value, fault.why)
    return Scenario(file, path)
