"""Glossary of all metrics, for W&B, `metrics.jsonl` and the documentation.

A name is `area/subject/stat`. `<...>` in a pattern stands for one word, `<stat>` for mean, std, min, max, sum or a
percentile, `<percentile>` for p10 and the like.
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
    """Entry of the glossary. `good`: up, down, zero (closer is better) or watch (neither direction is better)."""

    pattern: str
    meaning: str
    unit: str
    good: Good


def _metric(pattern: str, meaning: str, unit: str, good: Good) -> Metric:
    return Metric(pattern=pattern, meaning=meaning, unit=unit, good=good)


METRICS: tuple[Metric, ...] = (
    # Rewards: over the scored responses of a step; failures are counted but excluded from averages.
    _metric("reward/total/mean", "Mean total reward: the learning curve", "reward", "up"),
    _metric("reward/total/min", "Lowest total reward of the step", "reward", "up"),
    _metric("reward/total/max", "Highest total reward of the step", "reward", "up"),
    _metric(
        "reward/total/std",
        "Population standard deviation of the total reward; near 0 there is no learning signal",
        "reward",
        "watch",
    ),
    _metric("reward/total/<percentile>", "Percentile of the total reward (p10, p50, p90)", "reward", "up"),
    _metric("reward/<component>/mean", "Mean value of one component before its weight", "reward", "up"),
    _metric("reward/<component>/std", "Population standard deviation of one component", "reward", "watch"),
    _metric(
        "reward/failed_frac", "Share of responses that could not be scored; they carry no advantage", "share", "down"
    ),
    _metric("reward/outcome/<kind>", "Share of responses whose total has this kind of outcome", "share", "watch"),
    # Progress
    _metric("progress/step", "Last finished step; only for sinks without a step column (Prometheus)", "step", "watch"),
    _metric("progress/left_s", "Estimated remaining time of the stage at the pace of its last steps", "s", "watch"),
    # Router
    _metric("router/requests", "Responses scored since the last reading, evaluations included", "count", "watch"),
    _metric(
        "router/escalated_frac", "Share of replies in the cascade that were escalated to the judge", "share", "down"
    ),
    _metric("router/band/<band>_frac", "Share of replies in the cascade whose S_R is in this band", "share", "watch"),
    _metric(
        "router/type_mismatch_frac",
        "Share of responses with the wrong kind of action (reward 0, no scorer asked)",
        "share",
        "down",
    ),
    _metric("router/tool_match_frac", "Share of responses judged by exact match of a tool call", "share", "watch"),
    _metric("router/verbatim_frac", "Share of responses that repeat a reference verbatim", "share", "watch"),
    _metric("router/malformed_frac", "Share of responses that are not an action", "share", "down"),
    _metric("router/reranker_calls", "Questions sent to rerankers", "count", "watch"),
    _metric("router/judge_calls", "Questions sent to judges", "count", "down"),
    _metric("router/side_calls", "Questions sent to judges for side rewards", "count", "watch"),
    _metric("router/reasks", "Questions repeated because the judge's answer was unparsable", "count", "zero"),
    _metric("router/vetoed_frac", "Share of responses that a veto excluded from the costlier judges", "share", "down"),
    _metric("router/cache_hit_frac", "Share of questions answered from the cache", "share", "up"),
    _metric("router/judged_items_frac", "Share of rubric items that their reranker left to the judge", "share", "down"),
    _metric(
        "router/fallbacks", "Replies scored by the reranker alone because the judge was unavailable", "count", "zero"
    ),
    _metric(
        "router/fallback_frac",
        "Share of responses scored by the reranker alone because the judge was unavailable",
        "share",
        "zero",
    ),
    _metric(
        "router/prefix_hit_frac/<pool>", "Share of the pool's prompt tokens found in a prefix cache", "share", "up"
    ),
    _metric("router/failures/<kind>", "Components with this kind of failure", "count", "zero"),
    _metric("router/queue_s/<pool>/<stat>", "Time a question waited for a replica", "s", "down"),
    _metric("router/service_s/<pool>/<stat>", "Time a replica took to answer", "s", "down"),
    _metric("router/seconds/<stat>", "Time from a response's end to its reward", "s", "down"),
    _metric("router/tokens/<pool>", "Prompt and output tokens processed by the pool", "tokens", "down"),
    _metric("router/cost/<pool>", "Cost of the pool's answers, at its own price", "cost", "down"),
    _metric("router/rescored", "Responses rescored after a restart of the router, since the start", "count", "zero"),
    _metric("router/unrouted", "Responses without a record from the router, since the start", "count", "zero"),
    _metric("pool/<pool>/replicas", "Target number of replicas of the pool", "count", "watch"),
    _metric("pool/<pool>/running", "Running replicas", "count", "watch"),
    _metric("pool/<pool>/scaled", "Number of resizes by `hamr scale` since the start", "count", "watch"),
    _metric("pool/<pool>/waiting", "Questions without an answer at the last reading", "count", "down"),
    _metric("pool/<pool>/p50_s", "Median latency of the last answers, queueing included", "s", "down"),
    _metric("pool/<pool>/p99_s", "99th percentile of the same", "s", "down"),
    _metric("pool/<pool>/asked", "Questions sent to the pool since the start", "count", "watch"),
    _metric("pool/<pool>/scored", "Questions answered with a score since the start", "count", "watch"),
    _metric("pool/<pool>/retried", "Retries on another replica since the start", "count", "zero"),
    _metric("pool/<pool>/timeout", "Questions that exceeded their deadline since the start", "count", "zero"),
    _metric("pool/<pool>/unparsable", "Answers with an unparsable verdict since the start", "count", "zero"),
    _metric("pool/<pool>/unavailable", "Questions that no replica could accept since the start", "count", "zero"),
    _metric("pool/<pool>/refused", "Questions refused by the open circuit breaker since the start", "count", "zero"),
    _metric("pool/<pool>/breaker", "State of the circuit breaker: 0 closed, 0.5 half open, 1 open", "", "zero"),
    _metric("pool/<pool>/breaker_openings", "Times the circuit breaker opened since the start", "count", "zero"),
    _metric("pool/<pool>/hedged", "Questions also sent to a second replica since the start", "count", "watch"),
    _metric("pool/<pool>/hedge_won", "Hedged questions that the second replica answered first", "count", "watch"),
    _metric(
        "pool/<pool>/hedge_cost",
        "Cost of the slower replicas' answers, at the price of the faster ones",
        "cost",
        "down",
    ),
    _metric("pool/<pool>/hedge_after_s", "Current time after which a request is hedged", "s", "watch"),
    _metric(
        "pool/<pool>/prefix_hit_frac", "Share of prompt tokens found in a prefix cache since the start", "share", "up"
    ),
    # The cascade of a run that moves its interval (certificate, budget)
    _metric("cascade/tau_a", "Lower end of the trust interval used in the step", "score", "watch"),
    _metric("cascade/tau_b", "Upper end of the trust interval used in the step", "score", "watch"),
    _metric("cascade/moved", "Larger of the two changes of the interval's ends after the step", "score", "watch"),
    _metric(
        "cascade/judge_frac",
        "Share of the window's replies that this interval escalates to the judge",
        "share",
        "watch",
    ),
    _metric("cascade/window", "Replies used to move the interval", "count", "watch"),
    # Audits of the fast pass, over the last 2,000 replies and 400 audits
    _metric("audit/answered", "Audits of the step that were answered", "count", "watch"),
    _metric("audit/failed", "Audits of the step that were not answered", "count", "zero"),
    _metric(
        "audit/gap", "Estimated mean distance of the cascade's score from the auditor's, all replies", "score", "down"
    ),
    _metric(
        "audit/inside_gap",
        "Mean S_R - auditor's score inside the interval; above 0 the reranker is more lenient",
        "score",
        "zero",
    ),
    _metric(
        "audit/disagree_frac",
        "Share of audited replies with S_R and the auditor's score on different sides of 0.5",
        "share",
        "down",
    ),
    _metric("audit/drift", "Change of the inside gap, in standard errors", "se", "zero"),
    *(
        _metric(
            f"audit/{name}_debiased/<figure>",
            f"Mean {shown} corrected by audits: mean, low and high of its 95 % interval; naive, audits",
            "of the figure",
            "watch",
        )
        for name, shown in (("consistency", "consistency"), ("total", "reward"))
    ),
    # Certificate of the trust interval: anytime-valid 95 % bounds on the mean of reward - judge's reward inside it
    _metric("audit/bound_lower", "Lower bound on the mean excess of rewards inside the interval", "score", "zero"),
    _metric("audit/bound_upper", "Upper bound on the mean excess of rewards inside the interval", "score", "down"),
    _metric("audit/bound_audits", "Audits behind these bounds", "count", "watch"),
    _metric("audit/bound_excess", "Amount by which the lower bound exceeds the configured limit", "score", "zero"),
    # Correction of rewards by audits
    _metric("audit/correction_mean", "Mean absolute correction of the replies that may be audited", "score", "watch"),
    _metric("audit/correction_max", "Largest absolute correction of the step", "score", "watch"),
    _metric("audit/correction_audits", "Audits behind the corrections", "count", "watch"),
    _metric("audit/correction_strata", "Strata with audits", "count", "watch"),
    # Signs of reward hacking
    _metric("watch/length_correlation", "Correlation of total reward and response tokens", "r", "zero"),
    _metric("watch/duplicate_frac", "Share of responses that a sibling repeats verbatim", "share", "watch"),
    _metric(
        "watch/top_reply_frac",
        "Share of the most frequent reply among the replies of the last 10 steps",
        "share",
        "watch",
    ),
    _metric("watch/distinct_replies", "Different replies of a step", "count", "watch"),
    _metric(
        "watch/distinct_acts",
        "Different acts, or clusters of references by meaning, among the replies since the last scorer check",
        "count",
        "watch",
    ),
    _metric("watch/scorer_gap", "Mean |S_R - S_J| of replies with both scores", "score", "down"),
    _metric("scorers/fooled_frac", "Share of contexts in which a wrong reply of the policy wins", "share", "zero"),
    _metric(
        "scorers/false_accept_frac",
        "Share of wrong replies that score like right ones, of the act in which it is largest; only if the data name "
        "their acts",
        "share",
        "zero",
    ),
    _metric("scorers/refits", "Refits of the scorers so far (`scorers.on_alarm=refit`)", "count", "watch"),
    _metric("watch/top_component", "Largest component's share of the contributions' variance", "share", "watch"),
    _metric("alarm/<name>", "1 if a metric exceeds its limit in `logging.alarms`, else 0", "flag", "zero"),
    # Truth, by rule and never part of the reward; only if the data name their acts
    _metric(
        "truth/exact_act",
        "Share of the step's responses with the due act and the right facts, replies included",
        "share",
        "up",
    ),
    _metric("truth/exact_by_act/<act>", "exact_act of the responses for which this act is due", "share", "up"),
    _metric(
        "truth/reranker_wrong_frac", "Share of the replies scored by both that the reranker misjudges", "share", "down"
    ),
    _metric("truth/judge_wrong_frac", "The same of the judge", "share", "down"),
    _metric("truth/both_wrong_frac", "The same of reranker and judge together", "share", "down"),
    _metric(
        "truth/drop",
        "How far exact_act, over the last steps, is below its best earlier value while the reward is above what it was "
        "then; 0 where it is not",
        "share",
        "zero",
    ),
    # Policy
    _metric("policy/loss", "Training loss", "nats", "watch"),
    _metric(
        "policy/entropy",
        "Mean entropy of the next-token distribution; a collapse to 0 ends exploration",
        "nats",
        "watch",
    ),
    _metric(
        "policy/kl_to_reference",
        "Estimated KL (chi-squared with estimator=chi2) to the reference policy, which RL started from "
        "(algorithm.kl: coef or measure)",
        "nats",
        "zero",
    ),
    _metric("policy/advantage/<stat>", "Advantages of the responses in the training batch", "", "watch"),
    _metric(
        "policy/update_ratio",
        "Norm of the update over the norm of the weights, of four matrices; 1e-3 is usual, 1e-2 large",
        "ratio",
        "watch",
    ),
    _metric(
        "policy/approx_kl", "Estimated KL (k3) between the policy before the step's updates and after", "nats", "zero"
    ),
    _metric(
        "policy/ratio",
        "Mean probability ratio of the updated to the previous policy; 1 at the first update",
        "ratio",
        "watch",
    ),
    _metric("policy/clipped", "Share of tokens without a gradient because the objective clips them", "share", "watch"),
    _metric(
        "policy/importance_weight",
        "Mean importance weight of trainer over engine after cap and mask; 1 is agreement",
        "ratio",
        "watch",
    ),
    _metric(
        "policy/importance_ratio/<stat>",
        "Quantiles of the probability ratio of trainer to engine per token, before cap and mask; of each micro-batch, "
        "then averaged",
        "ratio",
        "watch",
    ),
    _metric("policy/importance_clipped", "Share of tokens whose importance weight was truncated", "share", "down"),
    _metric(
        "policy/importance_masked",
        "Share of tokens with weight 0: ratio outside mask_outside, or response rejected",
        "share",
        "down",
    ),
    _metric(
        "policy/engine_kl",
        "Estimated KL (k3) of the policy that sampled, in the engine, to the trainer's before the step's updates",
        "nats",
        "zero",
    ),
    _metric("policy/tokens", "Completion tokens in the loss", "tokens", "watch"),
    _metric("policy/grad_norm", "Norm of the gradient before clipping", "norm", "watch"),
    _metric("policy/learning_rate", "Learning rate of the step", "rate", "watch"),
    _metric(
        "policy/skipped_steps", "Optimiser steps skipped so far for a gradient that was not finite", "count", "zero"
    ),
    _metric(
        "policy/shared_prompt",
        "1 if prompts are computed once per group; 0 for packed or padded rows",
        "0 or 1",
        "watch",
    ),
    # Groups, dropped ones included: a response is right if its consistency reward is above algorithm.right_above
    _metric("groups/all_wrong_frac", "Share of groups without a right response", "share", "down"),
    _metric("groups/all_right_frac", "Share of groups with right responses only", "share", "up"),
    _metric(
        "groups/mixed_frac",
        "Share of groups with both right and wrong responses, which give an advantage",
        "share",
        "watch",
    ),
    _metric(
        "groups/<outcome>_by_act/<act>", "The same shares among the groups for which this act is due", "share", "watch"
    ),
    _metric("groups/kept_reward/<stat>", "Total reward in the groups of the training batch", "reward", "watch"),
    # Dialogues, where prompts become dialogues
    _metric("episodes/ended_frac", "Share of dialogues that came to their end", "share", "up"),
    _metric("episodes/max_turns_frac", "Share of dialogues that rollout.max_turns cut off", "share", "down"),
    _metric("episodes/context_full_frac", "Share of dialogues that outgrew the model's context", "share", "down"),
    _metric("episodes/failed_frac", "Share of dialogues that failed and have no reward", "share", "zero"),
    _metric("episodes/turns/<stat>", "Responses of the policy in a dialogue", "count", "watch"),
    _metric("episodes/tokens/<stat>", "Tokens of the policy in a dialogue", "tokens", "watch"),
    _metric("episodes/reward/<stat>", "Reward of a dialogue as a whole, without those of its turns", "reward", "up"),
    _metric("episodes/component/<name>", "Mean value of one such reward, for example completion", "value", "watch"),
    _metric("episodes/completion_by_path/<path>", "Mean completion by the path of the customer", "share", "up"),
    # Supervised fine-tuning
    _metric("sft/loss", "Token-mean negative log-likelihood of the references", "nats", "down"),
    _metric("sft/grad_norm", "Norm of the gradient before clipping", "norm", "watch"),
    _metric("sft/learning_rate", "Learning rate of the step", "rate", "watch"),
    _metric("sft/tokens", "Reference tokens in the loss", "tokens", "watch"),
    _metric("sft/update_ratio", "Norm of the update over the norm of the weights", "ratio", "watch"),
    _metric("sft/computed_tokens", "Prompt and target tokens of the batch", "tokens", "watch"),
    _metric(
        "sft/shared_prompt", "1 if prompts are computed once per group; 0 for packed or padded rows", "0 or 1", "watch"
    ),
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
    _metric("rollout/truncated_frac", "Share of responses truncated at max_new_tokens", "share", "down"),
    _metric(
        "rollout/policy_age/max",
        "Largest number of policy versions since a token of the batch was sampled",
        "versions",
        "down",
    ),
    _metric("rollout/stale_groups", "Groups older than the bound on the policy's age, not trained on", "count", "zero"),
    _metric("rollout/surplus_groups", "Scored groups that an oversampled step did not need", "count", "down"),
    _metric("rollout/aborted_groups", "Groups that an oversampled step aborted", "count", "down"),
    _metric(
        "rollout/redrawn_length",
        "Mean tokens of responses to prompts that the step before aborted, over those of the others; above 1, aborting "
        "removes long responses",
        "",
        "watch",
    ),
    _metric(
        "rollout/groups_in_flight", "Groups still being generated or scored when the step trains", "count", "watch"
    ),
    _metric("rollout/response_tokens/<stat>", "Length of a response", "tokens", "watch"),
    _metric("rollout/prompts", "Prompts of the step, those of dropped groups included", "count", "watch"),
    _metric("rollout/responses", "Responses generated in the step, dropped groups included", "count", "watch"),
    _metric("rollout/responses_per_s", "Responses of the step per second of the whole step", "1/s", "up"),
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
    _metric("timing/step/paused", "Waiting for unavailable scorers, part of rollout_score", "s", "zero"),
    _metric("timing/step/train", "Forward, backward and optimiser", "s", "down"),
    _metric("timing/step/sync", "Transferring the new weights to the rollout engines", "s", "down"),
    _metric("timing/step/checkpoint", "Waiting for the checkpoint before the step, not part of total", "s", "down"),
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
        "The same for one part of the target: rationale, action, environment, next_action",
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
    _metric("eval/<stage>/exact_by_act/<act>", "exact_act of the decisions for which this act is due", "share", "up"),
    _metric(
        "eval/<stage>/action_accuracy",
        "Share of held-out decisions with the right kind of action; if a reply is due, any reply counts",
        "share",
        "up",
    ),
    _metric(
        "eval/<stage>/tool_exact_match",
        "Share of held-out tool decisions with name and parameters exact",
        "share",
        "up",
    ),
    _metric("eval/<stage>/format_error_rate", "Share of held-out responses that are not an action", "share", "down"),
    _metric("eval/<stage>/failed_frac", "Share of held-out responses that could not be scored", "share", "down"),
    _metric("eval/<stage>/n", "Evaluated held-out decisions", "count", "watch"),
    _metric("eval/<stage>/reward/<component>", "Mean held-out reward (`total`) or component value", "reward", "up"),
    *(
        _metric(
            f"eval/<stage>/{name}_debiased/<figure>",
            f"Mean held-out {shown} corrected by audits: mean, low and high of its 95 % interval; naive, audits",
            "of the figure",
            "watch",
        )
        for name, shown in (("consistency", "consistency"), ("total", "reward"))
    ),
    # Whole dialogues with held-out customers, per stage (env=sage)
    _metric("eval/<stage>/episodes/completion", "Share of held-out customers whose case was completed", "share", "up"),
    _metric("eval/<stage>/episodes/exact_act", "Share of exact turns with held-out customers", "share", "up"),
    _metric("eval/<stage>/episodes/turn_reward", "Mean reward of a turn with held-out customers", "reward", "up"),
    _metric(
        "eval/<stage>/episodes/completion_by_path/<path>", "The completed share by the customer's path", "share", "up"
    ),
    _metric("eval/<stage>/episodes/<figure>", "Number, turns and ends of these dialogues", "of the figure", "watch"),
    # Whole dialogues with the policy, per stage (experiment.sage); scores are out of 100, means over scenarios
    _metric("eval/<stage>/sage/logic", "Labels, path and action, as rated by the judges", "points", "up"),
    _metric(
        "eval/<stage>/sage/truth",
        "Labels, path and action at last turns, by the ground truth of the cases",
        "points",
        "up",
    ),
    _metric("eval/<stage>/sage/unreadable", "Assessed turns with unparsable JSON", "%", "down"),
    _metric("eval/<stage>/sage/format_error", "Assessed turns that violate the output format", "%", "down"),
    _metric("eval/<stage>/sage/fenced", "Assessed turns with a code fence around the JSON", "%", "down"),
    _metric("eval/<stage>/sage/chat_length", "Words per reply to the customer", "words", "watch"),
    _metric("eval/<stage>/sage/dialogues", "Dialogues with simulated customers", "count", "watch"),
    _metric("eval/<stage>/sage/failed_frac", "Share of dialogues aborted by a failure of a pool", "share", "down"),
    _metric("eval/<stage>/sage/<figure>", "Other SAGE score, as in sage/<stage>/metrics.json", "points", "up"),
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
    """A metric that is not in the glossary."""


@cache
def lookup(name: str) -> Metric | None:
    """Return the glossary's entry for a name, or None. Earlier, more specific patterns take precedence."""
    return next((m for m, regex in _compiled_patterns() if regex.fullmatch(name)), None)


