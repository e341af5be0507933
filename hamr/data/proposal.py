"""Propose a mapping for a ticket export from its headers and values.

Columns are recognised by their values first (speaker, message, ticket number) and by words of their
names in English, Chinese, German and French second. The result is a proposal: a person checks it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Literal, get_args

from hamr.config.tickets import TicketMapping
from hamr.data.columns import list_columns, value_at
from hamr.data.tables import Row
from hamr.data.tickets import as_text
from hamr.data.times import DateOrder, date_order, moment
from hamr.errors import DataError

_PROBE = 2000
"""Rows that are looked at."""
_ROLES = {
    "customer": "customer client user end-user end_user enduser visitor buyer requester human consumer caller guest "
    "member shopper patient kunde kundin nutzer besucher utilisateur acheteur 客户 用户 顾客 买家 访客",
    "agent": "agent staff support admin assistant bot chatbot operator representative rep seller advisor employee "
    "company mitarbeiter mitarbeiterin berater beraterin conseiller vendeur gpt model 客服 坐席 商家 卖家 机器人 助手",
    "tool": "tool function system api 系统 工具",
}
_ROLE_OF = {word: role for role, words in _ROLES.items() for word in words.split()}
_ROLE_NAME = r"role|from|sender|author|speaker|who|direction|rolle|von|absender|verfasser|sprecher|auteur|角色|发送"
_INBOUND_NAME = r"inbound|incoming|(is|from)_?(customer|client|user|requester)"
_OUTBOUND_NAME = r"outbound|outgoing|(is|from)_?(agent|staff|admin|support|bot)"
_INTERNAL_NAME = r"private|internal|intern\b|is_?note"
_PUBLIC_NAME = r"public|visible"
_TRUE, _FALSE = {"true", "1", "yes"}, {"false", "0", "no"}
_CONTENT_NAME = r"text|content|message|body|comment|utterance|said|nachricht|mitteilung|inhalt|contenu|内容|消息|正文"
_ID_NAME = r"ticket|case|conversation|thread|dialog|chat|session|convo|vorgang|^id$|编号|工单|会话|对话"
_TIME_NAME = (
    r"time|date|created|sent|stamp|(^|_)ts$|^(at|when|wann|quand)$|zeit|datum|erstellt|gesendet|eingegangen|heure|créé|envoyé|"
    r"时间|日期"
)
_CUSTOMER_NAME = r"customer|client|user|requester|account|member|buyer|contact|kunde|nutzer|客户|用户|顾客|买家"
_TOOL_NAME = r"tool|function|^action$|^call$|api|werkzeug|outil|工具"
_PARAMETERS_NAME = r"arg|param|payload|input|参数"
_POLICY_NAME = r"policy|guideline|procedure|rules|richtlinie|政策|规则"
_LATER_NAME = (
    r"resol|summar|outcome|csat|rating|score|nps|survey|feedback|satisf|internal|note|tag|status|state|closed|label|sentiment|dispos|result|"
    r"lösung|bewertung|zufrieden|ergebnis|notiz|geschlossen|erledigt|résol|结果|备注|满意|状态"
)
"""Columns that are filled when the ticket ends, which the agent does not know: they become privileged."""
_KNOWN_NAME = (
    r"subject|title|product|categor|channel|plan|lang|priorit|type|topic|betreff|produkt|kategori|kanal|thema|tarif|"
    r"sprache|sujet|produit|catégor|canal|产品|主题|渠道|类"
)
_PERSONAL_NAME = r"mail|phone|address|name|telefon|adress|téléphone|手机|电话|姓名|地址"
_LONGEST_FACT = 200


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A mapping as the object of its YAML, and the columns without a place in it."""

    mapping: Mapping[str, Any]
    unused: tuple[str, ...]
    bad_parameters: tuple[int, ...] = ()
    """Rows (from 0) whose parameters of a call are not a JSON object."""
    unordered: str | None = None
    """A column of dates that the rows of a ticket are not ordered by, if no other column has the turns' times."""
    unread: tuple[str, str] | None = None
    """(column, value) of a column that is named like a time and has a value that cannot be read as one, likewise."""

    @property
    def ticket_mapping(self) -> TicketMapping:
        return TicketMapping.model_validate(self.mapping)


@dataclass(frozen=True)
class _Column:
    name: str
    values: tuple[Any, ...]
    """One value a row, None where there is none."""

    @property
    def present(self) -> list[Any]:
        return [value for value in self.values if value not in (None, "")]

    def is_named(self, pattern: str) -> bool:
        return re.search(pattern, self.name.rpartition(".")[2].lower()) is not None

    @property
    def length(self) -> float:
        return mean([len(str(value)) for value in self.present] or [0])


