"""ECS (hybrid reward, section 5.2): agreement of a reply with the best of several references."""

from hamr.bench.ecs.score import ecs

__all__ = ["ecs"]
