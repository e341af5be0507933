"""Reward router: selects the scorers of a response and mixes their results. Async and pure: pools are callables.

    parse the action -> match its type and its parameters -> ask the scorers about a reply -> mix

Format, length and rules need no model and are computed in process. The judged side rewards are sent to their judges
(`hamr.cascade.judged_rewards`), and the user's own functions are called (`hamr.cascade.custom_rewards`), while the
cascade runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from hamr.calibration.cascade import Cascade
from hamr.cascade.audit import is_audited
from hamr.cascade.auditors import POOL_AUDITORS
from hamr.cascade.cached_pool import Ask, CachedPool
from hamr.cascade.consistency import Consistency
from hamr.cascade.consistency_scorer import ConsistencyScorer
from hamr.cascade.custom_rewards import CallFunction, CustomRewardScorer
from hamr.cascade.judged_rewards import JudgedComponent, JudgedRewardScorer, JudgeRequest
from hamr.cascade.metrics import RouterMetrics
from hamr.config.rewards import ConsistencyConfig, RewardsConfig
from hamr.data.actions import ResponseFormat, acting_text, answer_of, customer_text, parse_action, render_action
from hamr.data.formats import PLAIN, Formats
from hamr.errors import ConfigError
from hamr.files import encodable
from hamr.rewards.format import format_reward
from hamr.rewards.judged import check_prompts
from hamr.rewards.length import length_reward
from hamr.rewards.matching import MatchRules, match_action
from hamr.rewards.mix import mix
from hamr.rewards.questions import as_customer_reads, judged_text
from hamr.rewards.rules import load_rules, rule_match
from hamr.rewards.sage_logic import load_scenarios, sage_logic
from hamr.types import (
    Action,
    Band,
    Component,
    MalformedResponse,
    Reply,
    RewardRecord,
    Rollout,
    SampleKey,
    Scored,
    ServiceSample,
)

MATCHED: dict[str, Band] = {"type_mismatch": "type_mismatch", "tool_call": "tool_match", "reply": "verbatim"}
"""Band of a response that needs no scorer, by the kind of its match."""


class RewardRouter:
    """Scores responses independently and concurrently.

    `pools` maps the names in `rewards` to callables, `functions` those in `rewards.custom`. `count_tokens` counts a
    text in tokens of the policy. `deadline_s` bounds the whole wait for one response, after which the outcome is a
    timeout. `group_wait_s` is the time that the first response of a group waits for its siblings if a judge compares
    them or a function is batched; half of `deadline_s` by default.
    """

    def __init__(
        self,
        rewards: RewardsConfig,
        pools: Mapping[str, Ask],
        functions: Mapping[str, CallFunction] = MappingProxyType({}),
        *,
        count_tokens: Callable[[str], int],
        formats: Formats = PLAIN,
        deadline_s: float,
        group_wait_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        cache_size: int = 4096,
    ) -> None:
        """Raise BadInput if a pool that a reward needs is missing, or a rule file, a procedure or a prompt is
        unusable."""
        self._rewards, self._formats, self._deadline_s, self._clock = rewards, formats, deadline_s, clock
        self._rules = load_rules(rewards.rules.file)
        self._scenarios = load_scenarios(rewards.sage_logic.scenarios) if rewards.sage_logic.weight else {}
        self._count_tokens = lru_cache(maxsize=cache_size)(lambda text: count_tokens(encodable(text)))
        self._metrics = RouterMetrics()
        self._moved: tuple[Cascade, ConsistencyConfig] | None = None
        self._pools: dict[str, CachedPool] = {}
        for key, name in rewards.used_pools.items():
            if name not in pools:
                raise ConfigError(f"rewards.{key}", name, f"no such pool; there is {sorted(pools)}")
            if name not in self._pools:
                self._pools[name] = CachedPool(pools[name], deadline_s=deadline_s, cache_size=cache_size)
        self._scorers = {role: self._pools[name] for role, name in rewards.scorers.items()}
        ensemble = rewards.consistency.audit.pools if rewards.scorers else ()
        self._ensemble = tuple(self._pools[name] for name in ensemble)
        check_prompts(rewards)
        wait_s = deadline_s / 2 if group_wait_s is None else group_wait_s
        self._judged = JudgedRewardScorer(rewards, self._pools, self._metrics, group_wait_s=wait_s)
        self._custom = CustomRewardScorer(rewards.custom, functions, group_wait_s=wait_s)

    async def score(self, sample: ServiceSample, rollout: Rollout, *, cascade: Cascade | None = None) -> RewardRecord:
        """Return the record of one response. A scorer failure is a typed outcome in it, never an exception.

        `cascade` replaces the configured one for this response. It comes with every call and is not kept, so a
        restarted router cannot fall back to the starting values.
        """
        started = self._clock()
        asked = self._formats.of(sample)
        # Nothing below sees more than this: the text after an answer in post-CoT affects neither action nor reward.
        text = acting_text(rollout.text, asked)
        action = parse_action(text, asked)
        until = asyncio.get_running_loop().time() + self._deadline_s
        point, spoken = as_customer_reads(sample, action)
        words = customer_text(text, asked) if point is sample or not isinstance(spoken, Reply) else spoken.content
        side = self._side_rewards(sample, text, action, words, asked)
        consistency = self._in_force(cascade)
        comparing = self._consistency(point, rollout.key, spoken, consistency, until)
        judged: tuple[JudgedComponent, ...] = ()
        own: tuple[Component, ...] = ()
        if self._rewards.judges or self._rewards.custom:
            result, judged, own = await asyncio.gather(
                comparing,
                self._judge(point, rollout, words, spoken, until),
                self._custom.score(sample, rollout.key, rollout.siblings, text, until),
            )
        else:
            result = await comparing
        weight, judges = self._rewards.consistency.weight, self._rewards.judges
        components = (
            *([Component(name="consistency", outcome=result.outcome, weight=weight)] if weight else ()),
            *side,
            *(Component(name=o.component, outcome=o.outcome, weight=judges[o.component].weight) for o in judged),
            *own,
        )
        record = RewardRecord(
            key=rollout.key,
            total=mix(components),
            components=components,
            action=None if isinstance(action, MalformedResponse) else action,
            band=result.band,
            reference_scores=result.scores,
            calls=result.calls + tuple(call for o in judged for call in o.calls),
            s_r=result.decisive.s_r if result.decisive else None,
            s_j=result.decisive.s_j if result.decisive else None,
            response=rollout.text,
            response_tokens=len(rollout.token_ids),
            versions=rollout.versions,
            seconds=self._clock() - started,
            judgements=tuple(o.judgement for o in judged if o.judgement is not None),
            audit=result.audit,
            fallback=result.fallback,
            cascade=_parameters(consistency),
            mean_logprob=rollout.mean_logprob,
            answer_tokens=(len(rollout.token_ids) or None) if rollout.answer_tokens is None else rollout.answer_tokens,
            answer_s=(rollout.seconds or None) if rollout.answer_s is None else rollout.answer_s,
        )
        self._metrics.record(record)
        return record

    def metrics(self) -> dict[str, float]:
        """Return counts since the last call. See `RouterMetrics.read` for each."""
        return self._metrics.read()

    def forget(self) -> None:
        """Clear the caches. Call it when the model or prompt of a scorer changes."""
        for pool in self._pools.values():
            pool.forget()

    async def close(self) -> None:
        """Cancel pending questions."""
        await self._judged.close()
        await self._custom.close()
        for pool in self._pools.values():
            await pool.close()

    def _in_force(self, cascade: Cascade | None) -> ConsistencyConfig:
        if cascade is None:
            return self._rewards.consistency
        if self._moved is None or self._moved[0] != cascade:
            self._moved = cascade, cascade.put_into(self._rewards.consistency)
        return self._moved[1]

    def _side_rewards(
        self,
        sample: ServiceSample,
        text: str,
        action: Action | MalformedResponse,
        words: str,
        asked: ResponseFormat,
    ) -> tuple[Component, ...]:
        """Return format, length and rules, recorded for any weight, and SAGE logic if it has a weight. No model, no
        wait."""
        rewards = self._rewards
        answer = answer_of(text, asked)
        # For a response with a rationale only the length of the answer counts.
        length = self._count_tokens(text.strip() if isinstance(answer, MalformedResponse) else answer)
        reference_length = rewards.length.reference_length or max(
            self._count_tokens(render_action(reference.action)) for reference in sample.references
        )
        values = {
            "format": format_reward(text, action, asked),
            "length": length_reward(length, reference_length, rewards.length.cache_ratio),
            "rules": rule_match(words, self._rules),
        }
        found = tuple(
            Component(name=name, outcome=Scored(value=value), weight=getattr(rewards, name).weight)
            for name, value in values.items()
        )
        if not rewards.sage_logic.weight:
            return found
        outcome = sage_logic(text, sample, self._scenarios, path=rewards.sage_logic.path, response_format=asked)
        return (*found, Component(name="sage_logic", outcome=outcome, weight=rewards.sage_logic.weight))

    async def _judge(
        self,
        sample: ServiceSample,
        rollout: Rollout,
        words: str,
        action: Action | MalformedResponse,
        until: float,
    ) -> tuple[JudgedComponent, ...]:
        if not self._rewards.judges:
            return ()
        if isinstance(action, MalformedResponse):
            return self._judged.refuse(action, rollout.key, rollout.siblings)
        response = judged_text(words, action)
        case = JudgeRequest(sample=sample, key=rollout.key, siblings=rollout.siblings, response=response, until=until)
        return await self._judged.judge(case)

    async def _consistency(
        self,
        sample: ServiceSample,
        key: SampleKey,
        action: Action | MalformedResponse,
        config: ConsistencyConfig,
        until: float,
    ) -> Consistency:
        """Match type and parameters, then call the scorers (hybrid reward, section 3.3)."""
        if isinstance(action, MalformedResponse):
            return Consistency(outcome=action)
        exact = config.mode == "exact"
        rules = MatchRules(
            leniency=config.matching,
            verbatim=config.verbatim or exact,
            repeated_words=config.repeated_words,
            allowed_repetitions=config.allowed_repetitions,
            call_credit=config.call_credit,
        )
        match = match_action(action, sample.references, rules)
        if match.score is not None:
            band = "repetition" if match.kind == "reply" and not match.score else MATCHED[match.kind]
            return Consistency(outcome=Scored(value=match.score), band=band)
        if not config.weight or exact:
            # No question is needed: `score` omits the component.
            return Consistency(outcome=Scored(value=0.0))
        assert isinstance(action, Reply), "a match without a score is a reply"
        scorer = ConsistencyScorer(
            config, self._scorers, self._metrics, sample, action, until=until, ensemble=self._ensemble
        )
        audited = config.audit.by in POOL_AUDITORS and is_audited(key, config.audit_frac)
        return await scorer.run(match.ask, audited=audited)


def _parameters(config: ConsistencyConfig) -> tuple[float, float, float, float] | None:
    """Return the parameters of Eq. 4 for the record."""
    return Cascade.from_config(config.cascade).parameters if config.weight and config.mode == "hybrid" else None
