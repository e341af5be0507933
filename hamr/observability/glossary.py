"""What every metric means: the one place that names them, for W&B, `metrics.jsonl` and the documentation.

A name is `area/subject/stat`. `<...>` in a pattern stands for one word; `<stat>` for mean, std, min,
max, sum or a percentile, `<percentile>` for p10 and the like.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from hamr.errors import HamrError

log = logging.getLogger(__name__)

Good = Literal["up", "down", "zero", "watch"]
BETTER: dict[Good, str] = {"up": "higher", "down": "lower", "zero": "near 0", "watch": "-"}
STRICT_ENV = "HAMR_STRICT_METRICS"

_WORD = r"[A-Za-z0-9_.-]+"
_WORDS = {"stat": r"mean|std|min|max|sum|p\d+", "percentile": r"p\d+"}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One line of the glossary. `good`: up, down, zero (the nearer the better) or watch (no way is good as such)."""

    pattern: str
    meaning: str
    unit: str
    good: Good


def _metric(pattern: str, meaning: str, unit: str, good: Good) -> Metric:
    return Metric(pattern=pattern, meaning=meaning, unit=unit, good=good)


METRICS: tuple[Metric, ...] = (
    # Rewards: over the responses of a step that could be scored; failures are counted, never averaged in.
    _metric("reward/total/mean", "Mean total reward: the learning curve", "reward", "up"),
    _metric("reward/total/min", "Lowest total reward of the step", "reward", "up"),
    _metric("reward/total/max", "Highest total reward of the step", "reward", "up"),
    _metric(
        "reward/total/std",
        "Spread (population) of the total reward; near 0 there is nothing to learn",
        "reward",
        "watch",
    ),
    _metric("reward/total/<percentile>", "Percentile of the total reward (p10, p50, p90)", "reward", "up"),
    _metric("reward/<component>/mean", "Mean value of one component before its weight", "reward", "up"),
    _metric("reward/<component>/std", "Spread (population) of one component", "reward", "watch"),
    _metric(
        "reward/failed_frac", "Share of responses whose total is a failure; they carry no advantage", "share", "down"
    ),
    _metric("reward/outcome/<kind>", "Share of responses whose total ended as this kind of outcome", "share", "watch"),
    # Progress
    _metric("progress/step", "Step that has ended; only where there is no column for it (Prometheus)", "step", "watch"),
    _metric("progress/left_s", "Time that the rest of the stage takes at the pace of its last steps", "s", "watch"),
    # Router
    _metric("router/requests", "Responses scored since the last reading, evaluations included", "count", "watch"),
    _metric("router/escalated_frac", "Share of the replies in the cascade that went on to the judge", "share", "down"),
    _metric(
        "router/band/<band>_frac", "Share of the replies in the cascade whose S_R lay in this band", "share", "watch"
    ),
    _metric(
        "router/type_mismatch_frac",
        "Share of responses that took the wrong kind of action: 0, no scorer asked",
        "share",
        "down",
    ),
    _metric("router/tool_match_frac", "Share of responses judged by exact match of a tool call", "share", "watch"),
    _metric("router/verbatim_frac", "Share of responses in the very words of a reference", "share", "watch"),
    _metric("router/malformed_frac", "Share of responses that were no action", "share", "down"),
    _metric("router/reranker_calls", "Questions put to rerankers", "count", "watch"),
    _metric("router/judge_calls", "Questions put to judges", "count", "down"),
    _metric("router/side_calls", "Questions put to judges for side rewards", "count", "watch"),
    _metric("router/reasks", "Questions put to a judge again because its answer could not be read", "count", "zero"),
    _metric("router/vetoed_frac", "Share of responses that a veto kept from the costlier judges", "share", "down"),
    _metric("router/cache_hit_frac", "Share of questions answered from memory", "share", "up"),
    _metric("router/fallbacks", "Replies that the reranker scored alone because the judge was away", "count", "zero"),
    _metric(
        "router/fallback_frac",
        "Share of responses that the reranker scored alone, the judge being away",
        "share",
        "zero",
    ),
    _metric(
        "router/prefix_hit_frac/<pool>", "Share of the pool's prompt tokens that were in a prefix cache", "share", "up"
    ),
    _metric("router/failures/<kind>", "Components that ended in this kind of failure", "count", "zero"),
    _metric("router/queue_s/<pool>/<stat>", "Time a question waited before a replica took it", "s", "down"),
    _metric("router/service_s/<pool>/<stat>", "Time a replica took to answer", "s", "down"),
    _metric("router/seconds/<stat>", "Time from a response's end to its reward", "s", "down"),
    _metric("router/tokens/<pool>", "Prompt and output tokens that the pool worked through", "tokens", "down"),
    _metric("router/cost/<pool>", "What the pool's answers cost, in its own price", "cost", "down"),
    _metric(
        "router/rescored", "Responses asked about again after the router restarted, since the start", "count", "zero"
    ),
    _metric("router/unrouted", "Responses for which the router gave no record, since the start", "count", "zero"),
    _metric("pool/<pool>/replicas", "Replicas that the pool is to have", "count", "watch"),
    _metric("pool/<pool>/running", "Replicas that run", "count", "watch"),
    _metric("pool/<pool>/scaled", "How often `hamr scale` has resized the pool since the start", "count", "watch"),
    _metric("pool/<pool>/waiting", "Questions without an answer yet when the pool was last looked at", "count", "down"),
    _metric("pool/<pool>/p50_s", "Median time of the last answers, in line and at work", "s", "down"),
    _metric("pool/<pool>/p99_s", "99th percentile of the same", "s", "down"),
    _metric("pool/<pool>/asked", "Questions put to the pool since the start", "count", "watch"),
    _metric("pool/<pool>/scored", "Questions that the pool answered with a score since the start", "count", "watch"),
    _metric("pool/<pool>/retried", "Further attempts on another replica since the start", "count", "zero"),
    _metric("pool/<pool>/timeout", "Questions that met their deadline since the start", "count", "zero"),
    _metric("pool/<pool>/unparsable", "Answers without a verdict that can be read since the start", "count", "zero"),
    _metric("pool/<pool>/unavailable", "Questions that no replica could take since the start", "count", "zero"),
    _metric("pool/<pool>/refused", "Questions put to nobody since the start: the breaker was open", "count", "zero"),
    _metric("pool/<pool>/breaker", "State of the breaker: 0 closed, 0.5 half open, 1 open", "", "zero"),
    _metric("pool/<pool>/breaker_openings", "How often the breaker opened since the start", "count", "zero"),
    _metric("pool/<pool>/hedged", "Questions put to a second replica too since the start", "count", "watch"),
    _metric("pool/<pool>/hedge_won", "Of these, answered by the second one first", "count", "watch"),
    _metric("pool/<pool>/hedge_cost", "What the losers of these races cost, at the winners' price", "cost", "down"),
    _metric("pool/<pool>/hedge_after_s", "How long a request may take now before it is hedged", "s", "watch"),
    _metric(
        "pool/<pool>/prefix_hit_frac", "Share of prompt tokens found in a prefix cache since the start", "share", "up"
    ),
    # The cascade of a run that moves it (adaptive, budget)
    _metric("cascade/tau_a", "Lower end of the trust interval that the step was scored by", "score", "watch"),
    _metric("cascade/tau_b", "Upper end of the trust interval that the step was scored by", "score", "watch"),
    _metric("cascade/moved", "How far its ends go after the step, the farther of the two", "score", "watch"),
    _metric(
        "cascade/judge_frac", "Share of the window's replies that this interval sends to the judge", "share", "watch"
    ),
    _metric("cascade/loss", "Its gap to the judge inside, or 1 - rho with the judge, over the window", "", "down"),
    _metric("cascade/window", "Replies that count when it moves", "count", "watch"),
    # Audits of the fast pass, over the last 2,000 replies and 400 audits
    _metric("audit/answered", "Audits of the step that the judge answered", "count", "watch"),
    _metric("audit/failed", "Audits of the step that it did not", "count", "zero"),
    _metric(
        "audit/gap", "Estimated mean distance of the cascade's score from the judge's, all replies", "score", "down"
    ),
    _metric(
        "audit/inside_gap", "Mean S_R - S_J of the audited replies; above 0 the reranker is kinder", "score", "zero"
    ),
    _metric(
        "audit/disagree_frac", "Share of the audited whose S_J lies on the other side of one half", "share", "down"
    ),
    _metric("audit/drift", "How far the inside gap has moved, in standard errors", "se", "zero"),
    # Signs of reward hacking
    _metric("watch/length_correlation", "Correlation of total reward and response tokens", "r", "zero"),
    _metric("watch/duplicate_frac", "Share of the responses that a sibling has said word for word", "share", "watch"),
    _metric("watch/top_reply_frac", "Share of the most frequent reply among all replies", "share", "watch"),
    _metric("watch/distinct_replies", "Different replies of a step", "count", "watch"),
    _metric(
        "watch/distinct_acts",
        "Different acts, or clusters of references by meaning, among the replies since the last scorer check",
        "count",
        "watch",
    ),
    _metric("watch/scorer_gap", "Mean distance between S_R and S_J where both are known", "score", "down"),
    _metric("scorers/fooled_frac", "Contexts in which a wrong reply of the policy wins", "share", "zero"),
    _metric("watch/top_component", "Largest component's share of the contributions' variance", "share", "watch"),
    _metric("alarm/<name>", "1 where a figure is beyond its limit in `logging.alarms`, 0 within it", "flag", "zero"),
    # Truth, by rule and never part of the reward: only where the data name their acts
    _metric(
        "truth/exact_act",
        "Share of the step's responses with the due act and the right facts, replies included",
        "share",
        "up",
    ),
    _metric("truth/exact_by_act/<act>", "The same of the responses where this act is due", "share", "up"),
    _metric(
        "truth/drop",
        "How far exact_act, over the last steps, is below its best earlier value while the reward is above what it was "
        "then; 0 where it is not",
        "share",
        "zero",
    ),
    # Policy
    _metric("policy/loss", "Loss that was minimised", "nats", "watch"),
    _metric(
        "policy/entropy",
        "Mean entropy of the next-token distribution; a collapse to 0 ends exploration",
        "nats",
        "watch",
    ),
    _metric(
        "policy/kl_to_reference",
        "Estimated KL to the reference policy, the one that RL started from (algorithm.kl: coef or measure)",
        "nats",
        "zero",
    ),
    _metric("policy/advantage/<stat>", "Advantages of the responses that the step learns from", "", "watch"),
    _metric(
        "policy/update_ratio",
        "Norm of the step's change over the norm of the weights, of four matrices; 1e-3 is usual, 1e-2 large",
        "ratio",
        "watch",
    ),
    _metric(
        "policy/approx_kl", "Estimated KL (k3) between the policy before the step's updates and after", "nats", "zero"
    ),
    _metric(
        "policy/ratio",
        "Mean probability ratio of the updated to the former policy; 1 at the first update",
        "ratio",
        "watch",
    ),
    _metric("policy/clipped", "Share of tokens whose gain was clipped", "share", "watch"),
    _metric(
        "policy/importance_weight",
        "Mean truncated importance weight of trainer over engine; 1 is agreement",
        "ratio",
        "watch",
    ),
    _metric("policy/importance_clipped", "Share of tokens whose importance weight met its cap", "share", "down"),
    _metric("policy/tokens", "Completion tokens that carried loss", "tokens", "watch"),
    _metric("policy/grad_norm", "Norm of the gradient before clipping", "norm", "watch"),
    _metric("policy/learning_rate", "Learning rate of the step", "rate", "watch"),
    _metric(
        "policy/skipped_steps", "Optimiser steps skipped so far for a gradient that was not finite", "count", "zero"
    ),
    # Groups, dropped ones included: a response is right if its consistency reward is above algorithm.right_above
    _metric("groups/all_wrong_frac", "Share of groups without a right response", "share", "down"),
    _metric("groups/all_right_frac", "Share of groups with right responses only", "share", "up"),
    _metric("groups/mixed_frac", "Share of groups with both: those that give an advantage", "share", "watch"),
    _metric("groups/<outcome>_by_act/<act>", "The same shares of the groups where this act is due", "share", "watch"),
    _metric("groups/kept_reward/<stat>", "Total reward in the groups that the step learns from", "reward", "watch"),
    # Supervised fine-tuning
    _metric("sft/loss", "Token-mean negative log-likelihood of the references", "nats", "down"),
    _metric("sft/grad_norm", "Norm of the gradient before clipping", "norm", "watch"),
    _metric("sft/learning_rate", "Learning rate of the step", "rate", "watch"),
    _metric("sft/tokens", "Reference tokens that carried loss", "tokens", "watch"),
    _metric("sft/update_ratio", "Norm of the step's change over the norm of the weights", "ratio", "watch"),
    _metric("sft/computed_tokens", "Prompt and target tokens of the batch", "tokens", "watch"),
    _metric("sft/skipped_steps", "Optimiser steps skipped so far for a gradient that was not finite", "count", "zero"),
    # Rollout
    _metric(
        "rollout/logprob_diff/mean",
        "Mean |log p(trainer) - log p(engine)| of the same tokens after a sync",
        "nats",
        "zero",
    ),
    _metric(
        "rollout/logprob_diff/max",
        "Largest |log p(trainer) - log p(engine)|; a jump means stale weights",
        "nats",
        "zero",
    ),
    _metric("rollout/tokens", "Tokens generated in the step", "tokens", "watch"),
    _metric("rollout/tokens_per_s", "Generated tokens per second of rollout", "tokens/s", "up"),
    _metric("rollout/truncated_frac", "Share of responses cut off at max_new_tokens", "share", "down"),
    _metric("rollout/policy_age/max", "Most optimiser steps by which a token's policy was behind", "steps", "zero"),
    _metric("rollout/response_tokens/<stat>", "Length of a response", "tokens", "watch"),
    _metric("rollout/prompts", "Prompts of the step, those of dropped groups included", "count", "watch"),
    _metric("rollout/responses", "Responses generated in the step, dropped groups included", "count", "watch"),
    _metric("rollout/responses_per_s", "Responses of the step for each second of the whole step", "1/s", "up"),
    _metric("rollout/groups_dropped", "Groups dropped because all their rewards were equal", "count", "down"),
    _metric("rollout/rounds", "Rounds of generation until the batch was full", "count", "down"),
    _metric(
        "rollout/prompts_dropped", "Prompts too long for the context, dropped when the data was read", "count", "zero"
    ),
    _metric("rollout/redone", "Responses generated again because a worker died", "count", "zero"),
    _metric(
        "rollout/rescored", "Scorings repeated because too many responses of a batch had no reward", "count", "zero"
    ),
    # Time
    _metric("timing/step/total", "Wall time of the whole step", "s", "down"),
    _metric("timing/step/rollout_score", "Generating and scoring, which overlap", "s", "down"),
    _metric("timing/step/paused", "Waiting for scorers that were away, part of rollout_score", "s", "zero"),
    _metric("timing/step/train", "Forward, backward and optimiser", "s", "down"),
    _metric("timing/step/sync", "Bringing the new weights to the rollout engines", "s", "down"),
    _metric("timing/step/<phase>", "Wall time of another phase of the step", "s", "down"),
    _metric("timing/train/forward_backward", "Forward and backward passes", "s", "down"),
    _metric("timing/train/optimizer", "Optimiser step", "s", "down"),
    _metric("timing/train/<phase>", "Wall time of another part of training", "s", "down"),
    _metric("timing/sync/write", "Trainer's part of the weight transfer", "s", "down"),
    _metric("timing/sync/load", "Engines' part of the weight transfer", "s", "down"),
    _metric("timing/sync/<phase>", "Wall time of another part of the weight transfer", "s", "down"),
    # Validation of hamr sft, per set, before training, every experiment.eval_every steps and at the end
    _metric("eval/validation/<set>/loss", "Mean negative log-likelihood of held-out tokens with loss", "nats", "down"),
    _metric(
        "eval/validation/<set>/<part>",
        "The same of one part of the target: rationale, action, environment, next_action",
        "nats",
        "down",
    ),
    # Held-out evaluation, per stage: base, sft, rl, and rl-<step> in between
    _metric(
        "eval/<stage>/exact_act",
        "Share of held-out responses with the due act and the right facts, replies included",
        "share",
        "up",
    ),
    _metric("eval/<stage>/exact_by_act/<act>", "The same of the decisions where this act is due", "share", "up"),
    _metric(
        "eval/<stage>/action_accuracy",
        "Share of held-out decisions with the right kind of action; where a reply is due, any reply counts",
        "share",
        "up",
    ),
    _metric(
        "eval/<stage>/tool_exact_match",
        "Share of held-out tool decisions with name and parameters exact",
        "share",
        "up",
    ),
    _metric("eval/<stage>/format_error_rate", "Share of held-out responses that are no action", "share", "down"),
    _metric("eval/<stage>/failed_frac", "Share of held-out responses that could not be scored", "share", "down"),
    _metric("eval/<stage>/n", "Held-out decisions that were evaluated", "count", "watch"),
    _metric("eval/<stage>/reward/<component>", "Mean held-out reward (`total`) or component value", "reward", "up"),
    # Whole dialogues with the policy, per stage (experiment.sage); scores are out of 100, means of the scenarios
    _metric("eval/<stage>/sage/logic", "Labels, path and action, on the judges' word", "points", "up"),
    _metric("eval/<stage>/sage/truth", "The same at last turns, by the customers' own cases", "points", "up"),
    _metric("eval/<stage>/sage/unreadable", "Assessed turns whose JSON cannot be read", "%", "down"),
    _metric("eval/<stage>/sage/format_error", "Assessed turns with any breach of the contract", "%", "down"),
    _metric("eval/<stage>/sage/chat_length", "Words of a reply to the customer", "words", "watch"),
    _metric("eval/<stage>/sage/dialogues", "Dialogues with simulated customers", "count", "watch"),
    _metric("eval/<stage>/sage/failed_frac", "Share of them that a pool broke off", "share", "down"),
    _metric("eval/<stage>/sage/<figure>", "Another score of SAGE, as in sage/<stage>/metrics.json", "points", "up"),
    _metric(
        "eval/<stage>/by_format/<format>/<figure>",
        "Held-out figures of the prompts that ask for one order of thought and answer; answer_tokens and answer_s go "
        "to the end of the answer",
        "of the figure",
        "watch",
    ),
    # System
    _metric("system/memory_gb", "Resident memory over all processes of the run", "GB", "down"),
)