def propose_mapping(rows: Sequence[Row], source: str, dates: DateOrder | None = None) -> Proposal:
    """Return a mapping for the rows of an export. Raise DataError if no column holds the speakers, or the messages.

    `dates`: order of day and month. By default, the dates of each column decide it.
    """
    rows = rows[:_PROBE]
    if better := next(filter(None, map(_other_form, rows)), None):
        raise DataError("input", source, f"{better}; it needs no mapping")
    columns = _columns(rows)
    turns = next((column for column in columns if _holds_turns(column)), None)
    if turns is None:
        turn_columns, ticket_of_turn = columns, None
    else:
        lists = [_turns(value) or [] for value in turns.values]
        turn_columns = _columns([turn for turns_of_row in lists for turn in turns_of_row])
        ticket_of_turn = [i for i, turns_of_row in enumerate(lists) for _ in turns_of_row]
    role, roles = _role_column(turn_columns, source)
    content = _content_column([column for column in turn_columns if column is not role], source)
    spoken = [roles.get(as_text(value)) for value in role.values]
    free = [column for column in columns if turns is None or not _is_part(column, turns.name)]
    identity = _id_column([c for c in free if c not in (role, content)], spoken if turns is None else None, source)
    tickets = ticket_of_turn or _ticket_numbers(identity.values)
    turn: dict[str, Any] = {"role": role.name, "content": content.name, "roles": _names_by_role(roles)}
    used = [role, content]
    others = [column for column in turn_columns if column not in (role, content, identity)]
    call, parameters = _call_columns(others)
    if call and parameters:
        turn["call"] = {"name": call.name, "parameters": parameters.name}
        used += [call, parameters]
        if any(call.values[i] not in (None, "") for i, speaker in enumerate(spoken) if speaker == "tool"):
            turn["tool"] = call.name
    elif "tool" in turn["roles"]:
        del turn["roles"]["tool"]  # without calls there are no results of calls
        roles = {value: side for value, side in roles.items() if side != "tool"}
    skip = {column.name: values for column in others if (values := _internal_values(column))}
    if strangers := sorted({as_text(value) for value in role.present} - roles.keys()):
        skip[role.name] = strangers
    if skip:
        turn["skip"] = skip
        used += [column for column in others if column.name in skip]
    named = [column for column in others if column not in used and column.is_named(_TIME_NAME)]
    orders = [(c, order) for c in named if (order := _time_order(c, tickets, dates))]
    time, order = min(orders, key=lambda found: _ORDERS.index(found[1]), default=(None, None))
    unread = None if time else next(((c.name, value) for c in named if (value := _unreadable_time(c))), None)
    unordered = time.name if time and order == "mixed" else None
    if time and not unordered:
        turn["time"] = time.name
        used.append(time)
    mapping: dict[str, Any] = {"id": identity.name, **({"turns": turns.name} if turns else {})}
    mapping |= _ticket_columns([c for c in free if c not in (identity, *used)], tickets if turns is None else None)
    mapping["turn"] = turn
    mapped = {name for section in ("ticket", "privileged") for name in mapping.get(section, {}).values()}
    mapped |= {mapping.get("group", ""), mapping.get("policy", ""), mapping.get("tools", ""), identity.name}
    mapped |= {column.name for column in (*used, *([turns] if turns else []))}
    unused = [
        column.name
        for column in (*columns, *(turn_columns if turns else ()))
        if not any(_is_part(column, name) for name in mapped) and not isinstance(column.present[0], dict)
    ]
    filled = enumerate(parameters.values if call and parameters else ())
    bad = [i for i, value in filled if value not in (None, "") and not _is_object(value)]
    return Proposal(
        mapping=mapping,
        unused=tuple(unused),
        bad_parameters=tuple(dict.fromkeys(ticket_of_turn[i] if ticket_of_turn else i for i in bad)),
        unordered=unordered,
        unread=unread,
    )


def _other_form(row: Row) -> str | None:
    """Return the command for a row in a form that has a reader of its own."""

    def objects(name: str) -> list[Row]:
        value = row.get(name)
        return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []

    chats = objects("conversations")
    if any({"author_id", "public"} <= c.keys() for c in objects("comments")) or any(
        "requester_id" in ticket for ticket in objects("tickets")
    ):
        return "is an export of Zendesk: use hamr data import zendesk"
    if any("conversation_parts" in one for one in (row, *chats)):
        return "is an export of Intercom: use hamr data import intercom"
    if any(message.get("role") == "assistant" for message in objects("messages")):
        return "has messages of a chat API: use hamr data import messages"
    if any(turn.get("role") == "assistant" or turn.get("from") in ("human", "gpt") for turn in chats):
        return "has conversations of ShareGPT: use hamr data import sharegpt"
    if {"prompt", "completion"} <= row.keys():
        return "has prompts and completions: use hamr data import trl"
    if "prompt" in row and isinstance(row.get("reward_model"), dict):
        return "has prompts of verl: use hamr data import verl"
    return None


