"""`hamr calibrate`: fits the cascade (Eq. 5) and writes it as a choice of the config group `rewards`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import yaml

from hamr.apps.shared.outputs import no_file_above
from hamr.calibration.fit import FEWEST_ROWS, Calibration, calibrate, tau_profiles
from hamr.data.triples import Triples, read_triples
from hamr.errors import DataError
from hamr.files import write_atomic
from hamr.report.terminal import show
from hamr.report.values import Column, Table, format_value, number_columns

if TYPE_CHECKING:
    from hamr.apps.calibrate.command import CalibrateCommand, CalibratePools, CalibrateScores
    from hamr.data.pairs import ReplyPair


MANY_ESCALATED = 0.6
"""Share of judge calls above which a fit is reported. With a judge that takes ten times as long as the reranker, it
saves 30 % of the soft judge's time (1 + 10 x 0.6 = 7 of 10), as the hybrid reward of the paper does (section 4.2)."""


@dataclass(frozen=True, kw_only=True)
class CalibrateOutput:
    """Output paths. `config_dir` is the folder that contains the group `rewards`, None where the file is in no such
    folder."""

    config_dir: Path | None
    rewards: Path
    plot: Path
    figures: Path
    scores: Path

    @classmethod
    def of(cls, path: Path) -> CalibrateOutput:
        if path.suffix == ".yaml":
            group = path.parent.resolve()
            folder = group.parent if group.name == "rewards" else None
            named = {"plot": path.with_suffix(".png"), "figures": path.with_suffix(".json")}
            return cls(config_dir=folder, rewards=path, scores=path.with_suffix(".scores.jsonl"), **named)
        return cls(
            config_dir=path,
            rewards=path / "rewards" / "calibrated.yaml",
            plot=path / "calibration.png",
            figures=path / "calibration.json",
            scores=path / "scores.jsonl",
        )

    @property
    def usage(self) -> str:
        train = f"hamr train rewards={self.rewards.stem} --config-dir"
        if self.config_dir is None:
            return f"put {self.rewards.name} into DIR/rewards/, then: {train} DIR"
        return f"{train} {self.config_dir}"


def calibrate_scores(command: CalibrateScores) -> int:
    """Calibrate from a file of scores. Raises BadInput for invalid input."""
    command.check()
    return fit_and_write(command, read_triples(command.scores, command.columns), command.scores.name)


