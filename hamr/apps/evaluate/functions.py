"""Agents that are functions of the user's own: loading before an evaluation starts, and processes while it runs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from hamr.config.agents import AgentConfig, names_function
from hamr.config.load import ALLOWED_FUNCTIONS
from hamr.config.schema import Config
from hamr.data.policy_chat import PolicyChat
from hamr.errors import BadInput
from hamr.models.bundled import resolve_model
from hamr.models.tokenizer import load_tokenizer
from hamr.pools.function_pool import FunctionPool, FunctionProcess
from hamr.protocols import Ask
from hamr.rewards.custom import AgentSource


def find_functions(key: str, names: Iterable[str], options: AgentConfig) -> dict[str, AgentSource]:
    """Load each function among the names in a process that then ends. Return their sources, with their digests.

    `key` is the option that names them. A function comes from the command line only, and in a resumed pipeline, whose
    commands come from its folder, from the list of allowed functions.

    Raises:
        ConfigError: A function does not exist, cannot be imported, or cannot be called with messages and tools.
    """
    found = {}
    allowed = os.environ.get(ALLOWED_FUNCTIONS)
    for name in filter(names_function, names):
        source = AgentSource(key=key, name=key, path=name, deadline_s=options.agent_deadline_s)
        if allowed is not None and name not in allowed.split(","):
            raise source.error(f"{ALLOWED_FUNCTIONS} does not list it; start the evaluation by its own command")
        source = source.with_text()
        process = FunctionProcess(source)
        process.kill()
        found[name] = replace(source, sha256=process.sha256)
    return found


@asynccontextmanager
async def open_functions(functions: Mapping[str, AgentSource], options: AgentConfig) -> AsyncIterator[dict[str, Ask]]:
    """Yield a function that asks each of the user's functions, by path. Their processes end with the context."""
    pools = {name: FunctionPool(source, options.agent_processes) for name, source in functions.items()}
    try:
        yield {name: pool.reply for name, pool in pools.items()}
    finally:
        for pool in pools.values():
            pool.close()


def check_native(config: Config, pool: str) -> None:
    """Raise BadInput for a local model whose chat template shows no tools."""
    model = config.pools[pool].model
    if config.pools[pool].type == "openai":
        return
    try:
        PolicyChat.of(load_tokenizer(resolve_model(model)), "template")
    except BadInput as error:
        raise BadInput("tools", "native", f"does not suit {pool} ({model}): {error.remedy}") from None
