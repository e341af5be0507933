"""Arguments of the recipes of `hamr data`. Each recipe's work is in its `build_*.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from hamr.apps.data.recipes.migration import MigrationRecipe
from hamr.apps.data.recipes.multigt import MultiGtRecipe
from hamr.apps.data.recipes.rewording import RewordRecipe
from hamr.apps.data.recipes.rubrics import RubricRecipe
from hamr.apps.data.recipes.thought import Rendering, ThoughtRecipe
from hamr.apps.data.recipes.wordings import WordingRecipe
from hamr.apps.jobs import import_name
from hamr.apps.shared.commands import (
    Command,
    ConfiguredCommand,
    Count,
    File,
    Folder,
    Language,
    Names,
    NonNegativeCount,
    Word,
)
from hamr.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from hamr.config.schema import Config

Samples = Annotated[File, Field(title="SAMPLES.jsonl")]
Items = Annotated[File, Field(title="ITEMS.jsonl")]
Pool = Annotated[str, Field(title="POOL")]
Pools = Annotated[Names, Field(title="POOL,POOL")]
Scenarios = Annotated[str, Field(title="NAME|PATH|all")]
Temperature = Annotated[float, Field(ge=0.0, le=2.0)]
Grade = Annotated[int, Field(ge=1, le=5)]
Share = Annotated[float, Field(gt=0.0, lt=0.5)]
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
    scenario: Scenarios | None = None
    """Procedure (data.sage.scenario)."""
    language: Language | None = None
    """Language of the dialogues (data.sage.language)."""
    form: Literal["actions", "sage"] = "actions"
    """Form of the references. sage: the format of `hamr evaluate benchmark=sage`, one JSON object with labels, path,
    action and chat."""
    thoughts: Literal["none", "pre", "post", "hybrid"] = "none"
    """Also write the agent's reasons, from the procedure, as SFT items in items.jsonl and held_out_items.jsonl: the
    thought before the answer, after it, or one item of each."""
    teacher: Pool | None = None
    """Pool that rewords the customers."""
    teachers: Pools = ()
    """Several such pools, which share the work."""
    judge: Pool | None = None
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


# --- imports -----------------------------------------------------------------------------------


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
    teacher: Pool | None = None
    """Pool that writes."""
    teachers: Pools = ()
    """Several such pools, which share the work."""
    judge: Pool | None = None
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
        from hamr.apps.data.build_words import team

        config = self.config()
        team(config, self)
        return config


class ImportCommand(Command):
    output: Folder
    """Folder of the splits, trajectories.jsonl and report.json."""
    overwrite: bool = False
    """Replace existing files in the folder."""
    held_out_frac: Share = 0.15
    """Share of the dialogues in each of the two held-out splits. Whole dialogues go to one split."""
    seed: int = 0
    """Determines the splits."""
    group: str | None = None
    """Column of the input, or path into an object in it, such as customer.id: dialogues with the same value are in one
    split."""
    split: bool = True
    """false: all samples are written to train.jsonl. For files of fewer than three dialogues."""
    pii: Literal["hide", "keep"] | None = None
    """hide: typed aliases for cards, bank accounts, identity numbers, dates of birth, phones, account, order and
    parcel numbers, e-mails, domains, IP and MAC addresses, postal addresses, keys and long numbers. The default for
    tickets and messages; a corpus of decision points then keeps the logged reference alone."""
    names: Annotated[Names, Field(title="PIPELINE,PIPELINE")] = ()
    """spaCy pipelines (names or folders) that find names of persons to hide, through presidio, such as
    en_core_web_sm: one for each language of the tickets. Requires pii=hide."""


def _known_encoding(name: str | None) -> str | None:
    try:
        "a".encode(name or "utf-8")
    except LookupError:
        raise ValueError("no such encoding; examples: utf-8, cp1252, gb18030, shift_jis") from None
    return name


def _one_character(name: str | None) -> str | None:
    from hamr.data.tables import DELIMITERS

    delimiter = DELIMITERS.get(name, name) if name else None
    if delimiter and (len(delimiter) > 1 or delimiter in '"\r\n'):
        raise ValueError(f"must be one character or one of {', '.join(DELIMITERS)}")
    return delimiter


class TicketFile(Command):
    input: Annotated[File, Field(title="EXPORT.jsonl|.json|.csv|.tsv|.parquet")]
    """JSONL, JSON array, CSV or Parquet of tickets."""
    encoding: Annotated[str | None, AfterValidator(_known_encoding), Field(title="NAME")] = None
    """Encoding of the export, such as cp1252 or gb18030. By default, it is detected."""
    delimiter: Annotated[str | None, AfterValidator(_one_character), Field(title="comma|semicolon|tab|pipe|X")] = None
    """Delimiter of a CSV. By default, it is detected."""
    dates: Literal["day_first", "month_first"] | None = None
    """Meaning of 01/02/2026 in turn.time. By default, the other dates of the column decide it."""


class ImportTickets(TicketFile, ImportCommand):
    """A ticket export. Faulty tickets are excluded with one line of explanation each, and written to rejected.jsonl."""

    examples = ("hamr data import tickets input=export.csv mapping=map.yaml output=data/own",)
    work = "hamr.apps.data.import_data:import_tickets"

    mapping: Annotated[File, Field(title="MAP.yaml")]
    """YAML that names the columns of the export; --preview proposes one."""


class PreviewTickets(TicketFile):
    """Propose a mapping for a ticket export from its headers and values, and show three samples. The printed YAML is a
    mapping to check and to save; nothing is written."""

    examples = ("hamr data import tickets --preview input=export.csv",)
    work = "hamr.apps.data.preview_tickets:preview_tickets"

    pii: Literal["hide", "keep"] = "hide"
    """hide: show private values of the samples as aliases, as in the import."""


class HelpdeskCommand(ImportCommand):
    input: Annotated[File, Field(title="FILE.json|.jsonl|FOLDER")]
    """JSON or JSONL of the export, or a folder of such files."""
    internal: Literal["drop", "privileged"] = "drop"
    """Internal notes: dropped, or kept in privileged.internal_notes, which judges and simulators see. They are never
    turns."""
    policy: Annotated[File | None, Field(title="FILE.txt")] = None
    """Text that becomes the policy of all samples."""


class ImportZendesk(HelpdeskCommand):
    """Tickets of Zendesk: the JSON export with comments, or answers of the API (tickets, comments, users). Comments of
    end users are the customer's turns, public comments of agents and admins the agent's."""

    examples = ("hamr data import zendesk input=export.jsonl output=data/zendesk",)
    work = "hamr.apps.data.import_data:import_zendesk"


class ImportIntercom(HelpdeskCommand):
    """Conversations of Intercom with their parts. Texts of users and leads are the customer's turns, comments of admins
    the agent's."""

    examples = ("hamr data import intercom input=conversations.json output=data/intercom",)
    work = "hamr.apps.data.import_data:import_intercom"

    bots: Literal["agent", "drop"] = "agent"
    """Texts of bots: turns of the agent, or dropped."""


