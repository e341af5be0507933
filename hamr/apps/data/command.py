"""Arguments of the other commands of `hamr data`. Each command's work is in its `build_*.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from hamr.apps.data.recipes.rewording import RewordRecipe
from hamr.apps.data.recipes.thought import Rendering
from hamr.apps.data.recipes.wordings import WordingRecipe
from hamr.apps.shared.commands import Command, ConfiguredCommand, Count, File, Folder, Names, PoolName
from hamr.config.section import Temperature
from hamr.errors import BadInput
from hamr.types import Language

if TYPE_CHECKING:
    from hamr.config.schema import Config

Samples = Annotated[File, Field(title="SAMPLES.jsonl")]
Items = Annotated[File, Field(title="ITEMS.jsonl")]
PoolNames = Annotated[Names, Field(title="POOL,POOL")]
ScenarioNames = Annotated[str, Field(title="NAME|PATH|all")]
OUTPUT = "output.jsonl"
"""Output file of a recipe in the folder of a pipeline's stage."""


class SageCommand(ConfiguredCommand):
    """Generated dialogues over a procedure of conf/scenarios, your own procedure, or all shipped ones in equal parts.
    The splits share no sentence. A procedure's wordings are next to its file, in words/NAME.LANGUAGE.yaml.

    The folder gets train.jsonl, validation.jsonl and test.jsonl; train on them with `hamr train data=FOLDER`.
    data.sage.train=600, data.sage.validation=80 and data.sage.test=120 set the sizes, data.sage.seed=0 the dialogues.
    data.sage.noise=0.4 also writes sft.jsonl, the training samples with this share of wrong references, like an
    erroneous log.

    A teacher rewords the customers. A rewording is kept if it preserves numbers, names, negations and the shown fields,
    checked by its words and, if a judge is named, by the judge; otherwise the generated wording is used.
    """

    examples = (
        "hamr data sage output=data/telecom data.sage.train=200",
        "hamr data sage output=data/all scenario=all language=zh thoughts=pre",
    )
    outputs: ClassVar = {
        "folder": ".",
        "train": "train.jsonl",
        "validation": "validation.jsonl",
        "test": "test.jsonl",
        "items": "items.jsonl",
        "held_out_items": "held_out_items.jsonl",
    }
    takes_common = False
    work = "hamr.apps.data.build_sage:build"

    output: Folder
    """Folder of the splits."""
    overwrite: bool = False
    """Replace existing files in the folder."""
    scenario: ScenarioNames | None = None
    """Procedure (data.sage.scenario)."""
    language: Language | None = None
    """Language of the dialogues (data.sage.language)."""
    form: Literal["actions", "sage"] = "actions"
    """Form of the references. sage: the format of `hamr evaluate benchmark=sage`, one JSON object with labels, path,
    action and chat."""
    thoughts: Literal["none", "pre", "post", "hybrid"] = "none"
    """Also write the agent's reasons, from the procedure, as SFT items in items.jsonl and held_out_items.jsonl: the
    thought before the answer, after it, or one item of each."""
    teacher: PoolName | None = None
    """Pool that rewords the customers."""
    teachers: PoolNames = ()
    """Several such pools, which share the work."""
    judge: PoolName | None = None
    """Pool that checks the rewordings."""
    temperature: Temperature = RewordRecipe.temperature
    """Sampling temperature of the teacher."""
    max_new_tokens: Count = RewordRecipe.max_new_tokens or 1
    """Maximum length of a rewording in tokens."""
    at_once: Count | None = None
    """Concurrent items. By default, the capacity of the pools."""

    @model_validator(mode="after")
    def _fits(self) -> SageCommand:
        if self.thoughts != "none" and self.form != "actions":
            raise BadInput("thoughts", self.thoughts, "require form=actions; remove one")
        for name in ("judge", "at_once", "max_new_tokens", "temperature"):
            if name in self.model_fields_set and not (self.teacher or self.teachers):
                raise BadInput(name, getattr(self, name), "requires a teacher; give teacher=<pool>")
        return self

    def config(self) -> Config:
        from hamr.config.load import load_config

        named = [f"data.sage.{name}={value}" for name in ("scenario", "language") if (value := getattr(self, name))]
        return load_config(["data=sage", *self.overrides, *named])

    def check(self) -> Config:
        from hamr.apps.data.build_sage import check

        config = self.config()
        check(self, config)
        return config


