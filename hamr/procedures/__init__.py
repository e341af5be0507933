"""SAGE: service procedures as graphs, and the correct behaviour of an agent on them."""

from hamr.procedures.files import load_scenario, scenario_names
from hamr.procedures.graph import Case, Route, Scenario
from hamr.procedures.rules import Walk

__all__ = ["Case", "Route", "Scenario", "Walk", "load_scenario", "scenario_names"]
