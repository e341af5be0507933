"""Arguments of the recipes of `hamr data` whose items are made by teacher pools, sample by sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from hamr.apps.data.command import OUTPUT, Items, PoolNames, Samples
from hamr.apps.data.recipes.migration import MigrationRecipe
from hamr.apps.data.recipes.multigt import MultiGtRecipe
from hamr.apps.data.recipes.rubrics import RubricRecipe
from hamr.apps.data.recipes.runner import WritingRecipe
from hamr.apps.data.recipes.thought import Rendering, ThoughtRecipe
from hamr.apps.jobs import import_name
from hamr.apps.shared.commands import Command, ConfiguredCommand, Count, File, NonNegativeCount, PoolName
from hamr.config.section import Temperature
from hamr.errors import BadInput
from hamr.types import Language

if TYPE_CHECKING:
    from hamr.apps.data.recipe_job import Team
    from hamr.config.schema import Config

Grade = Annotated[int, Field(ge=1, le=5)]


class RecipeCommand(ConfiguredCommand):
    """A recipe whose items are made by teacher pools. The same command resumes after a stop."""

    outputs: ClassVar = {"file": OUTPUT}
    writes = OUTPUT
    team: ClassVar[str] = "hamr.apps.data.recipe_job:team_of"
    """`module:function` that returns the pools of a configuration and a command. Raises BadInput."""

    input: Samples
    """Samples to work on."""
    output: Items
    """File of the kept items. <output>.records.jsonl has every item in order, with the reason where it was dropped."""
    overwrite: bool = False
    """Replace an existing output."""
    teacher: PoolName | None = None
    """Pool that writes. Required, unless `teachers` names several."""
    teachers: PoolNames = ()
    """Pools that share the items."""
    judge: PoolName | None = None
    """Pool that checks. By default, the first teacher."""
    language: Language = "en"
    """Language of the prompts."""
    at_once: Count | None = None
    """Concurrent items. By default, the capacity of the pools."""

    def config_and_team(self) -> tuple[Config, Team]:
        """Return the configuration and the pools that the command names. Raises BadInput."""
        config = self.config()
        return config, import_name(self.team)(config, self)

    def check(self) -> Config:
        return self.config_and_team()[0]


class WritingRecipeCommand(RecipeCommand):
    max_new_tokens: Count | None = None
    """Maximum length of an answer in tokens. By default, that of the pool."""

    @property
    def recipe(self) -> WritingRecipe:
        return WritingRecipe(**_values(self, WritingRecipe))


class PatmCommand(WritingRecipeCommand):
    """Planning windows of whole tickets, rewritten by the teachers, checked by rules and then by the judge. Writes the
    kept ones as `kind: patm` items."""

    examples = ("hamr data patm input=trajectories.jsonl output=patm.jsonl teacher=judge",)
    work = "hamr.apps.data.build_plans:build_patm"

    input: Annotated[File, Field(title="TRAJECTORIES.jsonl")]
    """Whole tickets, a trajectories.jsonl of `hamr data import`."""
    split: Literal["train", "validation", "test", "all"] = "train"
    """Split whose tickets are used."""


class DraCommand(WritingRecipeCommand):
    """The reasoning behind decisions and plans, as `decision_dra` and `patm_dra` items."""

    examples = ("hamr data dra input=train.jsonl output=dra.jsonl teachers=a,b judge=judge",)
    work = "hamr.apps.data.build_plans:build_dra"

    input: Annotated[File, Field(title="SAMPLES.jsonl|ITEMS.jsonl")]
    """Samples, or decision and patm items."""


class MultiGtCommand(WritingRecipeCommand):
    """More references per reply: candidates of a light model, and the likeliest replies of an RL run, if the judge
    finds them consistent with the logged one or the utility judge, which sees privileged.<summary>, finds them
    useful."""

    examples = ("hamr data multigt input=train.jsonl output=multigt.jsonl teacher=light ledger=runs/preliminary",)
    work = "hamr.apps.data.build_multigt:build_multigt"
    team = "hamr.apps.data.build_multigt:multigt_team"

    output: Samples
    """File of all samples with their own and the added references. <output>.table3.jsonl counts the sources."""
    judge: PoolName = "judge"
    """Pool with role judge, which decides consistency."""
    utility: Annotated[str | None, Field(title="POOL|none")] = None
    """Pool that judges utility. none: consistency alone decides. By default, the judge."""
    ledger: Annotated[File | None, Field(title="RUN|GENERATED")] = None
    """RL run, or output of `hamr generate`, whose likeliest replies are candidates, too."""
    online: Count = 4
    """Candidates of that ledger per sample."""
    candidates: NonNegativeCount = MultiGtRecipe.candidates
    """Candidates of the light model per sample."""
    temperature: Annotated[float, Field(gt=0.0, le=2.0)] = MultiGtRecipe.temperature
    """Sampling temperature of the light model."""
    summary: Annotated[str, Field(title="NAME")] = MultiGtRecipe.summary
    """Key of `privileged` that the utility judge sees."""
    seed: int = MultiGtRecipe.seed
    """Determines the sampling."""

    @property
    def recipe(self) -> MultiGtRecipe:
        # The utility judge needs a summary; without one it is not queried.
        given = _values(self, MultiGtRecipe)
        return MultiGtRecipe(**given | ({"summary": ""} if self.utility == "none" else {}))


class ThoughtsCommand(WritingRecipeCommand):
    work = "hamr.apps.data.build_thought:build_thought"
    team = "hamr.apps.data.build_thought:thought_team"

    render: Rendering
    """Thoughts before the answer, after it, or one item of each."""
    min_cot: Grade = MigrationRecipe.min_cot
    """Minimum grade of a chain of thought."""

    @property
    def writer(self) -> str | None:
        """Pool that writes the thoughts in place of the teachers."""
        return None

    @property
    def recipe(self) -> ThoughtRecipe:
        return ThoughtRecipe(**_values(self, ThoughtRecipe))


class ExtractThoughts(ThoughtsCommand):
    """The reasoning behind experts' actions (each sample's first reference), for a Zero-Think model."""

    examples = ("hamr data thought step=extract input=experts.jsonl output=items.jsonl teacher=judge",)

    render: Rendering = "pre"
    """Thoughts before the answer, after it, or one item of each."""
    to_rate: Count | None = None
    """Also write this number of graded chains to <output>.to_rate.jsonl, for people to rate from 1 to 5."""
    ratings: Annotated[File | None, Field(title="RATED.jsonl")] = None
    """Filled-in copy of it: mean grades of people and judge, and Spearman's rho, also in <output>.ratings.jsonl."""


