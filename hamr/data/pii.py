"""Detection of personal data in tickets, and typed aliases that are stable within a ticket. English, Chinese, German
and French.

    key        sk-..., sk_live_..., AKIA..., LTAI..., github_pat_..., glpat-..., hf_..., xoxb-..., blocks of private
               keys, and values after a label (password: ..., PIN 4821, 密钥：...)
    email      mia@example.com, jörg@müller.de, 张伟@例子.中国
    domain     shop.example.com, https://...
    network    IPv4, IPv6 and MAC addresses
    iban       DE89 3704 0044 0532 0130 00, if its check digits are right
    card       4111 1111 1111 1111, 6222..., if the check digit is right
    identity   US social security, Chinese, German and French numbers by check digits; British national insurance
               numbers; passports, identity cards and licences after a label
    birthdate  a date after a label (born on, geboren am, née le, 生日) or before one (出生)
    account    after a label (UID: 48213377, Bestellnummer A-3348, commande n° 3348, 快递单号 SF1002003004)
    phone      +49 151 23456789, (977) 625-2661, 06 12 34 56 78, 13812345678, and numbers after a word such as "call"
    address    975 Sunset Drive Suite 217; Lindenweg 12, 10115 Berlin; 12 rue de la Paix; 浙江省杭州市西湖区文三路90号
    number     any other number of seven digits or more that is no amount and no date
    signature  【某某科技】 of a text message, and values after a label (signature: "Acme", 签名：某某)
    name       names of persons, only with a finder (`hamr.data.names`)

Rule-based: the result is deterministic, and no data leave the machine. Names of persons and free descriptions of places
are not detected by rules, because rules cannot distinguish them from other words.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from hamr.data.identifiers import checked_numbers, phone_numbers
from hamr.data.names import NameFinder

PrivateKind = Literal[
    "key", "email", "domain", "network", "iban", "card", "identity", "birthdate", "account", "phone", "address",
    "number", "signature", "name",
]  # fmt: skip
KINDS: tuple[PrivateKind, ...] = get_args(PrivateKind)
TextSpan = tuple[int, int]

_I = re.IGNORECASE
_SPACED = "A-Za-z\u00c0-\u1fff"
"""Letters and marks of the scripts that put spaces between words."""
_LABEL = rf"[{_SPACED}0-9-]{{1,63}}"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,4}}\.(?:xn--[a-z0-9-]{{2,59}}|[{_SPACED}]{{2,24}})"
_ANY_HOST = r"[\w-]{1,63}(?:\.[\w-]{1,63}){0,4}\.[^\W\d_]{2,24}"
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
_TOWN = r"(?:,? \d{5} [A-ZÄÖÜÉÈ][\wäöüßéèêâîôç-]+)?"
_MONTH = (
    r"(?:jan(?:uary|uar|vier)?|feb(?:ruary|ruar)?|f[ée]vr(?:ier)?|mar(?:ch|s)?|märz|apr(?:il)?|avril|ma[yi]|june?|juni?|juin|"
    r"jul[yi]?|juil(?:let)?|aug(?:ust)?|ao[uû]t|sept?(?:ember|embre)?|o[ck]t(?:ober|obre)?|nov(?:ember|embre)?|"
    r"de[cz](?:ember)?|d[ée]c(?:embre)?)\.?"
)
_YEAR = r"(?:19|20)\d{2}"
_DATE = (
    rf"(?:{_YEAR}[-./]\d{{1,2}}[-./]\d{{1,2}}|\d{{1,2}}[-./] ?\d{{1,2}}[-./] ?(?:{_YEAR}|\d{{2}})"
    rf"|\d{{1,2}}(?:st|nd|rd|th|er|\.)? (?:of )?{_MONTH},? {_YEAR}|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? {_YEAR}"
    rf"|{_YEAR} ?年 ?\d{{1,2}} ?月 ?\d{{1,2}} ?[日号]?|{_YEAR}(?:0\d|1[0-2])[0-3]\d)(?![\d])"
)
_LINK = (
    r"[\s:：,，=#°.?？(\"'“-]{0,4}(?:(?:(?:is|was|on|the|it|it's|of|my|please|here|number|no\.?|nr\.?|ist|war|am|der|die|den"
    r"|lautet|und|bitte|est|le|la|c'est|n°|num[ée]ro|merci|s'il vous plaît)(?![A-Za-z])|是|为|在|于|号码?)"
    r"[\s:：,，=#°.?？(\"'“-]{0,4}){0,4}"
)
"""Words between a label and its value. A question's label is followed by the answer on the next line."""
_CODE = r"(?P<value>(?=[\w-]*\d)[A-Za-z0-9](?a:[\w-]{3,})(?: \d{4}(?!\d)){0,4})"
_LONG_CODE = r"(?P<value>(?:\d?[A-Z]{1,4}-?)?\d{5,}[A-Z0-9-]*|[A-Z0-9]{1,8}-(?=[A-Z-]*\d)[A-Z0-9-]{3,})(?![\w.,]*\d)"
_UNIT = (
    r"(?:[€$£¥￥%]|(?:eur|usd|gbp|cny|rmb|euros?|dollars?|pounds?|yuan|[gmkt]b|[gmk]bit|[gmk]bps|kg|km|cm|mm|mah|kwh|lbs?|units?|pieces?|"
    r"items?|points?|miles?|meilen|steps|users?|stück|punkte|pièces|points|元|块|万|人民币|积分|件|个|台|份|公里|步|毫安)"
    r"(?![A-Za-z]))"
)

