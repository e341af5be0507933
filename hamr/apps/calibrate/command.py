"""`hamr calibrate`: fits the cascade (Eq. 5) and writes it as a choice of the config group `rewards`."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from hamr.apps.shared.job_options import no_file_above
from hamr.calibration.fit import (
    FEWEST_ROWS,
    Calibration,
    FitRow,
    calibrate,
    check_effort,
    most_escalated,
    tau_profiles,
)
from hamr.data.triples import Triples, read_triples
from hamr.errors import BadInput, DataError

HELP = """\
hamr calibrate: finds the trust interval and the weights (Eq. 5) whose ranking of replies is closest to a teacher's.

usage:
  hamr calibrate scores=FILE output=FOLDER [s_r=NAME] [s_j=NAME] [y=NAME] [hard=NAME]
      FILE (.jsonl, .csv or .parquet) has one reply per row: the reranker's score s_r, the judge's s_j and the teacher's
      y, all in [0, 1], and optionally the judge's verdict as 1, 0.5 or 0 (hard); the options set other field names
  hamr calibrate pairs=JSONL output=FOLDER [teachers=POOL,POOL] [overrides]
      queries the pools of the configuration about labelled pairs {"content_A", "content_B", "label"}; y is the mean of
      the teachers' scores, or the label (1, 0.5, 0) where no teacher is named
  hamr calibrate samples=JSONL output=FOLDER [most=240] [teachers=POOL,POOL] [overrides]
      the same with pairs of replies built from samples on which no scorer was trained

options:
  max_escalated_frac=0.3             upper limit of the share of replies sent to the judge
  max_cost=4 judge_cost=10 reranker_cost=1    limit of the mean cost per reply, costs per judge and reranker answer
  folds=5 resamples=300 seed=0       cross-validation and bootstrap; 0 disables either
  overwrite=true                     replace existing output files

Writes FOLDER/rewards/calibrated.yaml, calibration.png, calibration.json and, for pairs, scores.jsonl. Train with
`hamr train rewards=calibrated --config-dir FOLDER`. output=DIR/rewards/NAME.yaml writes rewards=NAME there, and the
other files next to it."""

_FILES = ("s_r", "s_j", "y", "hard")
_BOUNDS, _EFFORT = ("max_escalated_frac", "max_cost", "judge_cost", "reranker_cost"), ("folds", "resamples")
_NUMBERS: dict[str, type] = {
    **dict.fromkeys(_BOUNDS, float),
    **dict.fromkeys(_EFFORT, int),
    "seed": int,
}
_SOURCES = ("scores", "pairs", "samples")
_OPTIONS = (*_SOURCES, "most", "output", "teachers", "overwrite", *_FILES, *_NUMBERS)
MOST_PAIRS = 240


@dataclass(frozen=True, kw_only=True)
class CalibrateOutput:
    """Output paths.

    `choice` is the option's name in the group `rewards`. `config_dir` is the folder that contains the group, or None
    where the file is outside such a folder.
    """

    choice: str
    config_dir: Path | None
    rewards: Path
    plot: Path
    figures: Path
    scores: Path

    @classmethod
    def of(cls, given: str) -> CalibrateOutput:
        path = Path(given).expanduser()
        if path.suffix == ".yaml":
            group = path.parent.resolve()
            folder = group.parent if group.name == "rewards" else None
            named = {"plot": path.with_suffix(".png"), "figures": path.with_suffix(".json")}
            return cls(
                choice=path.stem, config_dir=folder, rewards=path, scores=path.with_suffix(".scores.jsonl"), **named
            )
        return cls(
            choice="calibrated",
            config_dir=path,
            rewards=path / "rewards" / "calibrated.yaml",
            plot=path / "calibration.png",
            figures=path / "calibration.json",
            scores=path / "scores.jsonl",
        )

    @property
    def usage(self) -> str:
        if self.config_dir is None:
            return f"put {self.rewards.name} into DIR/rewards/, then: hamr train rewards={self.choice} --config-dir DIR"
        return f"hamr train rewards={self.choice} --config-dir {self.config_dir}"


def main(args: list[str]) -> int:
    """Calibrate from a file of scores, or query the pools first. Raises BadInput for invalid input."""
    command = read_command(args)
    output, numbers = command.output, command.numbers
    triples, source, files = _triples(command)
    print(f"calibrating on {len(triples.y)} rows of {source}", flush=True)
    fit = calibrate(triples.s_r, triples.s_j, triples.y, hard=triples.hard, **numbers)
    profiles = tau_profiles(triples.s_r, triples.s_j, triples.y, fit.cascade)
    # Import matplotlib lazily: only the plot needs it.
    from hamr.apps.calibrate.figures import draw_calibration

    write_whole(
        {
            **files,
            output.figures: (json.dumps(figures(fit), indent=1) + "\n").encode(),
            output.plot: draw_calibration(fit, *profiles),
            output.rewards: rewards_yaml(fit, source, output.usage).encode(),
        }
    )
    Console().print(table(fit))
    print(f"written: {output.rewards}, {output.plot}, {output.figures}")
    print(output.usage)
    return 0


@dataclass(frozen=True, kw_only=True)
class CalibrateCommand:
    """Parsed command line. `own`: the job's options; `numbers`: those of `calibrate`."""

    own: Mapping[str, str]
    overrides: tuple[str, ...]
    output: CalibrateOutput
    numbers: Mapping[str, Any]

    @property
    def teachers(self) -> list[str]:
        return [name for name in self.own.get("teachers", "").split(",") if name]


