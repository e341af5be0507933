"""Arguments of `hamr data import`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from hamr.apps.shared.commands import Command, File, Folder, Names, Word
from hamr.errors import BadInput, did_you_mean

HeldOutShare = Annotated[float, Field(gt=0.0, lt=0.5)]


class ImportCommand(Command):
    output: Folder
    """Folder of the splits, trajectories.jsonl and report.json."""
    overwrite: bool = False
    """Replace existing files in the folder."""
    held_out_frac: HeldOutShare = 0.15
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
    group: str | None = None
    """Key of the tickets, or path into an object in them: tickets with the same value are in one split. By default, the
    id of the customer (requester_id, or the contact). group=id splits by ticket."""


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
    from hamr.data.importers import CHATS, IMPORTERS

    corpora = (*IMPORTERS, *CHATS)
    if name not in corpora:
        known = [*corpora, "tickets", "zendesk", "intercom"]
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
        from hamr.data.importers import WITH_POLICIES

        if self.policies is not None and self.corpus not in WITH_POLICIES:
            raise BadInput("policies", str(self.policies), f"is not a file of the {self.corpus} form; remove it")
        return self
