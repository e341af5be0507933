"""The reward cascade: Eq. 4, the router that applies it, its audits and budgets."""

from hamr.calibration.cascade import Cascade

__all__ = ["Cascade"]
