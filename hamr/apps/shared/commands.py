"""Commands as frozen models: one parser, one renderer and one help text for all of them.

A field is an option `name=value`. Its type decides how the text is read, its docstring is the help. `Flag`, `Word` and
`Prefix` mark fields that are written differently. Every mistake is one line: BadInput with the key, the value and the
remedy. This module imports no model library, so that help is quick.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from hamr.apps.jobs import JOBS, find, import_name, load, path_of, siblings
from hamr.config.overrides import CONFIG_DIR_FLAG
from hamr.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from hamr.config.schema import Config

WIDTH = 120
CLOSE = 0.75
"""Similarity from which an unknown word is taken for a misspelt option rather than for an override."""


class Flag:
    """Marks a switch that is written as `--name`."""


class Word:
    """Marks a value that is written without a name: `hamr status RUN`."""


@dataclass(frozen=True)
class Prefix:
    """Marks a field that collects all other words starting with `text`, without it.

    A tuple has the words, a mapping splits them at `=`.
    """

    text: str = ""


class Command(BaseModel):
    """Arguments of a command. A subclass also says what the command does: the function `work`, or its own `run`."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        allow_inf_nan=False,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )
    examples: ClassVar[tuple[str, ...]] = ()
    """Arguments of example calls, shown in the help."""
    outputs: ClassVar[Mapping[str, str]] = {}
    """Results for later stages of a pipeline: name -> path in the folder of the stage. Empty: not a pipeline's job."""
    work: ClassVar[str] = ""
    """`module:function` that does the work with the command as its argument. It is imported when the command runs."""
    target: ClassVar[str] = "output"
    """Option that sets where the command writes; a pipeline sets it."""
    writes: ClassVar[str] = "."
    """Path of `target` in the folder of a pipeline's stage."""
    takes_common: ClassVar[bool] = False
    """True if a pipeline passes the overrides for all stages to this command."""

    @property
    def words(self) -> str:
        """Words after `hamr`, as in the table of commands."""
        return path_of(type(self))

    def check(self) -> Config | None:
        """Check everything that needs neither Ray nor the contents of input files. Raises BadInput.

        Returns the composed configuration if the command takes one. A pipeline checks all its stages with it first.
        """
        return None

    def run(self) -> int:
        """Do the work and return the exit code."""
        return int(import_name(self.work)(self))


class ConfiguredCommand(Command):
    """A command that also takes overrides of the configuration."""

    takes_common: ClassVar[bool] = True

    overrides: Annotated[tuple[str, ...], Prefix(), Field(title="[overrides]")] = ()
    """Values and choices of the configuration, --config-dir, --cfg and --info; `hamr --help` explains them."""

    def config(self) -> Config:
        """Return the configuration with the overrides. Raises ConfigError."""
        from hamr.config.load import load_config

        return load_config(self.overrides)

    def check(self) -> Config | None:
        return self.config()


C = TypeVar("C", bound=Command)


# --- types of options --------------------------------------------------------------------------


def _split(value: object) -> object:
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("names one twice; name each once")
    return names


def _at_home(path: Path) -> Path:
    return Path(os.path.expanduser(path))  # unlike Path.expanduser, it accepts users that do not exist


File = Annotated[Path, AfterValidator(_at_home), Field(title="FILE")]
Folder = Annotated[Path, AfterValidator(_at_home), Field(title="FOLDER")]
List = Annotated[tuple[str, ...], BeforeValidator(_split), Field(title="NAME[,NAME...]")]
Names = Annotated[List, AfterValidator(_each_once)]
Files = Annotated[tuple[File, ...], BeforeValidator(_split), Field(title="FILE[,FILE...]")]
Folders = Annotated[tuple[Folder, ...], BeforeValidator(_split), Field(title="FOLDER[,FOLDER...]")]
PoolName = Annotated[str, Field(title="POOL")]
Count = Annotated[int, Field(ge=1)]
NonNegativeCount = Annotated[int, Field(ge=0)]