@cache
def _compiled_patterns() -> tuple[tuple[Metric, re.Pattern[str]], ...]:
    return tuple((m, pattern_regex(m.pattern)) for m in METRICS)


def pattern_regex(pattern: str) -> re.Pattern[str]:
    """Compile a pattern to a regular expression with one group per placeholder."""
    parts = re.split(r"<(\w+)>", pattern)  # text, placeholder, text, ...
    return re.compile("".join(f"({_WORDS.get(p, _WORD)})" if i % 2 else re.escape(p) for i, p in enumerate(parts)))


_warned: set[str] = set()


def check_names(names: Iterable[str], *, strict: bool | None = None) -> None:
    """Check names against the glossary.

    In strict mode (tests; the default if `HAMR_STRICT_METRICS=1`) an unknown name raises UnknownMetric. Otherwise it is
    recorded, with one warning per process.
    """
    strict = os.environ.get(STRICT_ENV) == "1" if strict is None else strict
    unknown = [n for n in names if lookup(n) is None and (strict or n not in _warned)]
    if not unknown:
        return
    message = f"metrics that are not in hamr/telemetry/glossary.py: {', '.join(sorted(unknown))}"
    if strict:
        raise UnknownMetric(message)
    _warned.update(unknown)
    log.warning(message)


def markdown() -> str:
    """Return the glossary as a Markdown table."""
    lines = ["| metric | meaning | unit | better |", "|---|---|---|---|"]
    for m in METRICS:
        meaning = m.meaning.replace("|", "\\|")
        lines.append(f"| `{m.pattern}` | {meaning} | {m.unit or '-'} | {BETTER[m.good]} |")
    return "\n".join(lines) + "\n"