def _known_corpus(name: str) -> str:
    from hamr.data.importers import IMPORTERS

    if name not in IMPORTERS:
        known = [*IMPORTERS, "tickets", "zendesk", "intercom"]
        raise ValueError(f"no such corpus; {did_you_mean(name, known)}there are: {', '.join(known)}")
    return name


class ImportCorpus(ImportCommand):
    """A public corpus, or chats in a common form, as samples and whole tickets."""

    examples = (
        "hamr data import star input=STAR output=data/star",
        "hamr data import messages input=chats.jsonl output=data/chats",
    )
    work = "hamr.apps.data.import_data:import_corpus"

    corpus: Annotated[str, Word(), AfterValidator(_known_corpus), Field(title="CORPUS")]
    """Corpus or form of the input: star, abcd, tau2, multiwoz, messages, sharegpt, trl or verl. The form of chats is
    detected."""
    input: Annotated[File, Field(title="FILE|FOLDER|ID")]
    """The dialogues: a corpus as it is published (its file or folder); for chats JSONL, JSON, Parquet, the folder of a
    data set, or the id of one on the Hugging Face Hub (owner/name)."""
    policies: Annotated[File | None, Field(title="FILE.json")] = None
    """The corpus's policies and tools; required for star, abcd and tau2 as lines of decision points or
    conversations."""

    @model_validator(mode="after")
    def _fits_its_corpus(self) -> ImportCorpus:
        from hamr.data.importers import IMPORTERS

        if self.policies is not None and "policies" not in IMPORTERS[self.corpus].files:
            raise BadInput("policies", str(self.policies), f"is no file of the {self.corpus} form; remove it")
        return self