# --- parsing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Forms:
    """Syntax of the fields of a command."""

    options: Mapping[str, FieldInfo]
    """Key -> field of `key=value`."""
    flags: Mapping[str, str]
    """`--name` -> field."""
    prefixes: Mapping[str, str]
    """Prefix -> field that collects."""
    words: Sequence[str]
    """Fields of bare words."""


@functools.cache
def _forms(kind: type[Command]) -> _Forms:
    options: dict[str, FieldInfo] = {}
    flags, prefixes, words = {}, {}, []
    for name, info in kind.model_fields.items():
        mark = next((m for m in info.metadata if isinstance(m, Flag | Word | Prefix)), None)
        if isinstance(mark, Flag):
            flags[f"--{name.replace('_', '-')}"] = name
        elif isinstance(mark, Word):
            words.append(name)
        elif isinstance(mark, Prefix):
            prefixes[mark.text] = name
        else:
            options[info.alias or name] = info
    return _Forms(options, flags, prefixes, words)


def parse_command(words: Sequence[str]) -> Command:
    """Return the command of the words after `hamr`. Raises BadInput."""
    path, rest = find(words)
    return parse(load(path), rest)


def parse(kind: type[C], words: Sequence[str]) -> C:
    """Return the command of the words after its path. An option that is given twice has its last value.

    Raises BadInput.
    """
    forms = _forms(kind)
    given: dict[str, Any] = {}
    bare = iter(forms.words)
    rest = iter(words)
    for word in rest:
        key, equals, value = word.partition("=")
        prefix = next((p for p in forms.prefixes if p and key.startswith(p)), "")
        if equals and key in forms.options:
            given.pop(key, None)
            given |= _read_option(key, value, forms.options[key])
        elif word in forms.flags:
            given[forms.flags[word]] = True
        elif prefix:
            _collect(given, kind, forms.prefixes[prefix], word.removeprefix(prefix))
        elif not equals and not word.startswith("-") and (name := next(bare, None)):
            given[name] = word
        else:
            try:
                _refuse_unknown(kind, word)
            except BadInput as error:
                raise _wrong_word(kind, given) or error from None
            _collect(given, kind, forms.prefixes[""], word)
            if word == CONFIG_DIR_FLAG:
                _collect(given, kind, forms.prefixes[""], next(rest, ""))
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        # Report a wrong bare word first: it decides what else is needed.
        raise _complaint(kind, min(faults, key=lambda fault: fault["loc"][0] not in forms.words)) from None


def _read_option(key: str, value: str, info: FieldInfo) -> dict[str, str | None]:
    kinds = set(_types(info.annotation))
    is_text = bool({str, Path} & kinds) or any(typing.get_origin(kind) is tuple for kind in kinds)
    if is_text:
        return {key: value} if value else {}  # an empty text is none
    if bool in kinds and value.lower() not in ("true", "false"):
        raise BadInput(key, value, "must be true or false")
    return {key: None if type(None) in kinds and value in ("null", "none") else value}


