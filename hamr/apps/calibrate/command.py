"""Arguments of `hamr calibrate`: from a file of scores, or from pools that are queried first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, model_validator

from hamr.apps.shared.commands import Command, ConfiguredCommand, File, Names
from hamr.calibration.fit import FEWEST_ROWS, FOLDS, JUDGE_COST, RERANKER_COST, RESAMPLES, check_effort, most_escalated

if TYPE_CHECKING:
    from pathlib import Path

    from hamr.config.schema import Config
    from hamr.data.pairs import ReplyPair

LIMITS = ("max_escalated_frac", "max_cost", "judge_cost", "reranker_cost")


def _findable(path: Path) -> Path:
    if path.suffix == ".yml":
        raise ValueError("would not be found by hamr train; end it in .yaml")
    return path


RewardsOutput = Annotated[File, AfterValidator(_findable), Field(title="FOLDER|DIR/rewards/NAME.yaml")]
ScoreColumn = Annotated[str, Field(title="NAME")]


class CalibrateCommand(Command):
    """Find the trust interval and the weights (Eq. 5) whose ranking of replies is closest to a teacher's.

    Writes FOLDER/rewards/calibrated.yaml, calibration.png, calibration.json and, where pools are queried, scores.jsonl.
    Train with `hamr train rewards=calibrated --config-dir FOLDER`. output=DIR/rewards/NAME.yaml writes rewards=NAME
    there, and the other files next to it.
    """

    outputs: ClassVar = {"config_dir": ".", "rewards": "rewards/calibrated.yaml"}

    output: RewardsOutput
    """Folder of the fitted rewards, or their YAML."""
    overwrite: bool = False
    """Replace existing output files."""
    max_escalated_frac: float | None = None
    """Upper limit of the share of replies sent to the judge."""
    max_cost: float | None = None
    """Upper limit of the mean cost per reply."""
    judge_cost: float = JUDGE_COST
    """Cost of an answer of the judge."""
    reranker_cost: float = RERANKER_COST
    """Cost of an answer of the reranker."""
    folds: int = FOLDS
    """Folds of the cross-validation. 0: none."""
    resamples: int = RESAMPLES
    """Resamples of the bootstrap. 0: none."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Determines folds and resamples."""

    @model_validator(mode="after")
    def _possible(self) -> CalibrateCommand:
        # Check before any pool is queried: a judge's answers are expensive.
        most_escalated(**{name: getattr(self, name) for name in LIMITS})
        check_effort(self.folds, self.resamples)
        return self

    def check(self) -> Config | None:
        from hamr.apps.calibrate.run import check_output

        check_output(self, queries=False)
        return None

    @property
    def numbers(self) -> dict[str, Any]:
        """Options of `hamr.calibration.calibrate`."""
        return {name: getattr(self, name) for name in (*LIMITS, "folds", "resamples", "seed")}


class CalibrateScores(CalibrateCommand):
    examples = ("hamr calibrate scores=scores.csv output=calibrated max_escalated_frac=0.3 y=human",)
    work = "hamr.apps.calibrate.run:calibrate_scores"

    scores: Annotated[File, Field(title="FILE")]
    """One reply per row (.jsonl, .csv or .parquet): the reranker's score s_r, the judge's s_j and the teacher's y, all
    in [0, 1], and optionally the judge's verdict as 1, 0.5 or 0 (hard)."""
    s_r: ScoreColumn | None = None
    """Another name of the field s_r."""
    s_j: ScoreColumn | None = None
    """Another name of the field s_j."""
    y: ScoreColumn | None = None
    """Another name of the field y."""
    hard: ScoreColumn | None = None
    """Another name of the field hard."""

    @property
    def columns(self) -> dict[str, str]:
        """Field -> its name in the file, where it has another one."""
        return {name: given for name in ("s_r", "s_j", "y", "hard") if (given := getattr(self, name))}


class CalibrateItems(CalibrateCommand):
    """Fit the cascade over the items of a rubric (`rewards.rubric.cascade`) to recorded answers."""

    examples = ("hamr calibrate items=records.jsonl output=items max_escalated_frac=0.35 teacher=by_teacher.jsonl",)
    work = "hamr.apps.calibrate.items:calibrate_items"

    items: Annotated[File, Field(title="RECORDS.jsonl|RUN")]
    """Records in which reranker and judge have answered every item of the rubrics: the output of `hamr score`, or a run
    folder, with rewards.rubric.cascade={tau_a: 0.5, tau_b: 0.5}."""
    teacher: Annotated[File | None, Field(title="RECORDS.jsonl|RUN")] = None
    """Records of the same responses in which another judge has answered every item: the target y. By default the target
    is the judge itself."""


class CalibratePools(CalibrateCommand, ConfiguredCommand):
    teachers: Names = ()
    """Pools whose mean score is the target y. By default, the judge ensemble of the configuration: its pools with the
    role judge besides the calibrated one, if there are at least two. `labels`, and the default without an ensemble: the
    label of the pair (consistent: 1, partial: 0.5, inconsistent: 0)."""

    def check(self) -> Config:
        from hamr.apps.calibrate.pools import find_teachers, wanted_pools
        from hamr.apps.calibrate.run import check_output

        check_output(self, queries=True)
        config = self.config()
        wanted_pools(config, find_teachers(config, self.teachers))
        return config


class CalibratePairs(CalibratePools):
    examples = ("hamr calibrate pairs=pairs.jsonl output=calibrated teachers=judge_2,judge_3",)

    pairs: Annotated[File, Field(title="PAIRS.jsonl")]
    """Labelled pairs {"content_A", "content_B", "label"} about which the pools are queried. A label is consistent,
    partial or inconsistent, or the number 1, 0.5 or 0."""

    def run(self) -> int:
        from hamr.apps.calibrate.run import calibrate_pairs
        from hamr.data.pairs import read_pairs

        return calibrate_pairs(self, lambda: read_pairs(self.pairs), self.pairs.name)


class CalibrateSamples(CalibratePools):
    examples = ("hamr calibrate samples=validation.jsonl output=calibrated most=160",)

    samples: Annotated[File, Field(title="SAMPLES.jsonl")]
    """Samples on which no scorer was trained; pairs of replies are built from them."""
    most: Annotated[int, Field(ge=FEWEST_ROWS)] = 240
    """Maximum number of pairs."""

    def run(self) -> int:
        from hamr.apps.calibrate.run import calibrate_pairs
        from hamr.data.pairs import reply_pairs
        from hamr.data.samples import read_samples

        def pairs() -> list[ReplyPair]:
            return reply_pairs(read_samples(self.samples), self.most, self.seed)

        return calibrate_pairs(self, pairs, self.samples.name)
