"""hamr as a reward function of TRL's GRPOTrainer (and RLOOTrainer): in this process, or over HTTP.

    TrlReward(RewardClient("http://localhost:8711"))            # `hamr serve` runs elsewhere
    TrlReward(RewardSystem.from_config(["pools=mine"]))          # Ray and the scorers beside the trainer

The dataset has a column `sample` with the sample's JSON beside `prompt`; TRL hands every column on. A response that
could not be scored is None. In TRL (read in 1.16) a completion for which every reward function says None leaves the
group's mean and deviation, which are taken over the others, and its advantage is 0: what hamr's own trainer does too.
Beside another reward function that does give a number, TRL adds up the numbers that there are, so that such a
completion competes without hamr's part. Give hamr alone to the trainer, and put other terms into its `rewards`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hamr.adapters.groups import group_responses
from hamr.errors import DataError


class Rewards(Protocol):
    """RewardClient and RewardSystem."""

    def rewards(self, samples: Sequence[tuple[Mapping[str, Any], Sequence[str]]], /) -> list[list[float | None]]: ...


class TrlReward:
    """Callable as TRL calls reward functions: by keyword, with the dataset's columns as lists."""

    def __init__(
        self, rewards: Rewards, *, column: str = "sample", group_size: int | None = None, name: str = "hamr"
    ) -> None:
        """`column` of the dataset with the sample. `group_size` is TRL's `num_generations`: needed only where the same
        sample may stand twice in a row in a batch, whose completions would otherwise be one group."""
        self._rewards, self._column, self._size = rewards, column, group_size
        self.__name__ = name  # what TRL calls the reward in its logs

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """A reward a completion, in order; None where scoring failed.

        Completions are texts, or message lists where the dataset is conversational. Raises DataError for a dataset
        without the column or with a malformed sample, and for a completion that is no single text.
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
    remedy = "must be a text or one assistant message with a text; hamr reads tool calls itself: give TRL no `tools`"
    raise DataError(where, completion, remedy)