# --- columns -----------------------------------------------------------------------------------


def _columns(rows: Sequence[Row]) -> list[_Column]:
    """Return the columns, and the columns of objects in them as paths, that have a value in some row."""
    names: dict[str, None] = {}
    for row in rows:
        for name, value in row.items():
            if name:  # the index of a data frame has none
                names.setdefault(name)
            if isinstance(value, dict):
                names.update({f"{name}.{inner}": None for inner in value})
    found = (_Column(name, tuple(value_at(row, name) for row in rows)) for name in names)
    return [column for column in found if column.present]


def _turns(value: Any) -> list[Row] | None:
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    return value if isinstance(value, list) and all(isinstance(turn, dict) for turn in value) else None


def _holds_turns(column: _Column) -> bool:
    lists = [_turns(value) for value in column.present]
    return None not in lists and any(len(turns or ()) > 1 for turns in lists)


def _is_part(column: _Column, outer: str) -> bool:
    return column.name == outer or (outer != "" and column.name.startswith(f"{outer}."))


def _role_column(columns: Sequence[_Column], source: str) -> tuple[_Column, dict[str, str]]:
    """Return the column whose values name both sides, and the role of each value."""
    best: tuple[tuple[float, bool], _Column, dict[str, str]] | None = None
    for column in columns:
        values = list(dict.fromkeys(as_text(v) for v in column.present if isinstance(v, str | bool | int)))
        if not 1 < len(values) <= 20:
            continue
        roles = _direction(column, values) or {v: role for v in values if (role := _ROLE_OF.get(v.strip().lower()))}
        sides = set(roles.values()) - {"tool"}
        unknown = [value for value in values if value not in roles]
        if len(sides) == 1 and len(unknown) == 1 and sum(role != "tool" for role in roles.values()) == 1:
            roles[unknown[0]] = "agent" if sides == {"customer"} else "customer"
        elif len(sides) < 2:
            continue
        covered = sum(as_text(value) in roles for value in column.values) / len(column.values)
        rank = (covered, column.is_named(_ROLE_NAME))
        if best is None or rank > best[0]:
            best = rank, column, roles
    if best is None:
        remedy = "no column tells the customer's turns from the agent's; rename its values to customer and agent"
        raise DataError("input", source, f"{remedy} (columns: {list_columns([c.name for c in columns])})")
    return best[1], best[2]


def _direction(column: _Column, values: Sequence[str]) -> dict[str, str]:
    """Return the roles of a flag such as `inbound` or `is_agent`, nothing for another column."""
    true = [value for value in values if value.lower() in _TRUE]
    false = [value for value in values if value.lower() in _FALSE]
    if len(values) != 2 or not true or not false:
        return {}
    if column.is_named(_INBOUND_NAME):
        return {true[0]: "customer", false[0]: "agent"}
    return {true[0]: "agent", false[0]: "customer"} if column.is_named(_OUTBOUND_NAME) else {}


def _internal_values(column: _Column) -> list[str]:
    """Return the values of a flag that mark internal texts, which the customer did not get."""
    values = sorted({as_text(value) for value in column.present})
    if not all(value.lower() in _TRUE | _FALSE for value in values):
        return []
    marks = _TRUE if column.is_named(_INTERNAL_NAME) else _FALSE if column.is_named(_PUBLIC_NAME) else set()
    return [value for value in values if value.lower() in marks]


def _content_column(columns: Sequence[_Column], source: str) -> _Column:
    texts = [c for c in columns if all(isinstance(v, str) for v in c.present) and not all(map(_is_object, c.present))]
    if not texts:
        raise DataError("input", source, f"no column holds texts (columns: {list_columns([c.name for c in columns])})")
    return max(texts, key=lambda column: (column.is_named(_CONTENT_NAME), column.length))


def _id_column(columns: Sequence[_Column], spoken: Sequence[str | None] | None, source: str) -> _Column:
    """Return the column that names the ticket. `spoken` has the role of every row if a row is a turn."""

    def fits(column: _Column) -> bool:
        if not all(isinstance(value, str | int) and value != "" for value in column.values):
            return False
        if spoken is None:
            return len(set(column.values)) == len(column.values)
        sides: dict[Any, set[str | None]] = {}
        for value, role in zip(column.values, spoken, strict=True):
            sides.setdefault(value, set()).add(role)
        return sum({"customer", "agent"} <= both for both in sides.values()) >= 0.5 * len(sides)

    fitting = [column for column in columns if fits(column)]
    if not fitting:
        remedy = "no column names the ticket of a row; add one whose value is the same in all rows of a ticket"
        raise DataError("input", source, f"{remedy} (columns: {list_columns([c.name for c in columns])})")

    def rank(column: _Column) -> tuple[bool, bool, int]:
        return not column.is_named(_CUSTOMER_NAME), column.is_named(_ID_NAME), len(set(column.values))

    return max(fitting, key=rank)


