"""`hamr score`: the reward system without training, on finished responses, or again on what a run recorded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console as RichConsole
from rich.table import Table

from hamr.actors.pools import start_pools, stop_pools
from hamr.actors.router import RouterClient
from hamr.actors.session import ray_session
from hamr.backends.models import resolve_model
from hamr.config.load import load_config, load_dumped
from hamr.config.schema import Config
from hamr.data.samples import from_json, read_rows, write_rows
from hamr.errors import BadInput, DataError
from hamr.jobs.preparation import load_splits
from hamr.jobs.scorer import prepare_scorers
from hamr.observability.ledger import Ledger
from hamr.observability.metrics import reward_metrics
from hamr.observability.record_json import record_to_dict
from hamr.routing.replay import replay
from hamr.types import Failure, RewardRecord, Rollout, SampleKey, ServiceSample

HELP = "scores finished responses with the whole reward system, or replays a run's ledger"


def main(args: list[str]) -> int:
    """`input=<run folder>` replays the ledger; `input=<jsonl> output=<jsonl> [overrides]` asks the pools.

    A line of the JSONL is a sample with one more field, `response` (a text) or `responses` (several). The responses of
    one line are a group: judges that compare see them together.
    """
    given = {key: value for key, _, value in (arg.partition("=") for arg in args) if key in ("input", "output")}
    overrides = [arg for arg in args if arg.partition("=")[0] not in given]
    if "input" not in given:
        raise BadInput("input", None, "name a run folder to replay, or a JSONL of samples with responses")
    source = Path(given["input"])
    if source.is_dir():
        return replay_run(source)
    if "output" not in given:
        raise BadInput("output", None, "name the JSONL to write the records to")
    rows = read_responses(source)
    config = load_config(overrides)
    records = score_rows(config, rows)
    write_rows(given["output"], [record_to_dict(record) for record in records])
    _print_table(records, given["output"])
    return 0


def replay_run(folder: Path) -> int:
    """Computes every recorded reward again from its recorded scores; 1 if any differs, however little."""
    config = load_dumped(folder / "config.yaml")
    total = differing = 0
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        for record in ledger.rows():
            total += 1
            again = replay(record, config.rewards)
            if again != record.total:
                differing += 1
                print(f"differs: {record.key}: recorded {record.total}, replayed {again}")
    print(f"{total} records replayed, {differing} differ")
    return 1 if differing else 0


def read_responses(path: Path) -> list[tuple[ServiceSample, tuple[str, ...]]]:
    """Samples with their responses; DataError names file, line and field."""
    rows = []
    for line, row in read_rows(path):
        where = f"{path}:{line}"
        row = dict(row) if isinstance(row, dict) else row
        responses = _responses(row, where) if isinstance(row, dict) else ()
        rows.append((from_json(row, where=where), responses))
    return rows


def _responses(row: dict, where: str) -> tuple[str, ...]:
    one, several = row.pop("response", None), row.pop("responses", None)
    found = [one] if one is not None else several
    if not isinstance(found, list) or not found or not all(isinstance(text, str) for text in found):
        raise DataError(
            f"{where}: response", one if one is not None else several, "give a text, or `responses`: a list of texts"
        )
    return tuple(found)


def score_rows(config: Config, rows: Sequence[tuple[ServiceSample, tuple[str, ...]]]) -> list[RewardRecord]:
    """Every response through the pools of `config`, in the order of `rows`."""
    needs_training = any(pool.finetune for pool in config.pools.values())
    splits = load_splits(config.data, config.experiment.seed) if needs_training else None
    scorers = prepare_scorers(config, splits.train if splits else (), splits.validation if splits else (), print)
    with ray_session(config.cluster):
        return asyncio.run(_score(config, {name: s.path for name, s in scorers.items()}, rows))


async def _score(
    config: Config, paths: dict[str, Path], rows: Sequence[tuple[ServiceSample, tuple[str, ...]]]
) -> list[RewardRecord]:
    run = "score"
    await start_pools(config.pools, paths, run=run, timeout_s=config.cluster.start_timeout_s)
    router = await RouterClient.start(
        config.rewards, config.pools, config.router, resolve_model(config.model.path), config.model.response_format, run
    )
    try:
        return list(await asyncio.gather(*(router.score(*pair) for pair in rollouts(run, rows))))
    finally:
        await router.shutdown()
        await stop_pools(run)


def rollouts(run: str, rows: Sequence[tuple[ServiceSample, tuple[str, ...]]]) -> list[tuple[ServiceSample, Rollout]]:
    """The responses of each row as one group. A sample that stands on several lines is a group for each: the attempt
    tells them apart, as it does when a prompt comes up again within a step of training."""
    seen: Counter[str] = Counter()
    paired = []
    for sample, responses in rows:
        attempt, siblings = seen[sample.id], len(responses)
        seen[sample.id] += 1
        for index, text in enumerate(responses):
            paired.append((sample, finished(run, sample, index, text, siblings=siblings, attempt=attempt)))
    return paired


def finished(run: str, sample: ServiceSample, index: int, text: str, *, siblings: int = 1, attempt: int = 0) -> Rollout:
    """A response that somebody else generated, as a rollout without tokens."""
    return Rollout(
        key=SampleKey(run=run, step=0, prompt=sample.id, sample=index, attempt=attempt),
        prompt_ids=(),
        token_ids=(),
        logprobs=(),
        text=text,
        finish_reason="stop",
        versions=(),
        siblings=siblings,
    )


def _print_table(records: Sequence[RewardRecord], output: str) -> None:
    table = Table("figure", "value", title=f"{len(records)} responses, records in {output}")
    for name, value in sorted(reward_metrics(records).items()):
        table.add_row(name, f"{value:.4f}")
    failed = sum(isinstance(record.total, Failure) for record in records)
    table.add_row("failed", str(failed))
    RichConsole().print(table)
