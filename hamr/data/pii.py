"""Detection of personal data in tickets, and typed aliases that are stable within a ticket. Chinese and English.

    phone       13812345678, +86 138 1234 5678, (977) 625-2661, +1 415 555 0132
    email       mia@example.com
    domain      shop.example.com, https://..., an IP address
    account     after a label (UID: 48213377, order number 3348917502, 账号：zhang_01), identity numbers
    address     6821 1st ave, 975 Sunset Drive Suite 217; 浙江省杭州市西湖区文三路90号
    key         sk-..., AKIA..., LTAI..., and values after a label (password: ..., 密钥：...)
    signature   【某某科技】 of a text message, and values after a label (signature: "Acme", 签名：某某)

Rule-based: the result is deterministic, and no data leave the machine. Names of persons and free descriptions of
places are not detected, because rules cannot distinguish them from other words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Kind = Literal["key", "email", "domain", "phone", "account", "address", "signature"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_I = re.IGNORECASE
_NO_WORD = r"(?<![A-Za-z0-9_])"
_SEP = r"\s*(?:(?:is|are|为|是)\s*)?[:：=#]?\s*[\"'“‘「]?"
_TOP = (
    "com|net|org|io|cn|edu|gov|info|biz|dev|app|shop|xyz|top|cloud|site|online|tech|store|me|co|uk|de|fr|jp|us|eu|hk|tw"
)
_STREET = "street|st|avenue|ave|road|rd|boulevard|blvd|drive|lane|ln|parkway|pkwy|highway|hwy"
_STREET_TOO = "Way|Place|Pl|Court|Ct|Circle|Trail|Terrace|Square|Sq|Dr"
"""Ends of street names that are also other words: only after a capitalised word."""
_NO_STREET = r"(?!(?:a|am|and|at|blocks?|days?|for|from|hours?|in|miles?|minutes?|my|of|on|or|pm|that|the|this|to)\b)"
_FLAT = r"\b\.?(?:,? (?:apt|apartment|suite|unit|floor|#)\.? ?\w+)?"

# The group `value`, if present, is the private part. The text before it is only the label.
_PATTERNS: Sequence[tuple[Kind, re.Pattern[str]]] = (
    ("key", re.compile(_NO_WORD
        + r"(?:sk-[\w-]{12,}|(?:AKIA|ASIA|LTAI)[A-Za-z0-9]{10,}|gh[pousr]_\w{20,}|eyJ[\w-]{10,}\.[\w.-]{10,})")),
    ("key", re.compile(
        r"(?:pass(?:word|code|wd)|api[ _-]?key|access[ _-]?key(?:[ _-]?(?:id|secret))?|secret(?:[ _-]?key)?|token"
        r"|密码|口令|密钥|秘钥|令牌|验证码)" + _SEP
        + r"(?P<value>(?=[^\s,，。;；]*\d)[A-Za-z0-9_\-+/=.!@$%^&*]{4,})", _I)),
    ("key", re.compile(
        _NO_WORD + r"(?=[A-Za-z0-9+/]*[a-z])(?=[A-Za-z0-9+/]*[A-Z])(?=(?:[A-Za-z+/]*\d){4})[A-Za-z0-9+/]{28,}={0,2}")),
    ("key", re.compile(_NO_WORD + r"(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{32,}(?![A-Za-z0-9])")),
    ("email", re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,4}\.[A-Za-z]{2,12}")),
    ("domain", re.compile(r"https?://[^\s<>\"'，。；、）)】]+", _I)),
    ("domain", re.compile(
        r"(?<![\w@.-])(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,5}(?:" + _TOP + r")(?![\w-]|\.\w)", _I)),
    ("domain", re.compile(r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.]*\d)")),
    ("account", re.compile(
        r"(?<!\d)[1-9]\d{5}(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\d{3}[\dXx](?![\dA-Za-z])")),
    ("phone", re.compile(r"(?<![\dA-Za-z])(?:\+?86[- ]?)?1[3-9]\d[- ]?\d{4}[- ]?\d{4}(?!\d)")),
    ("phone", re.compile(r"(?<![\w.])(?:\+1[- .]?)?(?:\(\d{3}\)\s?|\d{3}[-. ])\d{3}[-. ]\d{4}(?!\d)")),
    ("phone", re.compile(r"(?<![\w.])\+\d{1,3}(?:[- ]?\(?\d{2,4}\)?){2,4}(?!\d)")),
    ("phone", re.compile(r"(?<!\d)0\d{2,3}-\d{7,8}(?!\d)")),
    ("phone", re.compile(
        r"(?:phone(?: number)?|mobile(?: number)?|cell|tel(?:ephone)?|电话|手机(?:号码?)?)" + _SEP
        + r"(?P<value>\+?\d[\d -]{5,14}\d)", _I)),
    ("account", re.compile(
        r"\b(?:uid|(?:user|account|customer|member|order|reservation|confirmation|contract|policy|card|client|ticket|case)"
        r"[ _-]?(?:id|no\.?|number|name)|username|account)" + _SEP + r"(?P<value>(?=[\w-]*\d)[\w-]{4,})", _I)),
    ("account", re.compile(
        r"(?:账号|帐号|账户|帐户|用户名|用户号|会员号|订单号?|订单编号|工单号|合同号|卡号|身份证号?码?|实例)(?:ID|id)?"
        + _SEP
        + r"(?P<value>(?=[A-Za-z0-9_-]*\d)[A-Za-z0-9_-]{4,})")),
    ("address", re.compile(
        r"(?<![\w.])\d{1,6}[A-Za-z]?(?: " + _NO_STREET + r"[A-Za-z0-9'’-]+){1,3}? (?:" + _STREET + r")" + _FLAT, _I)),
    ("address", re.compile(
        r"(?<![\w.])\d{1,6}[A-Za-z]?(?: [A-Z][A-Za-z'’-]+){1,3}? (?:" + _STREET_TOO + r")" + _FLAT)),
    ("address", re.compile(
        r"(?:[\u4e00-\u9fff]{0,6}[到在往于址是为][:：]?)?(?P<value>(?:[\u4e00-\u9fff]{2,8}(?:省|自治区))?(?:[\u4e00-\u9fff]{2,7}市)?(?:[\u4e00-\u9fff]{1,7}[区县])?"
        r"[\u4e00-\u9fffA-Za-z0-9]{1,12}(?:路|街道?|大道|巷|弄|胡同)\s?\d{1,5}\s?(?:号|弄)"
        r"(?:[\u4e00-\u9fffA-Za-z0-9]{0,12}(?:室|楼|层|座|栋|幢|单元))?)")),
    ("signature", re.compile(r"【(?P<value>[^【】\s]{2,20})】")),
    ("signature", re.compile(
        r"(?:signature|签名(?:名称)?)" + _SEP.replace("[:：=#]?", "[:：=]")
        + r"(?P<value>[^\s\"'”’」,，。;；]{2,30})", _I)),
)  # fmt: skip

_BY_NAME: Sequence[tuple[Kind, re.Pattern[str]]] = (
    ("email", re.compile(r"e?[-_]?mail|邮箱|邮件地址", _I)),
    ("phone", re.compile(r"phone|mobile|(?:^|_)tel(?:$|_)|电话|手机", _I)),
    ("key", re.compile(r"pass(?:word|code|wd)|secret|(?:api|access)[ _-]?key|token|密码|密钥|秘钥", _I)),
    ("address", re.compile(r"(?:^|[^a-z])address|street|地址|住址", _I)),
    ("domain", re.compile(r"domain|(?:^|_)url$|website|域名|网址", _I)),
    ("signature", re.compile(r"signature|sign_?name|签名", _I)),
    ("account", re.compile(
        r"(?:^|_)uid$|user_?name|account_?name"
        r"|(?:user|account|customer|member|order|reservation|contract|card|client)[ _-]?(?:id|no|number)$"
        r"|账号|帐号|账户|用户名|订单号|身份证|卡号", _I)),
)  # fmt: skip
_ABOUT = re.compile(r"(?:type|kind|status|count|verified|enabled|format|length)$", _I)
_ALIAS = re.compile(r"\[(?:" + "|".join(kind.upper() for kind in KINDS) + r")_\d+\]")


@dataclass(frozen=True, kw_only=True)
class Found:
    """One private value: text[start:end]."""

    kind: Kind
    start: int
    end: int
    value: str


def find_pii(text: str) -> tuple[Found, ...]:
    """Return the private values in order of position.

    If two overlap, the kind whose pattern comes first wins: an e-mail address is not also a domain. Aliases are not
    matched.

    >>> [(f.kind, f.value) for f in find_pii("Mail mia@example.com, UID: 48213377")]
    [('email', 'mia@example.com'), ('account', '48213377')]
    """
    taken = [(m.start(), m.end()) for m in _ALIAS.finditer(text)]
    found = []
    for kind, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            group = "value" if "value" in pattern.groupindex else 0
            start, end = match.span(group)
            value = match.group(group).rstrip(".!?-")
            end = start + len(value)
            if value and all(end <= a or start >= b for a, b in taken):
                taken.append((start, end))
                found.append(Found(kind=kind, start=start, end=end, value=value))
    return tuple(sorted(found, key=lambda f: f.start))


def kind_by_name(name: str) -> Kind | None:
    """Return the kind of value that the name of a field or parameter indicates, or None. `phone_type` holds no
    phone."""
    if _ABOUT.search(name):
        return None
    return next((kind for kind, pattern in _BY_NAME if pattern.search(name)), None)


@dataclass
class Aliases:
    """Aliases of one ticket: `[PHONE_1]` is the same number everywhere in the ticket.

    First `learn` every text and field, then `hide`: a value that was labelled once ("my UID is 48213377") is also
    hidden where it occurs without a label.
    """

    values: dict[str, str] = field(default_factory=dict)
    """Alias by real value."""
    public: frozenset[str] = frozenset()
    """Public values, which are never hidden."""
    counts: dict[Kind, int] = field(default_factory=dict)
    _compiled: tuple[int, re.Pattern[str]] | None = None

    def learn(self, text: str) -> None:
        for found in find_pii(text):
            self._alias(found.kind, found.value)

    def learn_value(self, name: str, value: Any) -> None:
        """Learn the values of a field or a parameter, whose name may indicate its kind. Recurses into lists and
        objects."""
        if isinstance(value, Mapping):
            for key, inner in value.items():
                self.learn_value(str(key), inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                self.learn_value(name, inner)
        elif isinstance(value, str | int) and not isinstance(value, bool):
            text = str(value).strip()
            kind = kind_by_name(name)
            if kind is not None and len(text) >= 4:
                self._alias(kind, text)
            else:
                self.learn(text)

    def hide(self, text: str) -> str:
        """Return the text with every known value replaced, longer values first, so that none is split."""
        pattern = self._pattern()
        return pattern.sub(lambda match: self.values[match.group()], text) if pattern is not None else text

    def hide_value(self, value: Any) -> Any:
        """Apply `hide` recursively to lists and objects. A number that is a known value becomes its alias."""
        if isinstance(value, Mapping):
            return {key: self.hide_value(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_value(inner) for inner in value]
        if isinstance(value, int) and not isinstance(value, bool):
            return self.values.get(str(value), value)
        return self.hide(value) if isinstance(value, str) else value

    def named_in(self, value: Any) -> dict[str, str]:
        """Return {alias: real value} of the aliases in `value`."""
        shown = str(value)
        return {alias: real for real, alias in self.values.items() if alias in shown}

    def _alias(self, kind: Kind, value: str) -> None:
        if value in self.values or value in self.public or _ALIAS.fullmatch(value):
            return
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.values[value] = f"[{kind.upper()}_{self.counts[kind]}]"

    def _pattern(self) -> re.Pattern[str] | None:
        if not self.values:
            return None
        if self._compiled is None or self._compiled[0] != len(self.values):
            ordered = sorted(self.values, key=len, reverse=True)
            self._compiled = len(self.values), re.compile("|".join(_as_whole_word(value) for value in ordered))
        return self._compiled[1]


def _as_whole_word(value: str) -> str:
    """Pattern that does not match inside a longer word or number."""
    before = r"(?<![A-Za-z0-9])" if value[:1].isascii() and value[:1].isalnum() else ""
    after = r"(?![A-Za-z0-9])" if value[-1:].isascii() and value[-1:].isalnum() else ""
    return before + re.escape(value) + after


_LONG_NUMBER: Callable[[str], list[str]] = re.compile(r"(?<![\dA-Za-z])\d{7,}(?![\dA-Za-z])").findall


def private_in(text: str, known: Sequence[str] = ()) -> str | None:
    """Return the first private value in a text that must contain none, or None.

    Private are values detected by the rules, numbers of seven digits or more, and the `known` values.
    """
    found = find_pii(text)
    if found:
        return found[0].value
    numbers = _LONG_NUMBER(text)
    if numbers:
        return numbers[0]
    return next((value for value in known if value and re.search(_as_whole_word(value), text)), None)