def read_command(args: Sequence[str]) -> CalibrateCommand:
    """Parse the command line. Raises BadInput for an unknown, missing or out-of-range option."""
    own, overrides = _options(args)
    output = _output(own)
    numbers = {name: _number(own[name], name, kind) for name, kind in _NUMBERS.items() if name in own}
    # Check before any pool is queried: a judge's answers are expensive.
    most_escalated(**{name: value for name, value in numbers.items() if name in _BOUNDS})
    check_effort(**{name: value for name, value in numbers.items() if name in _EFFORT})
    if "most" in own and _number(own["most"], "most", int) < FEWEST_ROWS:
        raise BadInput("most", own["most"], f"must be {FEWEST_ROWS} or more")
    return CalibrateCommand(own=own, overrides=tuple(overrides), output=output, numbers=numbers)


def overrides_of(args: Sequence[str]) -> list[str]:
    """Return the arguments of the configuration, without reading any file. Raises BadInput for an unknown word."""
    return _options(args)[1]


def _triples(command: CalibrateCommand) -> tuple[Triples, str, dict[Path, bytes]]:
    """Return (the triples, their source, files to keep about how they were obtained)."""
    own, output, teachers = command.own, command.output, command.teachers
    if "scores" in own:
        return read_triples(own["scores"], {f: own[f] for f in _FILES if f in own}), Path(own["scores"]).name, {}
    from hamr.apps.calibrate.pools import ask_pools
    from hamr.config.load import load_config
    from hamr.data.pairs import read_pairs, reply_pairs
    from hamr.data.samples import read_samples

    source = Path(own["samples"] if "samples" in own else own["pairs"])
    config = load_config(command.overrides)
    if "samples" in own:
        samples = read_samples(source.expanduser())
        pairs = reply_pairs(samples, int(own.get("most", MOST_PAIRS)), command.numbers.get("seed", 0))
    else:
        pairs = read_pairs(own["pairs"])
    if len(pairs) < FEWEST_ROWS:
        raise DataError("pairs", f"{len(pairs)} pairs", f"too few to calibrate on; give at least {FEWEST_ROWS}")
    if not teachers and len({pair.label for pair in pairs}) == 1:
        raise DataError(
            "pairs", pairs[0].label, "is the label of every pair; add pairs with other labels, or name teachers"
        )
    triples = ask_pools(config, pairs, teachers, print, output.scores.with_name(f"{output.scores.stem}.progress.jsonl"))
    lines = "".join(json.dumps(row) + "\n" for row in triples.rows())
    return triples, source.name, {output.scores: lines.encode()}


# --- options -----------------------------------------------------------------------------------


