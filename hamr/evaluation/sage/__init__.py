"""SAGE: service procedures as graphs, and what an agent ought to do on them."""

from hamr.evaluation.sage.files import load_scenario, scenario_names
from hamr.evaluation.sage.graph import Case, Route, Scenario
from hamr.evaluation.sage.rules import Walk

__all__ = ["Case", "Route", "Scenario", "Walk", "load_scenario", "scenario_names"]
