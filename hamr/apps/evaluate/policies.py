"""Policies that an evaluation may test: a pool, the newest checkpoint of a run folder, a function of the user's own, or
a file of finished responses."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hamr.apps.shared.pools_up import writing_pool
from hamr.apps.shared.trained_policy import TrainedPolicy
from hamr.bench.answers import PolicyUnderTest
from hamr.config.benchmarks import AgentConfig, names_function
from hamr.config.load import ALLOWED_FUNCTIONS
from hamr.config.pools import SPEED_ONLY, PoolConfig
from hamr.config.schema import Config
from hamr.data.policy_chat import PolicyChat, ToolsPrompt
from hamr.data.responses import text_of_response
from hamr.data.samples import read_rows
from hamr.errors import BadInput, DataError, did_you_mean
from hamr.models.bundled import resolve_model
from hamr.models.tokenizer import load_tokenizer
from hamr.pools.function_pool import ASYNC_CALLS, FunctionPool, FunctionProcess
from hamr.protocols import Ask
from hamr.rewards.custom import AgentSource

LEARNED = {
    "plain": ("none",),
    "think_answer": ("pre",),
    "answer_think": ("post",),
    "hybrid": ("pre", "post"),
}
"""Response orders that a policy trained in a format supports."""


@dataclass(frozen=True, kw_only=True)
class AskedPolicies:
    """Policies to be queried, by `names`: functions of the user's own, and `pools`, which are in `config`. `native`:
    those that get their tools as schemas."""

    options: AgentConfig
    names: tuple[str, ...]
    config: Config
    functions: Mapping[str, AgentSource]
    native: frozenset[str]

    @property
    def pools(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in self.functions)

    def settings_of(self, name: str) -> dict[str, Any]:
        """Return the settings that determine a policy's or a pool's answers: options without speed, or its function."""
        if name in self.functions:
            return {"function": name, "sha256": self.functions[name].sha256}
        return self.config.pools[name].model_dump(mode="json", exclude=SPEED_ONLY)

    def under_test(
        self, names: Sequence[str], items: Sequence[str], known: Sequence[str] | None = None
    ) -> list[PolicyUnderTest]:
        """Return the policies that are queried, and the files of responses among `names`. Raises as `read_responses`,
        and BadInput for two policies of one name."""
        at_once = {name: self.config.pools[name].places for name in self.pools}
        at_once |= dict.fromkeys(self.functions, ASYNC_CALLS * self.options.agent_processes)
        found = [
            PolicyUnderTest(name=name, settings=self.settings_of(name), at_once=many, native=name in self.native)
            for name, many in at_once.items()
        ]
        for path in (Path(name).expanduser() for name in names if is_file(name)):
            found.append(PolicyUnderTest(name=path.stem, given=read_responses(path, items, known)))
        counts = Counter(policy.name for policy in found)
        if doubled := next((name for name, count in counts.items() if count > 1), None):
            raise BadInput("policy", doubled, "two policies have this name; rename one of the files")
        return found

    @asynccontextmanager
    async def asks(self, pools: Mapping[str, Ask]) -> AsyncIterator[dict[str, Ask]]:
        """Yield a function that asks each policy, by name; those of `pools` that were started are given. The processes
        of the user's functions end with the context."""
        own = {name: pools[name] for name in self.pools if name in pools}
        async with open_functions(self.functions, self.options) as functions:
            yield {**own, **functions}


def with_policies(config: Config, key: str, names: Sequence[str], cot: str, options: AgentConfig) -> AskedPolicies:
    """Return the policies to be queried.

    A name is a pool, the path of a function, or of a run folder; the pool of a run folder is created with the engine of
    the run's rollouts, and its tools are shown as in its training. Files of responses (`*.jsonl`) are skipped. Raises
    BadInput for any other name, and for a run that was not trained to answer in the order `cot`.
    """
    functions = find_functions(key, [name for name in names if name not in config.pools], options)
    pools: dict[str, PoolConfig] = dict(config.pools)
    asked: list[str] = []
    native = set(functions) if options.tools != "prompt" else set()
    for given in names:
        if is_file(given):
            continue
        if given in functions:
            asked.append(given)
            continue
        if given in config.pools:
            asked.append(writing_pool(config, key, given))
            if options.tools == "native":
                check_native(config, given)
                native.add(given)
            continue
        path = Path(given).expanduser()
        if not path.is_dir():
            known = sorted(config.pools)
            remedy = (
                f"no such pool, run folder, function or file of responses; {did_you_mean(given, known)}"
                f"pools: {', '.join(known)}"
            )
            raise BadInput(key, given, remedy)
        name = f"run-{path.resolve().name}"
        if name in pools:
            raise BadInput(key, given, f"has the same name {name} as another; rename one of the folders")
        trained = TrainedPolicy.of(key, path)
        pools[name] = _pool_of_run(trained, cot)
        asked.append(name)
        wanted: ToolsPrompt = trained.config.model.tools_prompt
        if options.tools is not None:
            wanted = "template" if options.tools == "native" else "compact"
        if wanted != "compact" and PolicyChat.of(load_tokenizer(pools[name].model), wanted).native:
            native.add(name)
    config = config.model_copy(update={"pools": pools})
    names = tuple(dict.fromkeys(asked))
    return AskedPolicies(options=options, names=names, config=config, functions=functions, native=frozenset(native))


def is_file(given: str) -> bool:
    return given.endswith(".jsonl")


def read_responses(path: Path, ids: Sequence[str], known: Sequence[str] | None = None) -> dict[str, str]:
    """Return the response by item.

    A line is {"id", "response"}; more fields are allowed. `known`: the items of the whole bench, where a response to
    any other item is refused. Raises DataError (file and line), and BadInput for an item without a response.
    """
    bench = None if known is None else set(known)
    found: dict[str, str] = {}
    for number, row in read_rows(path):
        where = f"{path}:{number}"
        name, text = (row.get("id"), text_of_response(row.get("response"))) if isinstance(row, dict) else (None, None)
        if not isinstance(name, str) or text is None:
            remedy = "give an object with the item's id, and its response: a text or an assistant message"
            raise DataError(where, row, remedy)
        if name in found:
            raise DataError(f"{where}: id", name, "already used on an earlier line; give one response per item")
        if bench is not None and name not in bench:
            raise DataError(f"{where}: id", name, "names no item of the bench; correct it, or remove the line")
        found[name] = text
    missing = next((name for name in ids if name not in found), None)
    if missing is not None:
        remedy = f"has no response to this item; it has {len(found)} responses for {len(ids)} items; answer all items"
        raise BadInput(str(path), missing, remedy)
    return found


def _pool_of_run(trained: TrainedPolicy, cot: str) -> PoolConfig:
    run = trained.config
    orders = LEARNED[run.model.response_format]
    if cot not in orders:
        learned = f"{trained.folder.path} learned model.response_format={run.model.response_format}"
        remedy = f"{learned}; set cot={' or '.join(orders)}"
        raise BadInput("cot", cot, remedy)
    return PoolConfig(
        role="grader",
        model=str(trained.model),
        dtype=run.model.dtype,
        max_context=run.model.max_context,
        engine=run.rollout.engine,
        replicas=run.rollout.workers,
    )


# --- functions of the user's own ---------------------------------------------------------------


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