def _types(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation, without Annotated and unions."""
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from _types(part)
    else:
        yield annotation


def _collect(given: dict[str, Any], kind: type[Command], field: str, word: str) -> None:
    if typing.get_origin(kind.model_fields[field].annotation) is dict:
        key, _, value = word.partition("=")
        given.setdefault(field, {})[key] = value
    else:
        given[field] = (*given.get(field, ()), word)


def _refuse_unknown(kind: type[Command], word: str) -> None:
    """Raise BadInput for a word that no field takes, or that looks like a misspelt option and not like an override."""
    forms, where, (key, equals, _) = _forms(kind), path_of(kind), word.partition("=")
    field = forms.prefixes.get("")
    takes = field is not None and (bool(equals) or typing.get_origin(kind.model_fields[field].annotation) is not dict)
    known = {**{name: f"{name}=..." for name in forms.options}, **{flag: flag for flag in forms.flags}}
    if other := next((other for other in siblings(path_of(kind)) if key in _forms(load(other)).options), None):
        raise BadInput(where, word, f"is an option of `hamr {other}`; remove it")
    near = difflib.get_close_matches(key, known, n=1, cutoff=CLOSE if takes else 0.6)
    if takes and (not near or not (key.isidentifier() or key.startswith("--")) or _is_section(key)):
        return
    hint = f"did you mean {known[near[0]]}? " if near else ""
    raise BadInput(where, word, f"unknown option; {hint}usage: {usage(kind)}")


def _wrong_word(kind: type[Command], given: Mapping[str, Any]) -> BadInput | None:
    """Return the complaint about a bare word with a wrong value: the right one may have other options."""
    words = {name: given[name] for name in _forms(kind).words if name in given}
    try:
        kind.model_validate(words)
    except ValidationError as error:
        wrong = (fault for fault in error.errors(include_url=False) if fault["loc"][0] in words)
        return next((_complaint(kind, fault) for fault in wrong), None)
    except BadInput:
        pass  # a check of the whole command, which is not read yet
    return None


def _is_section(key: str) -> bool:
    from hamr.config.schema import GROUPS

    return key in GROUPS or key == CONFIG_DIR_FLAG


def _complaint(kind: type[Command], first: ErrorDetails) -> BadInput:
    """Convert an error of pydantic."""
    forms, key = _forms(kind), str(first["loc"][0])
    value, context, error = first["input"], first.get("ctx", {}), first["type"]
    info = next(i for name, i in kind.model_fields.items() if key in (name, i.alias))
    prefix = next((prefix for prefix, field in forms.prefixes.items() if field == key), None)
    where = f"{prefix}{first['loc'][-1]}" if prefix is not None else _placeholder(info) if key in forms.words else key
    if error == "missing":
        written = f"give {key}={_placeholder(info)}" if key in forms.options else f"write {usage(kind)}"
        return BadInput(where, None, f"missing; {written}")
    if error == "literal_error":
        choices = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        one_of = " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))
        return BadInput(where, value, f"{did_you_mean(str(value), choices)}must be {one_of}")
    if error == "value_error":
        return BadInput(where, value, str(context["error"]))
    if error in _BOUNDS:
        value = float(value) if float in _types(info.annotation) else int(value)
        bounds = {
            name: bound for m in _marks(info) for name in ("ge", "le") if (bound := getattr(m, name, None)) is not None
        }
        both = len(bounds) == 2 and error in ("greater_than_equal", "less_than_equal")
        rule = "must be between {ge:.10g} and {le:.10g}" if both else _BOUNDS[error]
        return BadInput(where, value, rule.format(**context | bounds))
    return BadInput(where, value, _TYPES.get(error, first["msg"].replace("Input should be", "must be", 1)))


_TYPES = {
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "finite_number": "must be a number",
}
_BOUNDS = {
    "greater_than_equal": "must be {ge:.10g} or more",
    "greater_than": "must be above {gt:.10g}",
    "less_than_equal": "must be at most {le:.10g}",
    "less_than": "must be below {lt:.10g}",
}


def _marks(info: FieldInfo) -> Iterator[Any]:
    """Yield the constraints and descriptions of a field and of the types in its annotation."""
    parts = [info.metadata, *(getattr(part, "__metadata__", ()) for part in typing.get_args(info.annotation))]
    for mark in (info, *(mark for marks in parts for mark in marks)):
        yield mark
        if isinstance(mark, FieldInfo) and mark is not info:
            yield from mark.metadata


# --- rendering ---------------------------------------------------------------------------------


def render(command: Command) -> list[str]:
    """Return the words after `hamr` that give this command."""
    forms = _forms(type(command))
    given = [name for name in type(command).model_fields if name in command.model_fields_set]
    by_field = {name: prefix for prefix, name in forms.prefixes.items()}
    words = [word for word in command.words.split() if not word.endswith("=")]
    for name in sorted(given, key=lambda name: name in by_field):  # overrides are last
        value, key = getattr(command, name), type(command).model_fields[name].alias or name
        if name in by_field:
            entries = [f"{key}={text}" for key, text in value.items()] if isinstance(value, dict) else value
            words += [f"{by_field[name]}{entry}" for entry in entries]
        elif name in forms.words:
            words.append(str(value))
        elif name in forms.flags.values():
            words += [flag for flag, field in forms.flags.items() if field == name and value]
        else:
            words.append(f"{key}={_to_text(value)}")
    return words


def _to_text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


# --- help --------------------------------------------------------------------------------------


def usage(kind: type[Command]) -> str:
    """Return the line that shows how the command is written."""
    forms, fields = _forms(kind), kind.model_fields
    chosen = [word[:-1] for word in path_of(kind).split() if word.endswith("=")]
    one_of = [f"{key}={_placeholder(forms.options[key])}" for key in chosen]
    needed = [f"{k}={_placeholder(i)}" for k, i in forms.options.items() if i.is_required() and k not in chosen]
    path = [word for word in path_of(kind).split() if not word.endswith("=")]
    words = [_placeholder(fields[name]) for name in forms.words]
    options = ["[option=value ...]"] if len(forms.options) > len(needed) + len(one_of) else []
    collected = [_placeholder(fields[name]) for name in forms.prefixes.values()]
    return " ".join(["hamr", *path, *words, *one_of, *needed, *options, *(f"[{f}]" for f in forms.flags), *collected])


def help_text(path: str) -> str:
    """Return the help of a path in the table: of a command, or of the commands of a group."""
    more = {name: line for name, (_, line) in JOBS.items() if name.startswith(f"{path} ")}
    parts = [f"hamr {path}: {JOBS[path][1]}"]
    if JOBS[path][0]:
        kind = load(path)
        paragraphs = (inspect.getdoc(kind) or "").split("\n\n")
        shown = (paragraph if paragraph.startswith(" ") else _fill(paragraph) for paragraph in paragraphs)
        parts += [f"usage: {usage(kind)}", *shown, _options(kind)]
        if kind.examples:
            parts.append(
                "\n".join(["example:" if len(kind.examples) == 1 else "examples:", *(f"  {e}" for e in kind.examples)])
            )
    if more:
        width = max(map(len, more))
        lines = [f"  hamr {name:<{width}}  {line}" for name, line in more.items()]
        parts.append("\n".join(["commands (each has --help):", *lines]))
    return "\n\n".join(filter(None, parts))


def _fill(text: str, indent: str = "") -> str:
    words = " ".join(text.split())
    return textwrap.fill(words, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _options(kind: type[Command]) -> str:
    collected, own = _forms(kind).prefixes.values(), kind.__annotations__

    def order(field: tuple[str, FieldInfo]) -> tuple[bool, bool, bool]:
        return field[0] in collected, not field[1].is_required(), field[0] not in own

    fields = sorted(kind.model_fields.items(), key=order)
    rows = [(_syntax(kind, name), info) for name, info in fields]
    if not rows:
        return ""
    width = min(max(len(written) for written, _ in rows), 32)
    lines = ["options:"]
    for written, info in rows:
        text = f"{info.description}{_default(info)}"
        indent = " " * (width + 4)
        filled = _fill(text, indent).lstrip()
        lines.append(f"  {written:<{width}}  {filled}" if len(written) <= width else f"  {written}\n{indent}{filled}")
    return "\n".join(lines)


def _syntax(kind: type[Command], name: str) -> str:
    forms, info = _forms(kind), kind.model_fields[name]
    if name in forms.words or name in forms.prefixes.values():
        return _placeholder(info)
    return next(
        (flag for flag, field in forms.flags.items() if field == name), f"{info.alias or name}={_placeholder(info)}"
    )


def _placeholder(info: FieldInfo) -> str:
    """Return the placeholder of a field's value in a usage line."""
    if title := next((m.title for m in _marks(info) if isinstance(m, FieldInfo) and m.title), None):
        return title
    first = next(t for t in _types(info.annotation) if t is not type(None))
    if typing.get_origin(first) is Literal:
        return "|".join(map(str, typing.get_args(first)))
    return {int: "N", float: "X", bool: "true|false"}.get(first, "TEXT")


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return " (required)"
    if info.default_factory or info.default is None or info.default is False or info.default in ((), "", {}):
        return ""
    return f" (default: {_to_text(info.default)})"