# The group `value`, if present, is the private part. The text before it is only the label.
_CLEAR: Sequence[tuple[PrivateKind, re.Pattern[str]]] = (
    ("key", re.compile(  # without another BEGIN inside, so that texts of many take linear time
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:(?!-----BEGIN)[\s\S])*?"
        r"-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?")),
    ("key", re.compile(_NO_WORD
        + r"(?:sk-[\w-]{12,}|(?:AKIA|ASIA|LTAI)[A-Za-z0-9]{10,}|gh[pousr]_\w{20,}|eyJ[\w-]{10,}\.[\w.-]{10,}"
        r"|[spr]k_(?:live|test)_\w{10,}|github_pat_\w{20,}|glpat-[\w-]{20,}|hf_[A-Za-z0-9]{30,}|xox[abeprs]-[\w-]{10,})")),
    ("key", re.compile(
        r"(?:pass(?:word|code|wd|wort)|kennwort|mot de passe|api[ _-]?key|access[ _-]?key(?:[ _-]?(?:id|secret))?"
        r"|secret(?:[ _-]?key)?|token|密码|口令|密钥|秘钥|令牌|验证码)" + _LINK
        + r"(?P<value>(?=[^\s,，。;；]*\d)[A-Za-z0-9_\-+/=.!@$%^&*]{4,})", _I)),
    ("key", re.compile(
        r"\b(?:pin(?: code)?|cvv|cvc|tan|verification code|security code|code de (?:sécurité|vérification)"
        r"|sicherheitscode|bestätigungscode)" + _LINK + r"(?P<value>\d{3,8})(?!\w)", _I)),
    ("key", re.compile(  # starts only at the start of a run of +/ and letters, so that long runs take linear time
        r"(?:(?<![A-Za-z0-9_+/])|(?<=_)[A-Za-z0-9]*[+/])"
        r"(?P<value>(?=[A-Za-z0-9+/]*[a-z])(?=[A-Za-z0-9+/]*[A-Z])(?=(?:[A-Za-z+/]*\d){4})[A-Za-z0-9+/]{28,}={0,2})")),
    ("key", re.compile(_NO_WORD + r"(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{32,}(?![A-Za-z0-9])")),
    ("email", re.compile(rf"[{_SPACED}0-9._%+-]{{1,64}}@{_HOST}")),
    ("email", re.compile(rf"[\w.%+-]{{1,64}}@(?:{_HOST}|{_ANY_HOST})")),  # Chinese: with the words before and after it
    ("domain", re.compile(r"https?://[^\s<>\"'，。；、）)】]+", _I)),
    ("domain", re.compile(
        r"(?<![\w@.-])(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,5}(?:" + _TOP + r")(?![\w-]|\.\w)", _I)),
    ("network", re.compile(
        r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.]*\d)", re.ASCII)),
    ("network", re.compile(
        r"(?<![\w:.-])(?:[0-9A-F]{2}(?:[:-][0-9A-F]{2}){5}|[0-9A-F]{4}\.[0-9A-F]{4}\.[0-9A-F]{4})(?![\w:-])",
        _I | re.ASCII)),
)  # fmt: skip
_LABELLED: Sequence[tuple[PrivateKind, re.Pattern[str]]] = (
    ("identity", re.compile(
        r"(?<!\d)[1-9]\d{5}(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\d{3}[\dXx](?![\dA-Za-z])")),
    ("identity", re.compile(
        _NO_WORD + r"[A-CEGHJ-PR-TW-Z]{2} ?\d{2} ?\d{2} ?\d{2} ?[A-D](?![A-Za-z0-9])")),
    ("identity", re.compile(
        r"(?:passport|social security|\bssn|national insurance|driver'?s? licen[cs]e|driving licen[cs]e|identity card"
        r"|\bid card"
        r"|national id|tax(?:payer)? id|\btin|reisepass|personalausweis|ausweis|führerschein|steuer-?id"
        r"|sozialversicherung|rentenversicherung|krankenversicherung|passeport|carte d['’]identité|permis de conduire"
        r"|sécurité sociale"
        r"|护照|驾驶证|驾照|身份证|社保卡?|港澳通行证)(?:s?-?(?:nummer|nr\.?|identifikationsnummer))?"
        r"(?: (?:numéro|number|card))?" + _LINK
        + r"(?P<value>(?=(?:[A-Z]*[ -]?\d){3})[A-Z0-9]{1,12}(?:[ -]?[A-Z0-9]*\d[A-Z0-9]*){0,5})(?![A-Za-z0-9])", _I)),
    ("birthdate", re.compile(
        r"(?:\bborn(?: on)?|date of birth|birth ?date|birthday|\bd\.?o\.?b\b\.?|geboren(?: wurde ich)?|\bgeb\."
        r"|geburtsdatum|geburtstag|\bn[ée]e?(?= le)|date de naissance|anniversaire|出生(?:日期|年月日?)?|生日)" + _LINK
        + rf"(?P<value>{_DATE})", _I)),
    ("birthdate", re.compile(rf"(?P<value>(?<!\d){_DATE})(?= ?(?:出生|生人|geboren))", _I)),
)  # fmt: skip
_ACCOUNTS: Sequence[tuple[PrivateKind, re.Pattern[str]]] = (
    ("account", re.compile(
        r"\b(?:uid|username|account|(?:user|account|customer|member(?:ship)?|order|parcel|package|shipment|tracking|reservation|booking"
        r"|confirmation|invoice|contract|policy|card|client|ticket|case|reference|serial|loyalty|claim|delivery)"
        r"[ _-]?(?:id|no\.?|number|name|code|ref(?:erence)?))" + _LINK + _CODE, _I)),
    ("account", re.compile(
        r"(?:bestell|auftrags|kunden|konto|rechnungs|sendungs|paket|vertrags|buchungs|ticket|vorgangs|mitglieds|versicherungs|referenz"
        r"|liefer|zähler|sendungsverfolgungs)-?(?:nummer|nr\.?|code|id)\b" + _LINK + _CODE, _I)),
    ("account", re.compile(
        r"(?:num[ée]ro|n°|(?<!error )(?<!discount )(?<!promo )code|r[ée]f[ée]rence|identifiant)"
        r"(?: (?:de|du|la|ma|mon|votre|suivi)| d['’])* ?(?:commande|colis|suivi|client|compte|facture|contrat"
        r"|r[ée]servation|dossier|abonn[ée]|exp[ée]dition|adh[ée]rent)?" + _LINK + _CODE, _I)),
    ("account", re.compile(
        r"(?:账号|帐号|账户|帐户|用户名|用户号|会员号|订单号?|订单编号|工单号|合同号|卡号|身份证号?码?|实例"
        r"|(?:快递|运单|物流|包裹|客户|合同|发票|预订|流水|会员|取件|取货|订单|工单|保单)(?:单号|编号|号码?|码))(?:ID|id)?"
        + _LINK + _CODE)),
    ("account", re.compile(
        r"\b(?:order|parcel|package|shipment|tracking|reservation|booking|confirmation|invoice|contract|ticket|case|bestellung|auftrag"
        r"|sendung|paket|rechnung|buchung|vertrag|commande|colis|facture|r[ée]servation|dossier|contrat|compte|konto|client|kunde)\s"
        r"?(?:mit der nummer |nummer |nr\.? ?|n° ?|no\.? ?|num[ée]ro |number )?[#:(]?\s?(?-i:" + _LONG_CODE + ")", _I)),
    ("account", re.compile(r"(?:\border|\bcase|\bticket|bestellung|commande|订单) ?#\s?" + _CODE, _I)),
    ("account", re.compile(_NO_WORD + r"(?:1Z[0-9A-Z]{16}|[A-Z]{2}\d{9}[A-Z]{2})(?![A-Za-z0-9])")),
)  # fmt: skip
_NOT_PRIVATE: Sequence[re.Pattern[str]] = (
    re.compile(rf"(?<![\w])(?<!\d[-./]){_DATE}(?![-./]?\d)", _I),
    re.compile(r"(?:[€$£¥￥]|\b(?:eur|usd|gbp|cny|rmb|chf))\s?\d{1,12}(?:[.,']\d{3})*(?:[.,]\d{1,2})?", _I),
    re.compile(rf"(?<![\w.,])\d{{1,3}}(?:[ .,'’]\d{{3}}){{1,4}}(?:[.,]\d{{1,2}})?\s?{_UNIT}", _I),
    re.compile(rf"(?<![\w.,])\d{{1,12}}(?:[.,]\d{{1,4}})?\s?{_UNIT}", _I),
    re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3}){2,4}(?![\d,])"),
    re.compile(rf"(?<!\d){_YEAR}(?:[ /–-]+{_YEAR}){{1,4}}(?![\d-])"),
    re.compile(r"(?<![\d:])\d{1,2}:\d{2}(?::\d{2})?(?![\d:])"),
    re.compile(
        r"(?:\b(?:version|build|firmware|release|v)[ .:]{0,2}\d{1,4}(?:\.\d{1,6}){2,4}"
        r"|(?<![\w.+(-])[1-9]\d{0,2}\.\d(?:\.\d{1,6}){2})(?![.-]?\d|\w)", _I),
)  # fmt: skip
"""Dates, amounts, times and versions, which the patterns after this one must not take for numbers of something."""
_LAST: Sequence[tuple[PrivateKind, re.Pattern[str]]] = (
    ("phone", re.compile(r"(?<![\dA-Za-z])(?:\+?86[- ]?)?1[3-9]\d[- ]?\d{4}[- ]?\d{4}(?!\d)")),
    ("phone", re.compile(r"(?<![\w.])(?:\+1[- .]?)?(?:\(\d{3}\)\s?|\d{3}[-. ])\d{3}[-. ]\d{4}(?!\d)")),
    ("phone", re.compile(r"(?<!\d)0\d{2,3}-\d{7,8}(?!\d)")),
    ("phone", re.compile(
        r"(?:phone(?: number)?|mobile(?: number)?|cell|tel(?:ephone)?|电话|手机(?:号码?)?)" + _SEP
        + r"(?P<value>\+?\d[\d -]{5,14}\d)", _I)),
    ("address", re.compile(
        r"(?<![\w.])\d{1,6}[A-Za-z]?(?: " + _NO_STREET + r"[A-Za-z0-9'’-]+){1,3}? (?:" + _STREET + r")" + _FLAT, _I)),
    ("address", re.compile(
        r"(?<![\w.])\d{1,6}[A-Za-z]?(?: [A-Z][A-Za-z'’-]+){1,3}? (?:" + _STREET_TOO + r")" + _FLAT)),
    ("address", re.compile(
        r"(?<!\w)(?:[A-ZÄÖÜ][\wäöüß-]{1,40}(?:stra(?:ß|ss)e|str\.|weg|platz|allee|gasse|ring|damm|ufer)"
        r"|(?:[A-ZÄÖÜ][\wäöüß-]{1,40}[ -]){1,3}(?:Stra(?:ß|ss)e|Str\.|Weg|Platz|Allee|Gasse|Ring|Damm|Ufer))"
        r" \d{1,4}(?: ?[a-h](?!\w))?" + _TOWN)),
    ("address", re.compile(
        r"(?<![\w.])\d{1,4}(?: ?(?:bis|ter))?,? (?:rue|avenue|boulevard|place|chemin|impasse|allée|quai|cours|route)"
        r"(?: (?:de|du|des|la|le|les)| d['’]| l['’])*(?: ?[A-ZÉÈÀ][\wéèêàâîôûç'’-]+){1,4}" + _TOWN)),
    ("address", re.compile(
        r"(?:[\u4e00-\u9fff]{0,6}[到在往于址是为][:：]?)?(?P<value>(?:[\u4e00-\u9fff]{2,8}(?:省|自治区))?(?:[\u4e00-\u9fff]{2,7}市)?(?:[\u4e00-\u9fff]{1,7}[区县])?"
        r"[\u4e00-\u9fffA-Za-z0-9]{1,12}(?:路|街道?|大道|巷|弄|胡同)\s?\d{1,5}\s?(?:号|弄)"
        r"(?:[\u4e00-\u9fffA-Za-z0-9]{0,12}(?:室|楼|层|座|栋|幢|单元))?)")),
    ("number", re.compile(r"(?<![A-Za-z0-9])(?:\d?[A-Z]{1,4}-?)?\d{7,}[A-Z]{0,2}(?![A-Za-z0-9])")),
    ("number", re.compile(r"(?<![A-Za-z0-9.,])\d{2,6}(?:[ -]\d{2,6}){2,6}(?![A-Za-z0-9]|[.,]\d)")),
)  # fmt: skip
_SIGNATURES: Sequence[tuple[PrivateKind, re.Pattern[str]]] = (
    ("signature", re.compile(r"【(?P<value>[^【】\s]{2,20})】")),
    ("signature", re.compile(
        r"(?:signature|签名(?:名称)?)" + _SEP.replace("[:：=#]?", "[:：=]")
        + r"(?P<value>[^\s\"'”’」,，。;；]{2,30})", _I)),
)  # fmt: skip
_GROUPED_FROM = 9
"""Fewest digits of a number in groups: fewer may be sizes or a range."""