def calibrate_pairs(command: CalibratePools, read: Callable[[], list[ReplyPair]], source: str) -> int:
    """Query the pools about pairs, then calibrate. Raises BadInput for invalid input."""
    # Import Ray lazily: a fit to a file does without.
    from hamr.apps.calibrate.pools import ask_pools, find_teachers

    config, output = command.check(), CalibrateOutput.of(command.output)
    teachers = find_teachers(config, command.teachers)
    pairs = read()
    if len(pairs) < FEWEST_ROWS:
        raise DataError("pairs", f"{len(pairs)} pairs", f"too few to calibrate on; give at least {FEWEST_ROWS}")
    if not teachers and len({pair.label for pair in pairs}) == 1:
        raise DataError(
            "pairs", pairs[0].label, "is the label of every pair; add pairs with other labels, or name teachers"
        )
    print(f"teachers: {', '.join(teachers) or 'the labels of the pairs'}", flush=True)
    triples = ask_pools(config, pairs, teachers, print, output.scores.with_name(f"{output.scores.stem}.progress.jsonl"))
    lines = "".join(json.dumps(row) + "\n" for row in triples.rows())
    return fit_and_write(command, triples, source, files={output.scores: lines})


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Configuration that a fit to `rows` of this kind gives, with further figures and lines about it."""

    content: Mapping[str, Any]
    rows: str = "replies"
    figures: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


def _as_consistency(fit: Calibration) -> Fitted:
    return Fitted(content={"consistency": {"mode": "hybrid", "cascade": asdict(fit.cascade)}})


def fit_and_write(
    command: CalibrateCommand,
    triples: Triples,
    source: str,
    *,
    files: Mapping[Path, str] = MappingProxyType({}),
    describe: Callable[[Calibration], Fitted] = _as_consistency,
    over: Literal["score", "confidence"] = "score",
) -> int:
    """Fit the cascade and write it, with the files that say how the triples were obtained. `over`: see `calibrate`."""
    output = CalibrateOutput.of(command.output)
    print(f"calibrating on {len(triples.y)} rows of {source}", flush=True)
    fit = calibrate(triples.s_r, triples.s_j, triples.y, hard=triples.hard, over=over, **command.numbers)
    profiles = tau_profiles(triples.s_r, triples.s_j, triples.y, fit.cascade, over=over)
    found = describe(fit)
    # Import matplotlib lazily: only the plot needs it.
    from hamr.apps.calibrate.figures import draw_calibration

    write_files(
        {
            **files,
            output.figures: json.dumps({**figures(fit), **found.figures}, indent=1) + "\n",
            output.plot: draw_calibration(fit, *profiles),
            # Last, so that a choice of rewards always has its plot and figures.
            output.rewards: rewards_yaml(fit, source, output.usage, found),
        }
    )
    show(table(fit))
    for line in found.lines:
        print(line)
    for line in warnings(fit):
        print(f"warning: {line}")
    print(f"written: {output.rewards}, {output.plot}, {output.figures}")
    print(output.usage)
    return 0


def warnings(fit: Calibration) -> list[str]:
    """Return the reasons against using the fitted cascade."""
    found = []
    rho = fit.spearman if fit.cv_spearman is None else min(fit.spearman, fit.cv_spearman)
    if rho < 0:
        held_out = "" if fit.spearman < 0 else " on rows outside its fit"
        found.append(
            f"the fitted reward ranks replies against the teacher{held_out} (rho {rho:.3f}); training with it would "
            "prefer the worse replies. Check that higher scores mean better ones, and the columns"
        )
    if fit.escalated_frac > MANY_ESCALATED:
        found.append(
            f"the fit asks the judge about {fit.escalated_frac:.1%} of the replies, more than {MANY_ESCALATED:.0%}, "
            f"and saves little of its time; bound the share, for example with max_escalated_frac={MANY_ESCALATED:g}"
        )
    return found


def check_output(command: CalibrateCommand, *, queries: bool) -> None:
    """Raise BadInput if an output file exists, unless `overwrite`. `queries`: the scores are written, too."""
    output = CalibrateOutput.of(command.output)
    for folder in (output.rewards.parent, output.plot.parent):
        no_file_above(folder)
    scores = [output.scores] if queries else []
    held = [file for file in (output.rewards, output.plot, output.figures, *scores) if file.exists()]
    if held and not command.overwrite:
        raise DataError("output", str(held[0]), "already exists; give another output or overwrite=true")


# --- output ------------------------------------------------------------------------------------


def rewards_yaml(fit: Calibration, source: str, usage: str, found: Fitted) -> str:
    """Return the rewards choice as YAML, with its origin as a comment."""
    rho = f"{fit.spearman:.4f}"
    if fit.interval is not None:
        rho += f" ({fit.interval[0]:.4f} .. {fit.interval[1]:.4f}: 95 % bootstrap interval, with a fixed cascade)"
    rho_text = partial(format_value, form="{:.4f}", missing="none")
    others = ", ".join(f"{r.name} {rho_text(r.spearman)}" for r in fit.rows.values() if r.name != "fit")
    header = [
        f"The cascade of the hybrid reward (Eq. 5), fitted by `hamr calibrate` to {fit.n} rows of {source}.",
        f"Spearman's rho with the teacher: {rho}",
        f"cross-validated: {rho_text(fit.cv_spearman)}; on the same rows: {others}",
        f"The judge is asked about {fit.escalated_frac:.1%} of the {found.rows}.",
        usage,
    ]
    header[3:3] = found.lines
    return "".join(f"# {line}\n" for line in header) + yaml.safe_dump(dict(found.content), sort_keys=False)


def figures(fit: Calibration) -> dict[str, Any]:
    """Return all results as JSON."""
    return {**asdict(replace(fit, rows={})), "rows": [asdict(row) for row in fit.rows.values()]}


def table(fit: Calibration) -> Table:
    rows = tuple((row.name, row.spearman, row.cv_spearman, row.escalated_frac, row.cost) for row in fit.rows.values())
    columns = (
        Column("reward"),
        *number_columns("{:.4f}", "rho", "cross-validated"),
        Column("judge asked", "{:.1%}"),
        Column("cost", "{:.2f}"),
    )
    c, interval = fit.cascade, fit.interval
    between = f", 95 % interval of rho {interval[0]:.4f} .. {interval[1]:.4f}" if interval else ""
    note = f"fit: tau = [{c.tau_a:g}, {c.tau_b:g}], w1 = {c.w1:g}, w2 = {c.w2:g}{between}"
    return Table(f"rho with the teacher, {fit.n} rows", columns, rows, note=note)


def write_files(files: Mapping[Path, str | bytes]) -> None:
    """Write the files in order, each atomically. Raises DataError where one cannot be written."""
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content)
    except OSError as error:
        raise DataError("output", str(error.filename or ""), f"cannot be written: {error.strerror}") from error
