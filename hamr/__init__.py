"""hamr: reinforcement learning for service agents with a hybrid, calibrated reward on Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hamr.apps.score.reward_system import RewardSystem

__version__ = "0.2.0"
__all__ = ["RewardSystem", "__version__"]


def __getattr__(name: str) -> Any:
    # Ray is imported by those who score, not by those who ask for the version.
    if name == "RewardSystem":
        from hamr.apps.score.reward_system import RewardSystem

        return RewardSystem
    raise AttributeError(f"module 'hamr' has no attribute {name!r}")