class PreviewSamples(ConfiguredCommand):
    """Print what the policy sees for some samples: the whole prompt with its special tokens, and the reference answers,
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


# --- recipes by teachers -----------------------------------------------------------------------


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
    teacher: Pool | None = None
    """Pool that writes. Required, unless `teachers` names several."""
    teachers: Pools = ()
    """Pools that share the items."""
    judge: Pool | None = None
    """Pool that checks. By default, the first teacher."""
    language: Language = "en"
    """Language of the prompts."""
    at_once: Count | None = None
    """Concurrent items. By default, the capacity of the pools."""

    def check(self) -> Config:
        config = self.config()
        import_name(self.team)(config, self)
        return config


class WritingRecipeCommand(RecipeCommand):
    max_new_tokens: Count | None = None
    """Maximum length of an answer in tokens. By default, that of the pool."""


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
    judge: Pool = "judge"
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
    zero_think: Pool | None = None
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


# --- other recipes -----------------------------------------------------------------------------


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
    judge: Pool
    """Pool that looks for hallucinations, or the grader that an earlier round has trained."""
    second: Pool
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


class OlabenchItemsCommand(ConfiguredCommand):
    """Items for `hamr evaluate benchmark=olabench` in items.jsonl, and responses with known faults for grading judges
    in planted.jsonl. Teachers reword these; the responses of every third wording keep it, and are in held_out.jsonl."""

    outputs: ClassVar = {"folder": ".", "items": "items.jsonl", "planted": "planted.jsonl"}
    takes_common = False

    output: Folder
    """Folder of items.jsonl and planted.jsonl."""
    overwrite: bool = False
    """Replace existing files in the folder."""
    core: NonNegativeCount = 90
    """Items of the core subset."""
    risk: NonNegativeCount = 30
    """Items of the risk subset."""
    hallucination: NonNegativeCount = 30
    """Items of the hallucination subset."""
    proportions: Literal["equal", "paper"] = "equal"
    """Kinds of the core items, and types of risk and hallucination: in equal parts, or as in the paper's Table 1, whose
    sizes are core=3000 risk=1000 hallucination=1000."""
    planted: NonNegativeCount | None = None
    """Items with planted faults. By default, all."""
    teacher: ClassVar[str | None] = None
    teachers: Pools = ()
    """Pools that reword the planted responses. By default, the shipped wordings are used as they are."""
    at_once: Count | None = None
    """Concurrent rewordings. By default, the capacity of the pools."""
    language: Language = "en"
    """Language of the items."""
    seed: int = 0
    """Determines the items."""

    @model_validator(mode="after")
    def _some_items(self) -> OlabenchItemsCommand:
        if not self.core + self.risk + self.hallucination:
            raise BadInput("core", 0, "asks for no items; ask for at least one in some subset")
        return self


class OlabenchScenarios(OlabenchItemsCommand):
    examples = ("hamr data olabench scenario=all output=data/olabench",)
    work = "hamr.apps.data.build_olabench:from_scenarios"

    scenario: Annotated[str, Field(title="NAME|PATH|all|NAME,NAME")]
    """Scenarios whose rule engines give the items."""


class OlabenchSamples(OlabenchItemsCommand):
    examples = ("hamr data olabench samples=data/own output=data/olabench risk=0",)
    work = "hamr.apps.data.build_olabench:from_samples"

    samples: Annotated[File, Field(title="SAMPLES.jsonl|FOLDER")]
    """Output of `hamr data import`: a file of samples, or a folder whose test split (or else training split) is
    used."""


class OlabenchLabels(Command):
    """A public corpus with human labels, in the format of labelled responses."""

    examples = ("hamr data olabench labels=pairs input=pairs.jsonl output=labelled.jsonl",)
    work = "hamr.apps.data.build_olabench:convert_labels"

    labels: Literal["hallucination", "pairs", "tau"]
    """Corpus."""
    input: Annotated[File, Field(title="FILE.jsonl")]
    """The corpus's JSONL."""
    output: Annotated[File, Field(title="LABELLED.jsonl")]
    """File of the labelled responses."""
    policies: Annotated[File | None, Field(title="FILE.json")] = None
    """The corpus's policies; required for tau."""
    overwrite: bool = False
    """Replace an existing output."""

    @model_validator(mode="after")
    def _has_policies(self) -> OlabenchLabels:
        if self.labels == "tau" and self.policies is None:
            raise BadInput("policies", None, "missing; give policies=<its JSON>")
        return self
