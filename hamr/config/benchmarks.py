"""Options of `hamr evaluate` in addition to files, policies, agents and judges. Every default lives here and in
`hamr.config.sage`."""

from __future__ import annotations

import re
from typing import Literal

from hamr.config.section import (
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SampleCount,
    Section,
    Seed,
    SmallInt,
    Temperature,
)

_FUNCTION = re.compile(r"(?:.*\.py|[A-Za-z_][\w.]*):[A-Za-z_]\w*")


def names_function(agent: str) -> bool:
    """Return whether the name of an agent is a path FILE.py:FUNCTION or MODULE:FUNCTION.

    >>> names_function("my_agent.py:reply"), names_function("scripted:perfect"), names_function("judge")
    (True, False, False)
    """
    return _FUNCTION.fullmatch(agent) is not None and not agent.startswith("scripted:")


class AgentConfig(Section):
    """Questions to the agents and policies under test, the same for every benchmark."""

    tools: Literal["prompt", "native"] | None = None
    """`native`: an agent gets the tools as OpenAI function schemas, which the chat template of a local model shows, and
    its `tool_calls` are read. `prompt`: the prompt describes the tools, and a call is a text. null: `native` for a
    function, else `prompt`."""
    agent_deadline_s: PositiveFloat = 60.0
    """Maximum duration of one call of a function. After it, the process of the function is replaced, and the outcome is
    a failure of this answer."""
    agent_processes: SmallInt = 1
    """Processes of a function. Each runs one call at a time, or 64 if the function is async."""


class AnswerConfig(Section):
    """Reading of the answers of an agent."""

    fence: Literal["strip", "error"] = "error"
    """A code fence around the JSON of an answer or of its tool call. `error`: the answer is malformed, because the
    prompt asks for bare JSON, and the format errors of SAGE include fences. `strip`: the fence is removed first."""


class RetryConfig(Section):
    """Retries of the questions to pools."""

    attempts: PositiveInt = 3
    """Attempts per question to a pool that temporarily refuses questions."""
    longest_wait_s: PositiveFloat = 60.0
    """Maximum wait between two attempts, if the pool states a retry time."""


class EcsConfig(RetryConfig, AnswerConfig):
    """Options of the Ensemble-Consistency Score."""

    scores: Literal["hard", "soft"] = "hard"
    """`hard`: the label of a judge as 1, 0.5 or 0. `soft`: P(yes) + 0.5 P(part) of the labels, if the judge returns
    probabilities. The votes are stored with both, so the other is available without new calls."""
    stage: str = "rl"
    """Stage of a run folder whose responses to the test split are scored (base, sft, rl)."""
    temperature: Temperature = 0.0
    """Sampling temperature of the policy."""
    max_new_tokens: PositiveInt = 512
    """Maximum length of a response of the policy in tokens."""
    seed: Seed = 0
    """Determines the sampling and the resampling."""
    resamples: SampleCount = 1000
    """Resamples of the bootstrap intervals and of the permutation test."""


class OlabenchConfig(RetryConfig, AnswerConfig):
    """Options of OlaBench."""

    cot: Literal["none", "pre", "post"] = "none"
    """Response format of the policies: the response alone, reasoning first, or the answer first. In post-CoT,
    generation stops at the end of the answer, as in a deployment, and latency is measured to there."""
    judged: Literal["subset", "all"] = "subset"
    """Judges of an item: those of its subset (core: dialogue, policy, tools; risk; hallucination), or all five, for
    data without subsets."""
    temperature: Temperature = 0.0
    """Sampling temperature of the policies."""
    max_new_tokens: PositiveInt = 512
    """Maximum length of a response in tokens."""
    limit: PositiveInt | None = None
    """Maximum number of items and of labelled responses, for a quick check: the first of each file."""
    latency_items: NonNegativeInt = 50
    """Number of items that are asked first, one after the other: the reported latency is theirs. The latency of the
    others, under load, is reported separately. 0: none."""
    at_once: PositiveInt | None = None
    """Concurrent responses to the other items. null: the capacity of the policy's pool."""
    seed: Seed = 0
    """Determines the sampling and the resampling."""
    resamples: SampleCount = 1000
    """Resamples of the bootstrap intervals."""


class PlansConfig(RetryConfig):
    """Options of the evaluation of plans."""

    prompt: Literal["planning", "training"] = "planning"
    """`planning`: the first paper's planning prompt (D.3.1), for any model. `training`: the prompt that the items of
    `hamr data patm` are trained with."""
    temperature: Temperature = 0.0
    """Sampling temperature of the policy."""
    max_new_tokens: PositiveInt = 1024
    """Maximum length of a plan in tokens."""
    seed: Seed = 0
    """Determines the sampling."""
    attempts: PositiveInt = 3
    """Attempts per question to a pool that temporarily refuses questions, and per answer of the judge that cannot be
    parsed."""


class Tau2Config(RetryConfig):
    """Options of tau2-bench. The limits are the defaults of the package."""

    domain: Literal["retail", "airline", "telecom"] = "retail"
    """Domain of the tasks."""
    split: Literal["train", "test", "base"] = "test"
    """Tasks: the package's split for training, for tests, or both (`base`)."""
    trials: PositiveInt = 4
    """Dialogues about each task. pass^k needs at least k."""
    limit: PositiveInt | None = None
    """Maximum number of tasks, for a quick check."""
    max_steps: PositiveInt = 200
    """Maximum number of messages in a dialogue."""
    max_errors: PositiveInt = 10
    """Maximum number of failed tool calls in a dialogue."""
    agent_temperature: Temperature = 0.0
    """Sampling temperature of the agents."""
    user_temperature: Temperature = 0.0
    """Sampling temperature of the customer."""
    seed: Seed = 300
    """Seed of the first trial."""
    at_once: PositiveInt = 8
    """Concurrent dialogues."""
