"""Exact act: rule-based check that a response, including a reply, takes the expected act with the right facts.

`ExactAct` is never a reward. It is computed next to the reward to detect a policy that satisfies its scorers without
being right. `says` compares one reply with one wording; `env=sage` completes a case by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hamr.config.matching import MatchingConfig
from hamr.data.words import facts, repetitions, words_of
from hamr.rewards.matching import MatchRules, match_action
from hamr.types import Action, Reply, ServiceSample, ToolCall

PRECISION = 0.7
"""Minimum share of the words of a reply that occur in the nearest known wording of the act."""
RECALL = 0.5
"""Minimum share of the words of that wording that occur in the reply."""


@dataclass(frozen=True, kw_only=True)
class ExactAct:
    """Rule for a dataset whose samples name their act (`meta.act`).

    A tool call is right if it equals a reference. A reply is right if one is expected, its nearest known wording
    belongs to the expected act, it does not say the same words twice ("mobile internet, or do you use mobile
    internet"), and its facts (numbers, with the name before them) match the references: it states all facts that every
    reference states, and none that no reference states.
    """

    wordings: Mapping[str, tuple[Counter[str], ...]]
    """Act -> its known wordings, as bags of words without facts."""
    repeats: frozenset[tuple[str, ...]] = frozenset()
    """Sequences of words that a known wording has more than once."""
    rules: MatchRules = field(default_factory=MatchRules)
    _nearest: dict[str, str | None] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, samples: Iterable[ServiceSample], matching: MatchingConfig | None = None) -> ExactAct | None:
        """Build the rule from the references of all splits. Return None if the data do not name at least two acts.

        `matching` decides which parameters of tool calls agree.
        """
        found: dict[str, dict[tuple[str, ...], Counter[str]]] = {}
        repeats: set[tuple[str, ...]] = set()
        for sample in samples:
            act = sample.meta.get("act")
            if not isinstance(act, str):
                return None
            known = found.setdefault(act, {})
            for reference in sample.references:
                if isinstance(reference.action, Reply):
                    words = _words(reference.action.content)
                    known.setdefault(tuple(sorted(words.elements())), words)
                    repeats |= repetitions(reference.action.content)
        if len(found) < 2:
            return None
        wordings = {act: tuple(known.values()) for act, known in found.items()}
        rules = MatchRules(leniency=matching or MatchingConfig())
        return cls(wordings=wordings, repeats=frozenset(repeats), rules=rules)

    def is_exact(self, action: Action | None, sample: ServiceSample) -> bool:
        """Return True if the action matches the expected act and facts. False for `None`, a malformed response."""
        if action is None:
            return False
        if isinstance(action, ToolCall):
            return match_action(action, sample.references, self.rules).score == 1.0
        replies = [r.action.content for r in sample.references if isinstance(r.action, Reply)]
        if not replies or self.act_of(action) != sample.meta["act"]:
            return False
        stated, known = facts(action.content), [facts(reply) for reply in replies]
        return set.intersection(*known) <= stated <= set.union(*known)

    def agree(self, reference: Reply, reply: Reply) -> bool:
        """Return True if two replies take the same act with the same facts, regardless of the context."""
        act = self.act_of(reference)
        return act is not None and act == self.act_of(reply) and facts(reference.content) == facts(reply.content)

    def by_act(self, actions: Sequence[Action | None], samples: Sequence[ServiceSample]) -> dict[str, list[bool]]:
        """Map each expected act to the exactness of the responses to its samples. Acts are in alphabetical order."""
        found: dict[str, list[bool]] = {}
        for action, sample in zip(actions, samples, strict=True):
            found.setdefault(str(sample.meta["act"]), []).append(self.is_exact(action, sample))
        return dict(sorted(found.items()))

    def act_of(self, action: Action) -> str | None:
        """Return the act of an action: the tool of a call, or the act of the nearest wording of a reply.

        None if no known wording is near, wordings of two acts are equally near, or the reply repeats itself.
        """
        if isinstance(action, ToolCall):
            return action.name
        if repetitions(action.content) - self.repeats:
            return None
        words = _words(action.content)
        key = " ".join(sorted(words.elements()))
        if key not in self._nearest:
            self._nearest[key] = self._find(words)
        return self._nearest[key]

    def _find(self, words: Counter[str]) -> str | None:
        best: dict[str, float] = {}
        for act, known in self.wordings.items():
            for wording in known:
                if nearness := _nearness(words, wording):
                    best[act] = max(best.get(act, 0.0), nearness)
        ranked = sorted(best, key=best.__getitem__, reverse=True)
        if len(ranked) > 1 and best[ranked[0]] == best[ranked[1]]:
            return None
        return ranked[0] if ranked else None


def says(reply: str, wording: str) -> bool:
    """Return True if a reply has the words of a known wording, as far as `ExactAct` asks, and the same facts, and does
    not repeat itself.

    >>> says("Well, have a nice day. Goodbye!", "Have a nice day, goodbye!"), says("It costs 5.", "It costs 6.")
    (True, False)
    """
    if facts(reply) != facts(wording) or repetitions(reply) - repetitions(wording):
        return False
    return _nearness(_words(reply), _words(wording)) > 0


def _nearness(words: Counter[str], due: Counter[str]) -> float:
    """Return the F1 score of the reply's words, or 0 below PRECISION or RECALL."""
    common = (words & due).total()
    if not common or common < PRECISION * words.total() or common < RECALL * due.total():
        return 0.0
    return 2 * common / (words.total() + due.total())


def _words(text: str) -> Counter[str]:
    return Counter(words_of(text))