def _ticket_numbers(values: Iterable[Any]) -> list[int]:
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _call_columns(columns: Sequence[_Column]) -> tuple[_Column | None, _Column | None]:
    """Return the columns of the tools and of their parameters, of which at least half are objects."""
    named = (c for c in columns if c.is_named(_PARAMETERS_NAME))
    parameters = next((c for c in named if mean(map(_is_object, c.present)) >= 0.5), None)
    name = next((c for c in columns if c.is_named(_TOOL_NAME) and c is not parameters and c.length < 60), None)
    return name, parameters


def _is_object(value: Any) -> bool:
    """Return True for an object, and for the text of one."""
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    return isinstance(value, dict)


Order = Literal["oldest", "newest", "same", "mixed"]
_ORDERS: tuple[Order, ...] = get_args(Order)


def _time_order(column: _Column, tickets: Sequence[int], dates: DateOrder | None) -> Order | None:
    """Return the order of the times within the tickets, None for other values and for numbers in no order.

    Dates whose day and month cannot be told apart have no order yet: the import asks for it.
    """
    try:
        order = date_order(column.name, ((column.name, value) for value in column.present), dates)
    except DataError:
        return "same"
    last: dict[int, Any] = {}
    later = earlier = 0
    try:
        for ticket, value in zip(tickets, column.values, strict=True):
            if value not in (None, ""):
                now = moment(value, column.name, order)
                later += ticket in last and now > last[ticket]
                earlier += ticket in last and now < last[ticket]
                last[ticket] = now
    except (DataError, TypeError, ValueError):
        return None
    if not last:
        return None
    if min(later, earlier) * 2 > max(later, earlier):
        return None if all(re.fullmatch(r"[\d.]+", as_text(value)) for value in column.present) else "mixed"
    return "oldest" if later > earlier else "newest" if earlier else "same"


def _unreadable_time(column: _Column) -> str | None:
    """Return the first value with a digit that is not a time, None if there is none."""
    for value in column.present:
        try:
            moment(value, column.name, None)
        except DataError:
            if re.search(r"\d", str(value)):
                return str(value)[:80]
    return None


def _ticket_columns(columns: Sequence[_Column], tickets: Sequence[int] | None) -> dict[str, Any]:
    """Return the mapping's parts that describe a ticket. `tickets`: the ticket of every row if a row is a turn."""
    found: dict[str, Any] = {}
    facts: dict[str, dict[str, str]] = {"ticket": {}, "privileged": {}}
    for column in (c for c in columns if tickets is None or _is_constant(c, tickets)):
        if column.is_named(r"^(tools|functions)$") and not isinstance(column.present[0], int | float):
            found.setdefault("tools", column.name)
        elif column.is_named(_POLICY_NAME) and column.length > 30:
            found.setdefault("policy", column.name)
        elif re.search(_CUSTOMER_NAME, column.name.lower()) and column.is_named(r"id$|n[or]$|num|key|编号"):
            found.setdefault("group", column.name)
        elif all(isinstance(value, str | int | float) for value in column.present) and column.length <= _LONGEST_FACT:
            repeats = len(set(column.present)) < len(column.present if tickets is None else set(tickets))
            if section := _section(column, repeats):
                key = re.sub(r"\W+", "_", column.name.rpartition(".")[2]).strip("_").lower()
                facts[section].setdefault(key, column.name)
    return {**found, **{section: named for section, named in facts.items() if named}}


def _section(column: _Column, repeats: bool) -> str | None:
    if column.is_named(_LATER_NAME):
        return "privileged"
    known = column.is_named(_KNOWN_NAME) or (repeats and not column.is_named(f"{_TIME_NAME}|{_PERSONAL_NAME}"))
    return "ticket" if known else None


def _is_constant(column: _Column, tickets: Sequence[int]) -> bool:
    first: dict[int, Any] = {}
    return all(first.setdefault(ticket, value) == value for ticket, value in zip(tickets, column.values, strict=True))


def _names_by_role(roles: Mapping[str, str]) -> dict[str, list[str]]:
    listed: dict[str, list[str]] = {}
    for value, role in roles.items():
        if value != role:
            listed.setdefault(role, []).append(value)
    return listed