_LOGIN = r"user_?name|account_?name|用户名"
"""Fields of an account whose values have no form, like the name of a person."""
_BY_NAME: Sequence[tuple[PrivateKind, re.Pattern[str]]] = (
    ("birthdate", re.compile(r"birth|(?:^|_)dob$|geburt|naissance|出生|生日", _I)),
    ("iban", re.compile(r"(?:^|_)iban", _I)),
    ("identity", re.compile(
        r"passport|(?:^|_)ssn|social_?security|national_?id|licen[cs]e_?(?:no|number)|护照|身份证", _I)),
    ("network", re.compile(r"(?:^|_)(?:ip|mac)(?:$|_?addr)", _I)),
    ("email", re.compile(r"e?[-_]?mail|邮箱|邮件地址", _I)),
    ("phone", re.compile(r"phone|mobile|(?:^|_)tel(?:$|_)|电话|手机", _I)),
    ("key", re.compile(r"pass(?:word|code|wd)|secret|(?:api|access)[ _-]?key|token|密码|密钥|秘钥", _I)),
    ("address", re.compile(r"(?:^|[^a-z])address|street|地址|住址", _I)),
    ("domain", re.compile(r"domain|(?:^|_)url$|website|域名|网址", _I)),
    ("signature", re.compile(r"signature|sign_?name|签名", _I)),
    ("account", re.compile(
        r"(?:^|_)uid$|" + _LOGIN +
        r"|(?:user|account|customer|member|order|reservation|contract|card|client|tracking|parcel)"
        r"[ _-]?(?:id|no|number)$|账号|帐号|账户|订单号|卡号|运单号|快递单号", _I)),
)  # fmt: skip
_FORMS: Mapping[PrivateKind, re.Pattern[str]] = {
    **dict.fromkeys(("phone", "account", "iban", "identity", "birthdate"), re.compile(r"\d")),
    "network": re.compile(r"[\d:]"),
    "email": re.compile(r"[@＠]"),
    "domain": re.compile(r"\.|://"),
}
"""Characters that a value of the kind must contain, unlike a word such as "unknown". Other kinds have no form."""
_ABOUT = re.compile(r"(?:type|kind|status|count|verified|enabled|format|length)$", _I)
_ALIAS = re.compile(r"\[(?:" + "|".join(kind.upper() for kind in KINDS) + r")_\d+\]")