class WordsCommand(ConfiguredCommand):
    """The wordings of a procedure, which generated dialogues and simulated customers need. Without a teacher, a
    skeleton: what has to be written, for customers and agent, in each split. With a teacher, the skeleton or an
    incomplete file is filled; what it has is kept.

    A text is kept if it is one line in the language and in character, has only variables of the ticket, and no sentence
    of another wording; with a judge, if it shows the value that it should.
    """

    examples = (
        "hamr data words scenario=./mine.yaml",
        "hamr data words scenario=./mine.yaml teacher=talk pools=sage_small",
    )
    takes_common = False
    work = "hamr.apps.data.build_words:build_words"

    scenario: Annotated[str, Field(title="NAME|FILE.yaml")]
    """Procedure."""
    output: Annotated[File | None, Field(title="FILE.yaml")] = None
    """File of the wordings. By default words/NAME.LANGUAGE.yaml next to the procedure, where all commands look for
    it."""
    language: Language = "en"
    """Language of the wordings."""
    overwrite: bool = False
    """Write the skeleton into an existing file; its texts are kept."""
    teacher: PoolName | None = None
    """Pool that writes."""
    teachers: PoolNames = ()
    """Several such pools, which share the work."""
    judge: PoolName | None = None
    """Pool that reads the value off a customer's sentence."""
    texts: Annotated[int, Field(ge=1, le=20)] = WordingRecipe.texts
    """Wordings of each key in each split."""
    temperature: Temperature = WordingRecipe.temperature
    """Sampling temperature of the teacher."""
    max_new_tokens: Count = WordingRecipe.max_new_tokens or 1
    """Maximum length of an answer in tokens."""
    at_once: Count | None = None
    """Concurrent questions. By default, the capacity of the pools."""

    def check(self) -> Config:
        from hamr.apps.data.recipe_job import optional_team

        config = self.config()
        optional_team(config, self)
        return config


class SampledCommand(Command):
    """The best responses of an RL run or of `hamr generate`, by total reward, as SFT items for the next stage. No pool
    is queried."""

    examples = ("hamr data sampled input=train.jsonl ledger=runs/stage_1 output=items.jsonl min_total=3 best=2",)
    outputs: ClassVar = {"file": OUTPUT}
    writes = OUTPUT
    work = "hamr.apps.data.build_sampled:build_sampled"

    input: Samples
    """Samples of the run."""
    ledger: Annotated[File, Field(title="RUN|GENERATED")]
    """Run folder, output of `hamr generate with_rewards=true`, or its ledger.sqlite."""
    output: Items
    """File of the SFT items. <output>.counts.jsonl counts what became of the responses."""
    min_total: float | None = None
    """Minimum total reward of a response."""
    min_mean: float | None = None
    """Minimum weighted mean of the reward terms that a response has. Use it where some samples lack a term, such as a
    rubric: their totals are lower."""
    overwrite: bool = False
    """Replace an existing output."""
    best: Count = 1
    """Responses per sample."""
    since: int = 0
    """First step of the run whose responses are used."""
    render: Rendering = "pre"
    """Thoughts before the answer, after it, or one item of each."""

    @model_validator(mode="after")
    def _one_threshold(self) -> SampledCommand:
        if (self.min_total is None) == (self.min_mean is None):
            raise BadInput("min_total", self.min_total, "give min_total or min_mean, one of them")
        return self


class HallucinationCommand(ConfiguredCommand):
    """Data for a hallucination judge: responses that the judge clears and the second model confirms (simple.jsonl), and
    human labels of the rest (output review.jsonl; from `labels` hard.jsonl and confirmed.jsonl). judge.jsonl has all of
    them, to train a grader on (`pools.X.finetune.labelled`); the trained one may be the judge of the next round."""

    examples = ("hamr data hallucination input=responses.jsonl output=data/hallucination judge=judge second=second",)
    outputs: ClassVar = {"folder": ".", "file": "judge.jsonl"}
    work = "hamr.apps.data.build_hallucination:build_hallucination"

    input: Annotated[File, Field(title="RESPONSES.jsonl")]
    """Samples with `response` or `responses`."""
    output: Folder
    """Folder of the sets."""
    judge: PoolName
    """Pool that looks for hallucinations, or the grader that an earlier round has trained."""
    second: PoolName
    """Another pool that confirms the verdicts, and refines the reasons."""
    refine: bool = True
    """The second pool rewrites people's reasons: type, statement and evidence. false: they stay as they are."""
    earlier: Folder | None = None
    """Output of an earlier round, whose responses are also in judge.jsonl."""
    labels: Annotated[File | None, Field(title="REVIEWED.jsonl")] = None
    """Copy of review.jsonl with people's labels. Labels of earlier calls are kept."""
    overwrite: bool = False
    """Replace existing sets."""
    language: Language = "en"
    """Language of the prompts."""
    at_once: Count | None = None
    """Concurrent items. By default, the capacity of the pools."""


class PreviewSamples(ConfiguredCommand):
    """Print the policy's input for some samples: the whole prompt with its special tokens, and the reference answers,
    each with its number of tokens. The options of the training job apply: model.path, model.tools_prompt,
    model.response_format, ...
    """

    examples = ("hamr data preview experiment=own_data data=data/own",)
    takes_common = False
    work = "hamr.apps.data.preview:preview"

    n: Count = 3
    """Number of samples."""
    split: Literal["train", "validation", "test"] = "train"
    """Split whose first samples are shown."""
