"""Estimate of the questions, tokens and cost of an evaluation, shown before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from hamr.bench.sage.judging import AGAIN, assessed_turns
from hamr.bench.sage.store import Store
from hamr.bench.sage.traces import DialoguePlan
from hamr.config.sage import SCRIPTED
from hamr.config.schema import Config
from hamr.procedures import Scenario
from hamr.procedures.prompts import customer_reading_prompt, judge_prompt, service_prompt
from hamr.report.terminal import show
from hamr.report.values import Cell, Column, Table

if TYPE_CHECKING:
    from hamr.apps.evaluate.command import EvaluateSage

USUAL_TURNS = 10
MESSAGE, ANSWER, VERDICT = 25, 120, 250
"""Tokens of a customer's message, of an agent's answer and of a judge's."""
_LETTERS = 4.0
"""Letters in a token of English text; a Chinese character is counted as one token."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Questions to one pool, and their tokens, prompts and answers together."""

    questions: int = 0
    tokens: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(questions=self.questions + other.questions, tokens=self.tokens + other.tokens)


def token_estimate(text: str) -> int:
    """Return about how many tokens a text has.

    >>> token_estimate("a text of 24 characters!"), token_estimate("四个汉字")
    (6, 4)
    """
    chinese = sum("\u4e00" <= letter <= "\u9fff" for letter in text)
    return chinese + round((len(text) - chinese) / _LETTERS)


def dialogue_work(prompts: Mapping[str, int], turns: int, *, reads: bool = False) -> dict[str, Work]:
    """Return the work of one dialogue of `turns` turns by role.

    `prompts`: tokens of the system prompt of the agent, the simulator, a judge, and a judge that reads off what the
    customer shows (`reads`). Every question repeats the dialogue so far.
    """
    both = MESSAGE + ANSWER
    agent = sum(prompts["agent"] + turn * both + both for turn in range(turns))
    simulator = sum(prompts["simulator"] + turn * both + MESSAGE for turn in range(turns + 1))
    judged = assessed_turns(turns)
    judges = sum(prompts["judges"] + turn * both + VERDICT for turn in judged)
    judges += reads * (prompts["readers"] + turns * both + VERDICT)
    return {
        "agent": Work(questions=turns, tokens=agent),
        "simulator": Work(questions=turns + 1, tokens=simulator),
        "judges": Work(questions=len(judged) + reads, tokens=judges),
    }


def estimate(
    request: EvaluateSage, scenarios: Mapping[str, Scenario], pairs: Sequence[tuple[str, DialoguePlan]], turns: int
) -> dict[str, Work]:
    """Return the work of each pool for these (agent, customer) pairs, with `turns` turns in every dialogue."""
    found: dict[str, Work] = {}
    prompts: dict[str, dict[str, int]] = {}
    for agent, plan in pairs:
        if plan.scenario not in prompts:
            prompts[plan.scenario] = _prompts(scenarios[plan.scenario], plan)
        reads = plan.source != "file" and not request.simulator.startswith(SCRIPTED)
        work = dialogue_work(prompts[plan.scenario], turns, reads=reads)
        judged = [("judges", name.partition(AGAIN)[0]) for name in request.judges]
        talking = [] if request.is_held else [("agent", agent), ("simulator", request.simulator)]
        for role, name in (*talking, *judged):
            found[name] = found.get(name, Work()) + work[role]
    return found


def _prompts(scenario: Scenario, plan: DialoguePlan) -> dict[str, int]:
    language = plan.language
    texts = {
        "agent": service_prompt(scenario, plan.system, language=language),
        "simulator": plan.prompt(scenario) if plan.source != "file" else "",
        "judges": judge_prompt(scenario, language=language),
        "readers": customer_reading_prompt(scenario, language=language),
    }
    return {role: token_estimate(text) for role, text in texts.items()}


def show_cost(
    request: EvaluateSage,
    scenarios: Mapping[str, Scenario],
    config: Config,
    store: Store,
    pairs: Sequence[tuple[str, DialoguePlan]],
    console: Console,
) -> None:
    """Print the estimate of the dialogues that are not finished; of all, where they are only judged."""
    missing = [
        (agent, plan) for agent, plan in pairs if request.is_held or store.finished_trace(agent, plan.id) is None
    ]
    if not missing:
        return
    usual = estimate(request, scenarios, missing, min(USUAL_TURNS, request.max_turns))
    most = estimate(request, scenarios, missing, request.max_turns)
    rows = tuple(_rows(config, usual, most))
    if rows:
        columns = (
            Column("pool"),
            *(Column(name, "{:,}") for name in ("questions", "thousand tokens")),
            Column("cost", "{:,.2f}"),
            *(Column(f"at most: {name}", "{:,}") for name in ("questions", "thousand tokens")),
            Column("at most: cost", "{:,.2f}"),
        )
        note = (
            f"Estimate for {len(missing):,} dialogues of {min(USUAL_TURNS, request.max_turns)} turns, and at most "
            f"{request.max_turns} (max_turns), without retries, replaced customers and the exam of the judges as "
            "readers. Cost at the pool's price_per_1k_tokens."
        )
        table = Table("What this run asks", columns, rows, note=note)
        show(table, console=console)


def _rows(config: Config, usual: Mapping[str, Work], most: Mapping[str, Work]) -> Iterator[tuple[Cell, ...]]:
    for name, work in usual.items():
        if name in config.pools:
            price = config.pools[name].price_per_1k_tokens
            cells: list[Cell] = []
            for one in (work, most[name]):
                cells += [one.questions, round(one.tokens / 1000), price * one.tokens / 1000 if price else None]
            yield (name, *cells)