@dataclass(frozen=True, kw_only=True)
class Found:
    """One private value: text[start:end]."""

    kind: PrivateKind
    start: int
    end: int
    value: str


def find_pii(text: str) -> tuple[Found, ...]:
    """Return the private values in order of position.

    If two overlap, the earlier rule wins: an e-mail address is not also a domain. Aliases are not matched.

    >>> [(f.kind, f.value) for f in find_pii("Mail mia@example.com, UID: 48213377")]
    [('email', 'mia@example.com'), ('account', '48213377')]
    """
    plain = text.translate(_PLAIN)
    taken = [m.span() for m in _ALIAS.finditer(plain)]
    found = []
    for kind, start, end in _candidates(plain, taken):
        value = text[start:end].rstrip(".!?-, ")
        end = start + len(value)
        if value and all(end <= a or start >= b for a, b in taken):
            taken.append((start, end))
            found.append(Found(kind=kind, start=start, end=end, value=value))
    return tuple(sorted(found, key=lambda f: f.start))


_PLAIN = str.maketrans("０１２３４５６７８９＋－\u00a0\u2007\u202f\u2010\u2011\u2012\u2013", "0123456789+-   ----")
"""Wide digits and typographic spaces and hyphens, one character for one."""


def _candidates(text: str, taken: list[TextSpan]) -> Iterator[tuple[PrivateKind, int, int]]:
    """Yield (kind, start, end) in the order of the rules. Adds dates and amounts that are not private to `taken`."""
    yield from _matches(_CLEAR, text)
    if any(character.isdigit() for character in text):
        yield from _addresses_v6(text)
        yield from cast("Iterator[tuple[PrivateKind, int, int]]", checked_numbers(text))
        yield from _matches(_LABELLED, text)
        taken.extend(span for pattern in _NOT_PRIVATE for span in (m.span() for m in pattern.finditer(text)))
        yield from _matches(_ACCOUNTS, text)
        yield from cast("Iterator[tuple[PrivateKind, int, int]]", phone_numbers(text))
        for kind, start, end in _matches(_LAST, text):
            grouped = kind == "number" and not re.search(r"\d{7}", text[start:end])
            if not grouped or sum(c.isdigit() for c in text[start:end]) >= _GROUPED_FROM:
                yield kind, start, end
    yield from _matches(_SIGNATURES, text)


