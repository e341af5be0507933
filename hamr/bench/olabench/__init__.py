"""OlaBench (second paper, sections 3 and 5.1): its overall score, and its rates with their types."""

from hamr.bench.olabench.rates import Rates, hallucination_rates, overall, risk_rates

__all__ = ["Rates", "hallucination_rates", "overall", "risk_rates"]
