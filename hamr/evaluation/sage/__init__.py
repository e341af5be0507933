"""SAGE: service procedures as graphs, and what an agent ought to do on them."""

from hamr.evaluation.sage.graph import Case, Route, Scenario, load_scenario
from hamr.evaluation.sage.rules import Walk

__all__ = ["Case", "Route", "Scenario", "Walk", "load_scenario"]