def _matches(
    patterns: Iterable[tuple[PrivateKind, re.Pattern[str]]], text: str
) -> Iterator[tuple[PrivateKind, int, int]]:
    for kind, pattern in patterns:
        for match in pattern.finditer(text):
            yield kind, *match.span("value" if "value" in pattern.groupindex else 0)


def _addresses_v6(text: str) -> Iterator[tuple[PrivateKind, int, int]]:
    for match in _V6.finditer(text):
        try:
            ipaddress.IPv6Address(match.group())
        except ValueError:
            continue
        yield "network", *match.span()


_V6 = re.compile(r"(?<![\w:.])(?=[0-9A-F:]*\d)(?:[0-9A-F]{0,4}:){2,7}[0-9A-F]{0,4}(?![\w:])", _I | re.ASCII)


def kind_by_name(name: str) -> PrivateKind | None:
    """Return the kind of value that the name of a field indicates, or None: `phone_type` holds no phone."""
    if _ABOUT.search(name):
        return None
    return next((kind for kind, pattern in _BY_NAME if pattern.search(name)), None)


def _has_form(kind: PrivateKind, name: str, text: str) -> bool:
    form = _FORMS.get(kind)
    return form is None or form.search(text) is not None or re.search(_LOGIN, name, _I) is not None