class UnknownMetric(HamrError):
    """A metric that the glossary does not explain."""


@cache
def lookup(name: str) -> Metric | None:
    """The glossary's entry for a name, or None. Earlier, more special patterns win."""
    return next((m for m, regex in _compiled() if regex.fullmatch(name)), None)


@cache
def _compiled() -> tuple[tuple[Metric, re.Pattern[str]], ...]:
    return tuple((m, pattern_regex(m.pattern)) for m in METRICS)


def pattern_regex(pattern: str) -> re.Pattern[str]:
    """What names of a pattern look like, a group for each of its placeholders."""
    parts = re.split(r"<(\w+)>", pattern)  # text, placeholder, text, ...
    return re.compile("".join(f"({_WORDS.get(p, _WORD)})" if i % 2 else re.escape(p) for i, p in enumerate(parts)))


_warned: set[str] = set()


def check_names(names: Iterable[str], *, strict: bool | None = None) -> None:
    """Holds names against the glossary.

    Strict (tests; the default if `HAMR_STRICT_METRICS=1`) raises UnknownMetric; otherwise an unknown name is
    recorded all the same and warned about once in the life of the process.
    """
    strict = os.environ.get(STRICT_ENV) == "1" if strict is None else strict
    unknown = [n for n in names if lookup(n) is None and (strict or n not in _warned)]
    if not unknown:
        return
    message = f"metrics that hamr/observability/glossary.py does not explain: {', '.join(sorted(unknown))}"
    if strict:
        raise UnknownMetric(message)
    _warned.update(unknown)
    log.warning(message)


def markdown() -> str:
    """The glossary as a table."""
    lines = ["| metric | meaning | unit | better |", "|---|---|---|---|"]
    for m in METRICS:
        meaning = m.meaning.replace("|", "\\|")
        lines.append(f"| `{m.pattern}` | {meaning} | {m.unit or '-'} | {BETTER[m.good]} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """docs/metrics.md, whole; a test keeps the file equal to it."""
    return (
        "# Metrics\n\n"
        "The same names stand in `metrics.jsonl`, in W&B and in the report. A word in `<>` stands for one of many: a\n"
        "component of the reward, a pool, a stage. Written from `hamr/observability/glossary.py`; change it there.\n"
        "Back to the [README](../README.md).\n\n"
        f"{markdown()}"
    )
