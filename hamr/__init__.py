"""hamr: reinforcement learning for service agents with a hybrid, calibrated reward on Ray."""

__version__ = "0.1.0"
