"""hamr as a reward function of TRL's GRPOTrainer (and RLOOTrainer), in this process or over HTTP.

    TrlReward(RewardClient("http://localhost:8711"))            # `hamr serve` runs elsewhere
    TrlReward(RewardSystem.from_config(["pools=mine"]))          # Ray and the scorers next to the trainer

AsyncGRPOTrainer (`trl.experimental.async_grpo`) pickles its reward functions for another process: give it the first.

The dataset has a column `sample` with the JSON of the sample in addition to `prompt`; TRL passes every column on. The
reward of a response that could not be scored is None. In TRL (checked in 1.16), a completion for which every reward
function returns None is excluded from the mean and deviation of its group, and its advantage is 0, as in hamr's own
trainer. If another reward function returns a number, TRL sums the available numbers, so such a completion competes
without hamr's part. Use hamr as the only reward function, and put other terms into its `rewards`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hamr.adapters.groups import group_responses
from hamr.errors import DataError


class RewardService(Protocol):
    """Interface of RewardClient and RewardSystem."""

    def rewards(self, samples: Sequence[tuple[Mapping[str, Any], Sequence[str]]], /) -> list[list[float | None]]: ...


class TrlReward:
    """Callable with TRL's signature of reward functions: keywords, with the columns of the dataset as lists."""

    def __init__(
        self, rewards: RewardService, *, column: str = "sample", group_size: int | None = None, name: str = "hamr"
    ) -> None:
        """`column` of the dataset holds the sample.

        `group_size` is TRL's `num_generations`. It is needed only if the same sample can occur twice in a row in a
        batch, because its completions would otherwise form one group.
        """
        self._rewards, self._column, self._size = rewards, column, group_size
        self.__name__ = name  # name of the reward in TRL's logs

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return one reward per completion, in order. None if scoring failed.

        Completions are texts, or message lists if the dataset is conversational.

        Raises:
            DataError: The column is missing, a sample is malformed, or a completion is not a single text.
        """
        if self._column not in columns:
            known = sorted(name for name, value in columns.items() if isinstance(value, list))
            raise DataError(self._column, known, f"no such column; add {self._column!r} with each sample's JSON")
        samples = list(columns[self._column])
        texts = [_text(completion, f"completions[{i}]") for i, completion in enumerate(completions)]
        groups = group_responses(samples, texts, self._column, self._size)
        values = [value for group in self._rewards.rewards(groups) for value in group]
        log_metric: Callable[[str, float], None] | None = columns.get("log_metric")
        if log_metric is not None and values:
            log_metric(f"{self.__name__}/failed_frac", sum(value is None for value in values) / len(values))
        return values


def _text(completion: Any, where: str) -> str:
    if isinstance(completion, str):
        return completion
    if isinstance(completion, list) and len(completion) == 1 and isinstance(completion[0], Mapping):
        message = completion[0]
        content = message.get("content")
        if isinstance(content, str) and not message.get("tool_calls"):
            return content
    remedy = "must be a text or one assistant message with a text; hamr parses tool calls: do not pass `tools` to TRL"
    raise DataError(where, completion, remedy)