def _options(args: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return (the job's own options, the configuration arguments, which are used for `pairs` and `samples` only)."""
    own: dict[str, str] = {}
    rest = []
    for arg in args:
        key, equals, value = arg.partition("=")
        if equals and key in _OPTIONS:
            own[key] = value
        else:
            rest.append(arg)
    sources = [name for name in _SOURCES if name in own]
    if len(sources) != 1:
        several = ", ".join(f"{name}={own[name]}" for name in sources) or None
        raise BadInput("scores", several, "give one of scores=<triples>, pairs=<labelled pairs> and samples=<samples>")
    (source,) = sources
    foreign = [*rest, *(["teachers"] if "teachers" in own else [])] if source == "scores" else []
    foreign += [name for name in _FILES if name in own] if source != "scores" else []
    foreign += ["most"] if "most" in own and source != "samples" else []
    if foreign:
        near = difflib.get_close_matches(foreign[0].partition("=")[0], _OPTIONS, n=1)
        hint = f"did you mean {near[0]}=...? " if near and near[0] not in own else ""
        raise BadInput(
            "hamr calibrate", foreign[0], f"not an option with {source}=...; {hint}see `hamr calibrate --help`"
        )
    return own, rest


def _number(text: str, name: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise BadInput(name, text, "must be a whole number" if kind is int else "must be a number") from None


def _output(own: Mapping[str, str]) -> CalibrateOutput:
    """Return the output paths. Raises BadInput if a file exists, unless `overwrite=true`."""
    if not own.get("output"):
        raise BadInput("output", None, "missing; give output=<folder> or output=<DIR/rewards/NAME.yaml>")
    if own.get("overwrite", "false") not in ("true", "false"):
        raise BadInput("overwrite", own["overwrite"], "must be true or false")
    if own["output"].endswith(".yml"):
        raise BadInput("output", own["output"], "would not be found by hamr train; end it in .yaml")
    output = CalibrateOutput.of(own["output"])
    for folder in (output.rewards.parent, output.plot.parent):
        no_file_above(folder)
    written = [output.rewards, output.plot, output.figures, *([] if "scores" in own else [output.scores])]
    held = [file for file in written if file.exists()]
    if held and own.get("overwrite") != "true":
        raise DataError("output", str(held[0]), "already exists; give another output or overwrite=true")
    return output


# --- what is written ---------------------------------------------------------------------------


def rewards_yaml(fit: Calibration, source: str, usage: str) -> str:
    """Return the rewards choice as YAML, with its origin as a comment."""
    rho = f"{fit.spearman:.4f}"
    if fit.interval is not None:
        rho += f" ({fit.interval[0]:.4f} .. {fit.interval[1]:.4f}: 95 % bootstrap interval, with a fixed cascade)"
    others = ", ".join(f"{r.name} {_format_rho(r.spearman)}" for r in fit.rows.values() if r.name != "fit")
    header = [
        f"The cascade of the hybrid reward (Eq. 5), fitted by `hamr calibrate` to {fit.n} rows of {source}.",
        f"Spearman's rho with the teacher: {rho}",
        f"cross-validated: {_format_rho(fit.cv_spearman)}; on the same rows: {others}",
        f"The judge is asked about {fit.escalated_frac:.1%} of the replies.",
        usage,
    ]
    content = {"consistency": {"mode": "hybrid", "cascade": asdict(fit.cascade)}}
    return "".join(f"# {line}\n" for line in header) + yaml.safe_dump(content, sort_keys=False)


def figures(fit: Calibration) -> dict[str, Any]:
    """Return all results as JSON."""
    return {
        "n": fit.n,
        "cascade": asdict(fit.cascade),
        "spearman": fit.spearman,
        "interval": fit.interval,
        "cv_spearman": fit.cv_spearman,
        "escalated_frac": fit.escalated_frac,
        "most_escalated": fit.most_escalated,
        "rows": [asdict(row) for row in fit.rows.values()],
        "frontier": [asdict(point) for point in fit.frontier],
    }


def table(fit: Calibration) -> Table:
    shown = Table(
        "reward", "rho", "cross-validated", "judge asked", "cost", title=f"rho with the teacher, {fit.n} rows"
    )
    for row in fit.rows.values():
        shown.add_row(*_cells(row), style="bold" if row.name == "fit" else "")
    c, interval = fit.cascade, fit.interval
    between = f", 95 % interval of rho {interval[0]:.4f} .. {interval[1]:.4f}" if interval else ""
    shown.caption = f"fit: tau = [{c.tau_a:g}, {c.tau_b:g}], w1 = {c.w1:g}, w2 = {c.w2:g}{between}"
    return shown


def _cells(row: FitRow) -> tuple[str, ...]:
    return (
        row.name,
        _format_rho(row.spearman),
        _format_rho(row.cv_spearman),
        f"{row.escalated_frac:.1%}",
        f"{row.cost:.2f}",
    )


def _format_rho(rho: float | None) -> str:
    return "none" if rho is None else f"{rho:.4f}"


def write_whole(files: Mapping[Path, bytes]) -> None:
    """Write all of the files or none: write temporary files, then rename; undo if a rename fails.

    Raises DataError where a file cannot be written.
    """
    aside = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in files}
    placed: list[Path] = []
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with aside[path].open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path in files:
            new = not path.exists()
            aside[path].replace(path)
            if new:
                placed.append(path)
    except OSError as error:
        for path in placed:
            path.unlink(missing_ok=True)
        raise DataError("output", str(error.filename or ""), f"cannot be written: {error.strerror}") from error
    finally:
        for left in aside.values():
            left.unlink(missing_ok=True)
