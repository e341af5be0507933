"""Episodes: dialogues of the policy with an environment. A single decision is an episode of one turn.

    async def run(episode, ask):
        answer = await ask([{"role": "user", "content": "What is 2 + 2?"}])
        return episode.end(turn_rewards=[1.0 if "4" in answer.text else 0.0])

`run` is the environment: it asks the policy for one turn after the other and returns the episode with its rewards. Each
response is trained as a sequence of its own, with the token ids and log-probabilities that the engine sampled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hamr.types.outcomes import Scored
from hamr.types.rewards import Component, EpisodeOutcome
from hamr.types.rollouts import Rollout, SampleKey
from hamr.types.samples import ServiceSample

TURN_REWARD = "episode_turn"
"""Component that an episode adds to the reward of a turn: its own reward, or the failure of the whole dialogue."""
Messages = Sequence[Mapping[str, Any]]
"""A conversation as chat messages: {"role", "content"} each."""


class AskPolicy(Protocol):
    """Asks the policy for its next turn and returns its response: text, token ids, log-probabilities and version.

    A `ServiceSample` is rendered like a single decision, and the reward system scores the response to it unless `score`
    is False. Messages are rendered by the chat template, with `tools` as OpenAI function schemas, and the reward system
    scores the response only if `point`, the decision point that they describe, is given.

    Raises EpisodeLimit if the episode has `rollout.max_turns` turns, or the prompt leaves no room for a response.
    """

    def __call__(
        self,
        prompt: ServiceSample | Messages,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        score: bool = True,
        point: ServiceSample | None = None,
    ) -> Awaitable[Rollout]: ...


class EpisodeLimit(Exception):
    """The episode cannot have another turn. An episode that does not catch it ends here. Rewards of the whole that it
    then lacks and others of its group have are 0."""

    def __init__(self, outcome: EpisodeOutcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class CustomerFaultError(Exception):
    """The simulated customer has a fault, such as another wish than its case. The dialogue is a `FaultyCustomer`."""


class CustomerUnavailableError(Exception):
    """The simulated customer's model did not answer. The dialogue is a `CustomerUnavailable`."""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One dialogue. `sample` comes from the data set; `seed` is that of the environment.

    All dialogues of a group have the same sample and seed, so that they meet the same customer. Only the policy's
    samples differ, and so do their advantages for this reason alone.
    """

    key: SampleKey
    sample: ServiceSample
    seed: int
    outcome: EpisodeOutcome = "ended"
    turn_rewards: tuple[float, ...] = ()
    """Reward of every turn, in addition to that of the reward system. Empty: none."""
    components: tuple[Component, ...] = ()
    """Rewards of the episode as a whole."""
    path: str = ""

    def end(
        self, *, turn_rewards: Sequence[float] = (), outcome: EpisodeOutcome = "ended", path: str = "", **rewards: float
    ) -> Episode:
        """Return the ended episode. `rewards` are those of the whole episode, such as `completion=1.0`."""
        components = tuple(Component(name=n, outcome=Scored(value=v), weight=1.0) for n, v in rewards.items())
        return replace(
            self, outcome=outcome, turn_rewards=tuple(turn_rewards), components=self.components + components, path=path
        )


EpisodeFunction = Callable[[Episode, AskPolicy], Awaitable[Episode]]
"""`async def run(episode, ask) -> Episode`."""
