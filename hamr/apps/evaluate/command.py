"""`hamr evaluate benchmark=...`: dispatches to the benchmark's own job."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType

from hamr.errors import BadInput

HELP = """\
hamr evaluate: scores a policy or an endpoint on a benchmark.

usage:
  hamr evaluate benchmark=sage scenario=NAME|FILE.yaml|all agent=WHO[,WHO...] simulator=WHO judges=WHO[,WHO,WHO]
      output=FOLDER [option=value ...] [pools.NAME.KEY=value ...]
  hamr evaluate benchmark=sage output=FOLDER rejudge=true judges=WHO[,WHO,WHO]
  hamr evaluate benchmark=ecs input=RESPONSES.jsonl|run=RUN_FOLDER judges=POOL[,POOL...] output=FOLDER
      [compare=OTHER.jsonl|RUN_FOLDER] [labels=PAIRS.jsonl] [option=value ...] [pools.NAME.KEY=value ...]
  hamr evaluate benchmark=olabench data=ITEMS.jsonl|FOLDER policy=WHO[,WHO...] [judge=POOL] output=FOLDER
      [option=value ...] [rewards.JUDGE.KEY=value ...] [pools.NAME.KEY=value ...]
  hamr evaluate benchmark=olabench labels=LABELLED.jsonl[,...] [judge=POOL] output=FOLDER

WHO is a pool of the configuration (`pools`), so any checkpoint and any OpenAI-compatible endpoint, or needs no model:
  agents       scripted:perfect scripted:wrong_branch scripted:wrong_action scripted:chatty scripted:silent
  simulators   scripted:worded scripted:patient scripted:hasty scripted:machine
  judges       scripted:gold scripted:strict scripted:contrary

sage: customers with an intent, a persona and an adversarial level talk to the agent. At turns 1, 5, 10, 15 and the
last, judges label the customer's case and grade the agent's chat; the procedure's rule engine derives the right action.
FOLDER gets traces.jsonl, judgements.jsonl, metrics.json, assessments.jsonl and report.html. The same command resumes an
interrupted evaluation. rejudge=true judges existing dialogues with other judges.

options (default):
  language=en|zh (en)  seed (0)  per_intent (3)  per_path (5)  cover=cases|routes (cases)  limit (none)  max_turns (30)
  agent_prompt=service|sample (service)
  tie=first|smallest|none (first)  path=intersection|prefix (intersection)  action=exact|group (exact)
  unreadable=left_out|zero (left_out)  user_temperature (0.7)  user_tokens (96)  agent_temperature (0)  reasks (2)
  attempts (3)  longest_wait_s (60)  at_once (capacity of the pools)  resamples (1000)

ecs: judges compare each response with every reference of its sample, as yes, part or no; per response the highest of
the references' means (Multi-ECS), and the logged reference's (Single-ECS). RESPONSES.jsonl has the input format of
`hamr score`. compare= adds a second policy on the same samples, with a p-value; labels= measures the judges' agreement
with people. FOLDER gets judgements.jsonl, items.jsonl, metrics.json and report.html. The same command collects only
missing votes. Without judges=, every pool with the role judge is used. Without judges= and pools=, the four endpoints
of pools=ecs are used (set pools.NAME.endpoint).

options (default):
  scores=hard|soft (hard)  stage=base|sft|rl (rl; of a run folder)  seed (0)  resamples (1000)  attempts (3)
  longest_wait_s (60)  model.response_format=plain|think_answer|answer_think|hybrid

olabench: policies answer items of three kinds (rag, workflow, agent). The judges of the side rewards grade dialogue,
policy and tool calling from 1 to 5 (several policies' responses in one prompt) and find risks and hallucinations. WHO
is a pool, a run folder (its newest checkpoint) or a file of {"id", "response"}. labels= tests the judges on responses
with known verdicts: planted by `hamr data olabench`, or labelled by people. FOLDER gets responses.jsonl,
judgements.jsonl, items.jsonl, summary.json and report.html. The same command collects only what is missing.

options (default):
  cot=none|pre|post (none)  judged=subset|all (subset)  temperature (0)  max_new_tokens (512)  limit (none)
  at_once (capacity of the policy's pool)  seed (0)  resamples (1000)  attempts (3)  longest_wait_s (60)
  rewards.policy.judging=comparative|single  rewards.JUDGE.pool|language|prompt|max_reasks, of dialogue, policy, tool,
  risk, hallucination

example, without a model:
  hamr evaluate benchmark=sage scenario=telecom_package agent=scripted:perfect simulator=scripted:patient \\
      judges=scripted:gold output=perfect"""

BENCHMARKS = {
    "ecs": "hamr.apps.evaluate.ecs.run",
    "olabench": "hamr.apps.evaluate.olabench.run",
    "sage": "hamr.apps.evaluate.sage.run",
}
"""Name -> module with a `main` that takes the other arguments."""
REQUESTS = {name: f"hamr.apps.evaluate.{name}.request" for name in BENCHMARKS}


def main(args: list[str]) -> int:
    """Run the benchmark's job. Raises BadInput for an unknown benchmark, and as the job does."""
    job, rest = _select_benchmark(args, BENCHMARKS)
    return int(job.main(rest))


def overrides_of(args: Sequence[str]) -> list[str]:
    """Return the arguments of the configuration, as determined by the benchmark's job."""
    request, rest = _select_benchmark(args, REQUESTS)
    return list(request.overrides_of(rest))


def _select_benchmark(args: Sequence[str], modules: Mapping[str, str]) -> tuple[ModuleType, list[str]]:
    """Return (the benchmark's module, the other arguments)."""
    named = [arg.partition("=")[2] for arg in args if arg.startswith("benchmark=")]
    known = ", ".join(sorted(BENCHMARKS))
    if not named:
        raise BadInput("benchmark", None, f"missing; give benchmark=<name>, one of: {known}")
    if named[-1] not in BENCHMARKS:
        near = difflib.get_close_matches(named[-1], BENCHMARKS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise BadInput("benchmark", named[-1], f"no such benchmark; {hint}there are: {known}")
    rest = [arg for arg in args if not arg.startswith("benchmark=")]
    return importlib.import_module(modules[named[-1]]), rest
