"""`hamr score`: the reward system without training, on finished responses or on a run's recorded scores."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole

from hamr import __version__, signals
from hamr.apps.score.file import SkippedRows, check_input, needs_scoring, score_file, scoring_progress
from hamr.apps.score.output import SIDECAR, ScoreOutput
from hamr.apps.score.reward_system import RewardSystem
from hamr.apps.score.summary import Tally, cause_lines, plot, summary_tables
from hamr.apps.shared.input_files import own_files
from hamr.apps.shared.outputs import output_file
from hamr.cascade.auditors import check_pool_auditor
from hamr.cascade.replay import replay, replay_episode
from hamr.config.load import load_dumped
from hamr.config.pools import SPEED_ONLY
from hamr.config.schema import Config
from hamr.errors import BadInput
from hamr.pools.function_pool import check_functions
from hamr.report.terminal import show
from hamr.rewards.judged import check_reward_files
from hamr.security.redaction import redact_text
from hamr.telemetry.ledger import Ledger


def score(
    config: Config, source: Path, target: Path, *, resume: bool = False, retry: bool = False, skip: bool = False
) -> int:
    """Score `source` into `target`. All checks run before Ray starts."""
    console = RichConsole()

    def note(line: str) -> None:
        console.print(redact_text(line), highlight=False, markup=False, soft_wrap=True)

    if target.suffix == ".png":
        raise BadInput("output", str(target), "is the name of the histograms; name a .jsonl file")
    output_file(target, overwrite=True, source=source)
    config = config.model_copy(update={"rewards": check_functions(config.rewards)})
    check_reward_files(config.rewards)
    check_pool_auditor(config.rewards.consistency)
    tally = Tally(audit_by=config.rewards.consistency.audit.by)
    faults = SkippedRows(note) if skip else None
    checked = check_input(source, skip=faults)
    if not checked.groups:
        raise BadInput("input", str(source), "has no valid line; correct the lines named above")
    settings = score_settings(config)
    with ExitStack() as stack:
        output = stack.enter_context(ScoreOutput(target, source, settings, resume=resume or retry, skip=faults))
        aside = target.with_name(target.name + ".retry")
        if output.fresh:  # an interrupted retry belongs to records that are gone
            for stale in (aside, aside.with_name(aside.name + SIDECAR)):
                stale.unlink(missing_ok=True)
        before = output if retry and any(map(needs_scoring, output.read_records())) else None
        if before:
            output = stack.enter_context(ScoreOutput(aside, source, settings, resume=True, skip=faults))
        remaining = output.remaining(tally.add)
        earlier = islice(before.read_records(), output.done.groups, None) if before else iter(())
        groups = ((group, raw, next(earlier, [])) for group, raw in remaining)
        done, size = output.done, source.stat().st_size
        known = f"{checked.responses} responses in {checked.groups} groups" if checked.whole else f"{size} bytes"
        note(f"{source}: {known}; scored before: {done.responses} responses")
        first = next(groups, None)
        if first is not None:
            try:
                with RewardSystem(config, note=note) as system, scoring_progress(size, done.bytes, console) as report:
                    at_once = config.score.groups_in_flight
                    todo = chain([first], groups)
                    signals.run(score_file(output, todo, system.ascore_group, tally, at_once=at_once, report=report))
            except BaseException:
                if output.done.responses:
                    again = "retry=failed" if before else "resume=true"
                    note(f"stopped: {output.path} has {output.done.responses} records; {again} continues after them")
                raise
        if before:
            output.replace(before)
    title = f"{tally.responses} responses in {tally.groups} groups, records in {target}"
    show(*summary_tables(tally, title), console=console)
    drawn = plot(tally, target.with_suffix(".png"))
    if drawn:
        note(f"histograms: {drawn}")
    for line in cause_lines(tally):
        note(line)
    most = config.score.max_failed_frac
    too_many = tally.failed / tally.responses > most
    last = f"{tally.failed} of {tally.responses} responses have no score"
    if too_many:
        last += f", more than score.max_failed_frac={most:g}"
    if tally.failed:
        # retry=failed refuses a changed function, because the records that it keeps have scores of the old one.
        own = [name for name in tally.causes if name in config.rewards.custom]
        last += f"; if you change {' or '.join(own)}, name another output; otherwise" if own else ";"
        last += " retry=failed scores them again"
    note(f"{last}; {len(faults.places)} invalid lines skipped" if faults else last)
    return 1 if too_many else 0


def score_settings(config: Config) -> dict[str, Any]:
    """Return the settings that determine a response's score; an output may only be resumed with the same settings."""
    model = config.model
    trained = any(pool.learns_pairs for pool in config.pools.values())
    hybrid = model.response_format == "hybrid"
    files = own_files(config)
    return {
        "hamr": __version__,
        "model": model.model_dump(include={"path", "response_format"} | ({"post_cot_share"} if hybrid else set())),
        "rewards": config.rewards.model_dump(mode="json"),
        "pools": {name: pool.model_dump(mode="json", exclude=SPEED_ONLY) for name, pool in config.pools.items()},
        # The results of scorers that are fine-tuned before the run depend on their training data.
        "data": config.data.model_dump(mode="json") | {"seed": config.experiment.seed} if trained else None,
        **({"files": files} if files else {}),
    }


def replay_run(folder: Path) -> int:
    """Recompute every recorded reward from its recorded scores; return 1 if any differs."""
    config = load_dumped(folder / "config.yaml")
    total = differing = 0
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        for record in ledger.rows():
            total += 1
            again = replay(record, config.rewards)
            differs = again != record.total
            if differs:
                print(f"differs: {record.key}: recorded {record.total}, replayed {again}")
            if record.episode is not None and record.episode.total is not None:
                reward = replay_episode(record.episode, config.env)
                if reward != record.episode.total:
                    differs = True
                    print(f"differs: {record.key}: recorded dialogue {record.episode.total}, replayed {reward}")
            differing += differs
    print(f"{total} records replayed, {differing} differ")
    return 1 if differing else 0