class MigrateThoughts(ThoughtsCommand):
    """Thoughts by the Zero-Think model or the teachers, then a response based on them; the best draft that passes the
    dialogue's judge and the judge of chains, or else the best one, rewritten with their feedback. The rewriting of a
    kept draft is a further item."""

    examples = (
        "hamr data thought step=migrate input=cases.jsonl output=items.jsonl teacher=judge zero_think=zero_think",
    )

    render: Rendering = "hybrid"
    """Thoughts before the answer, after it, or one item of each."""
    zero_think: PoolName | None = None
    """Pool that writes the thoughts. By default, the teachers."""
    candidates: Count = MigrationRecipe.candidates
    """Maximum number of drafts per item."""
    temperature: Temperature = MigrationRecipe.temperature
    """Sampling temperature of the drafts."""
    min_quality: Grade = MigrationRecipe.min_quality
    """Minimum grade of the dialogue."""
    refine: NonNegativeCount = MigrationRecipe.refine
    """Rounds of rewriting."""
    expand: bool = MigrationRecipe.expand
    """Also rewrite the kept drafts that the dialogue's judge does not give 5, and keep both."""
    seed: int = MigrationRecipe.seed
    """Determines the sampling."""

    @property
    def writer(self) -> str | None:
        return self.zero_think

    @property
    def recipe(self) -> MigrationRecipe:
        return MigrationRecipe(**_values(self, MigrationRecipe) | {"zero_think": self.zero_think is not None})

    @model_validator(mode="after")
    def _differing_candidates(self) -> MigrateThoughts:
        if self.candidates > 1 and not self.temperature:
            raise BadInput("temperature", self.temperature, "makes all candidates equal; raise it or give candidates=1")
        return self


class RubricsCommand(RecipeCommand):
    """A rubric for every sample: the teachers write candidates in turn, and the one with which the judge best separates
    the references from worse responses is kept. Worse responses are the sample's privileged.negatives, a list of texts,
    then other samples' references."""

    examples = ("hamr data rubrics input=train.jsonl output=rubrics.jsonl teacher=judge",)
    work = "hamr.apps.data.build_rubrics:build_rubrics"

    output: Samples
    """File of all samples, with their rubric where one was kept."""
    candidates: Count = RubricRecipe.candidates
    """Rubrics that the teachers write per sample."""
    responses: NonNegativeCount | None = None
    """Responses that the teachers write per sample, in turn, and that the writer of a rubric sees. By default, one of
    each teacher where there are several."""
    worse: Count = RubricRecipe.worse
    """Maximum number of worse responses per sample."""
    min_separation: Annotated[float, Field(ge=-1.0, le=1.0)] = RubricRecipe.min_separation
    """Minimum difference of the scores of references and worse responses."""
    seed: int = RubricRecipe.seed
    """Determines the sampling."""

    @property
    def recipe(self) -> RubricRecipe:
        responses = self.responses if self.responses is not None else len(self.teachers) * (len(self.teachers) > 1)
        return RubricRecipe(**_values(self, RubricRecipe) | {"responses": responses})


def _values(command: Command, recipe: type) -> dict[str, Any]:
    """Return the options of a command that are settings of its recipe."""
    names = type(command).model_fields.keys() & recipe.__dataclass_fields__.keys()  # type: ignore[attr-defined]
    return {name: getattr(command, name) for name in names}
