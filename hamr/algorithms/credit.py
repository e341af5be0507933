"""Credit of the turns of a dialogue: which rewards are compared within a group, and the advantage of each turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from hamr.algorithms.group_outcomes import has_reward
from hamr.types import Credit, RewardRecord

Values = Sequence[float | None]
Normalise = Callable[[Values], list[float]]
"""Group-relative advantages of values. None is excluded from mean and deviation and has advantage 0."""


@dataclass(frozen=True, kw_only=True)
class EpisodeRewards:
    """Rewards of one dialogue: of its turns, and of the dialogue as a whole. None: not scored, or no such reward.

    `unrewarded`: turns that no reward was asked for. They count as 0 in sums and are not compared with other turns.
    """

    turns: tuple[float | None, ...]
    outcome: float | None = None
    unrewarded: frozenset[int] = frozenset()

    def own(self, turn: int) -> float | None:
        """Return the reward that is compared at this turn index, None without one."""
        return None if turn >= len(self.turns) or turn in self.unrewarded else self.turns[turn]


def episode_rewards(records: Sequence[RewardRecord], rewards: Values) -> list[EpisodeRewards]:
    """Return the rewards of a group by dialogue. `rewards` are those of the records, which are in order.

    A single decision is a dialogue of one turn without an outcome.
    """
    scored, rewarded = zip(records, rewards, strict=True), any(map(has_reward, records))
    dialogues = [list(own) for _, own in groupby(scored, key=lambda pair: (pair[0].key.attempt, pair[0].key.sample))]
    return [
        EpisodeRewards(
            turns=tuple(reward for _, reward in turns),
            outcome=end.reward if end else None,
            unrewarded=frozenset(t for t, (record, _) in enumerate(turns) if rewarded and not record.components),
        )
        for turns in dialogues
        for end in (turns[-1][0].episode,)
    ]


def comparisons(episodes: Sequence[EpisodeRewards], credit: Credit) -> list[Values]:
    """Return the lists of rewards that are normalised, each within itself.

    `outcome`: the outcome of each dialogue; where no dialogue has one, the sum of its turns. `turn`: for each turn the
    sum of its own reward, the later ones and the outcome, over the turns of all dialogues; None if one of the turns was
    not scored. `turn_normalised`: the rewards at each turn index, and last the outcomes.
    """
    if credit == "outcome":
        outcomes = [e.outcome for e in episodes]
        return [outcomes if any(o is not None for o in outcomes) else [_total(e.turns) for e in episodes]]
    if credit == "turn":
        return [[value for e in episodes for value in _to_go(e)]]
    longest = max((len(e.turns) for e in episodes), default=0)
    columns: list[Values] = [[e.own(t) for e in episodes] for t in range(longest)]
    return [*columns, [e.outcome for e in episodes]]


def turn_advantages(episodes: Sequence[EpisodeRewards], credit: Credit, normalise: Normalise) -> list[float]:
    """Return the advantages of all turns, dialogue by dialogue.

    For dialogues of one turn without an outcome, every credit gives the group-relative advantages of their rewards.

    >>> one = [EpisodeRewards(turns=(1.0, 0.0), outcome=0.0), EpisodeRewards(turns=(0.0,), outcome=1.0)]
    >>> turn_advantages(one, "turn_normalised", lambda values: [v or 0.0 for v in values])
    [1.0, 0.0, 1.0]
    """
    normalised = [normalise(values) for values in comparisons(episodes, credit)]
    if credit == "turn":
        return normalised[0]
    *columns, shared = normalised
    if credit == "outcome":
        return [shared[i] for i, e in enumerate(episodes) for _ in e.turns]
    compared = [columns[t][i] for i, e in enumerate(episodes) for t in range(len(e.turns)) if e.own(t) is not None]
    mean = math.fsum(compared) / max(1, len(compared))

    # Without a baseline of the group (REINFORCE++), equal rewards have an advantage, and None the mean of its index,
    # which is of other turns.
    has_baseline = not any(normalise([1.0, 1.0]))

    def own(i: int, turn: int) -> float:
        return columns[turn][i] if has_baseline or turn not in episodes[i].unrewarded else mean

    return [own(i, t) + shared[i] for i, e in enumerate(episodes) for t in range(len(e.turns))]


def _total(turns: Values) -> float | None:
    known = [value for value in turns if value is not None]
    return math.fsum(known) if known and len(known) == len(turns) else None


def _to_go(episode: EpisodeRewards) -> list[float | None]:
    later = [_total(episode.turns[t:]) for t in range(len(episode.turns))]
    return [None if total is None else total + (episode.outcome or 0.0) for total in later]
