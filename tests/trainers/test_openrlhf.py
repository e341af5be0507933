"""OpenRLHF 0.11: its own request for a reward, and its filter of groups. `make test-trainers`."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

openrlhf = pytest.importorskip("openrlhf")

from tests.trainers.scorer import SAMPLE, Scorer  # noqa: E402

PACKAGE = Path(openrlhf.__file__).parent


async def reward_of(text: str, url: str) -> float:
    """Return the score of one response, as `SingleTurnAgentExecutor.execute` asks for it."""
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    executor = SingleTurnAgentExecutor([f"{url}/get_reward"])
    [found] = await executor._fetch_rewards_via_http([f"Hi?{text}</s>"], ["Hi?"], [SAMPLE])
    [score] = found["scores"]
    assert found["rewards"] == found["scores"] or math.isnan(score)
    return score


async def test_group_with_a_missing_reward_is_filtered_and_replaced() -> None:
    """`serve.missing=nan`: the filter of _generate_vllm drops a group unless low < mean score < high."""
    with Scorer() as scorer:
        scores = [await reward_of(text, scorer.url) for text in ("four", "hang", "sevenxx")]
    assert scores[0] == 0.4 and math.isnan(scores[1])
    source = (PACKAGE / "trainer" / "ppo_utils" / "samples_generator.py").read_text()
    kept = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.If) and "min_r" in ast.unparse(node.test)
    ]
    [rule] = [compile(ast.Expression(node.test), "samples_generator.py", "eval") for node in kept]

    def is_dropped(values: list[float]) -> bool:
        return eval(rule, {}, {"min_r": -5.0, "max_r": 5.0, "avg_reward": sum(values) / len(values)})

    assert is_dropped(scores) and not is_dropped([0.4, 0.7])


def test_documented_flags_exist() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "other-trainers.md").read_text()
    parser = (PACKAGE / "cli" / "train_ppo_ray.py").read_text()
    for flag in (
        "--reward.remote_url",
        "--data.label_key",
        "--algo.dynamic_filtering_enable",
        "--rollout.n_samples_per_prompt",
    ):
        assert flag in page and f'"{flag}"' in parser
    assert "n_samples_per_prompt must be greater than 1 when using dynamic filtering" in parser
    assert "--algo.dynamic_filtering_range" in page and '"--algo.dynamic_filtering_range", nargs=2' in parser