def _as_integer(value: Any) -> Any:
    """Return a whole float as an integer: tables store numbers such as 48213377.0. Other values are unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


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
    names: NameFinder | None = None
    """Finds names of persons; None leaves them."""
    counts: dict[PrivateKind, int] = field(default_factory=dict)
    _compiled: tuple[int, re.Pattern[str]] | None = None

    def learn(self, text: str) -> None:
        for found in find_pii(text):
            self._alias(found.kind, found.value)
        for name in self.names(text) if self.names is not None else ():
            if len(name) > 1 and not _ALIAS.search(name):
                self._alias("name", name)

    def learn_value(self, name: str, value: Any) -> None:
        """Learn the values of a field, whose name may indicate its kind. Recurses into lists and objects."""
        value = _as_integer(value)
        if isinstance(value, Mapping):
            for key, inner in value.items():
                self.learn_value(str(key), inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                self.learn_value(name, inner)
        elif isinstance(value, str | int) and not isinstance(value, bool):
            text = str(value).strip()
            kind = kind_by_name(name)
            if kind is not None and len(text) >= 4 and _has_form(kind, name, text):
                self._alias(kind, text)
            else:
                self.learn(text)

    def hide(self, text: str) -> str:
        """Return the text with every known value replaced, longer values first, so that none is split.

        JSON stays JSON: the alias of a number becomes a string.
        """
        pattern = self._pattern()
        hidden = pattern.sub(lambda match: self.values[match.group()], text) if pattern is not None else text
        if hidden != text and _is_json(text):
            return _STRING_OR_ALIAS.sub(lambda match: match[1] or f'"{match[0]}"', hidden)
        return hidden

    def hide_value(self, value: Any) -> Any:
        """Apply `hide` recursively to lists and objects. A number that is a known value becomes its alias."""
        if isinstance(value, Mapping):
            return {key: self.hide_value(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_value(inner) for inner in value]
        number = _as_integer(value)
        if isinstance(number, int) and not isinstance(number, bool):
            return self.values.get(str(number), value)
        return self.hide(value) if isinstance(value, str) else value

    def named_in(self, value: Any) -> dict[str, str]:
        """Return {alias: real value} of the aliases in `value`."""
        shown = str(value)
        return {alias: real for real, alias in self.values.items() if alias in shown}

    def _alias(self, kind: PrivateKind, value: str) -> None:
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


_STRING_OR_ALIAS = re.compile(rf'("(?:[^"\\]|\\.)*")|[\d.eE+-]*{_ALIAS.pattern}[\d.eE+-]*')


def _is_json(text: str) -> bool:
    """Return True for a text that is a JSON object or list."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _as_whole_word(value: str) -> str:
    """Pattern that does not match inside a longer word or number."""
    before = r"(?<![A-Za-z0-9])" if value[:1].isascii() and value[:1].isalnum() else ""
    after = r"(?![A-Za-z0-9])" if value[-1:].isascii() and value[-1:].isalnum() else ""
    return before + re.escape(value) + after


def private_in(text: str, known: Sequence[str] = ()) -> str | None:
    """Return the first private value in a text that must contain none, or None.

    Private are values detected by the rules and the `known` values.
    """
    found = find_pii(text)
    if found:
        return found[0].value
    return next((value for value in known if value and re.search(_as_whole_word(value), text)), None)
