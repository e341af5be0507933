"""Numbers that identify a person, an account or a device, by their check digits (python-stdnum) and numbering plans
(phonenumbers).

Both libraries are imported at the first text that contains such a number, so that commands start without them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_GROUP = re.compile(r"\d+")
_CHAIN = re.compile(r"(?<![A-Za-z0-9_])(?:\+ ?)?\(?\d+(?:(?: ?[-./()]{1,2} ?| )\d+)*(?![A-Za-z0-9_])")
"""Groups of digits, written as one number or as several in a row."""
_MAX_GROUPS = 10
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{1,30}){1,9}", re.IGNORECASE)
_CARD = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3[068]\d{12}|35\d{14,17}|6\d{15,18}|9\d{15,18}"
)
_TRUNK = ("GB", "DE", "FR", "CN", "IT", "NL", "BE", "CH", "AT", "JP", "AU", "KR", "IN", "TR", "SE")
"""Countries whose national numbers start with 0."""
_ANY = ("US", "GB", "DE", "FR", "CN", "ES", "HK", "SG", "TW", "BR", "MX", "PL", *_TRUNK)
_PHONE_LABEL = re.compile(
    r"(?:phone|mobile|cell|\btel\b|telephone|fax|whatsapp|\bcall|\bring|\btext me|reach me|\bdial|handy|telefon|"
    r"rufnummer|anruf|ruf|erreich|t[ée]l[ée]phone|\bt[ée]l|portable|appel|joign|joindre|电话|手机|致电|拨打|打给|座机|微信|联系|号码)"
    r"[^\d\n]{0,30}\n?[^\d\n]{0,12}$",
    re.IGNORECASE,
)


def checked_numbers(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, start, end) of the numbers with valid check digits: iban, card, identity."""
    for match in _IBAN.finditer(text):
        ends = [i for i in range(match.start() + 15, match.end() + 1) if _is_end(text, i)]
        for end in reversed(ends):
            if _is_iban(text[match.start() : end]):
                yield "iban", match.start(), end
                break
    for start, end, digits in _windows(text, 9, 19):
        kind = _checked_kind(text[start:end], digits)
        if kind is not None:
            yield kind, start, end


def phone_numbers(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield ("phone", start, end) of the numbers that a numbering plan admits.

    A number without a country code needs a word such as "call" before it, or the form of a national number: a leading
    0, the groups of an American number, the start of a Chinese mobile number.
    """
    for start, end, digits in _windows(text, 7, 15):
        if _is_phone(text, start, end, digits):
            while (start and text[start - 1] in "+(") or text[start - 2 : start] in ("+ ", "+("):
                start -= 1
            yield "phone", start, end


def _is_end(text: str, i: int) -> bool:
    return text[i - 1].isalnum() and not (i < len(text) and text[i].isascii() and text[i].isalnum())


def _windows(text: str, fewest: int, most: int) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, digits) of runs of neighbouring groups, from each group on the longest first."""
    for chain in _CHAIN.finditer(text):
        groups = [match.span() for match in _GROUP.finditer(text, *chain.span())]
        for i in range(len(groups)):
            ends, length, single = [], 0, 0
            for start, end in groups[i : i + _MAX_GROUPS]:
                length, single = length + end - start, single + (end - start == 1)
                if length > most or single > 1:  # a list of digits is not a number
                    break
                if length >= fewest:
                    ends.append(end)
            for end in reversed(ends):
                yield groups[i][0], end, "".join(_GROUP.findall(text, groups[i][0], end))


def _is_iban(value: str) -> bool:
    from stdnum import iban

    return iban.is_valid(value, check_country=False)


def _checked_kind(raw: str, digits: str) -> str | None:
    from stdnum import luhn
    from stdnum.cn import ric
    from stdnum.de import idnr
    from stdnum.fr import nir
    from stdnum.us import ssn

    if _CARD.fullmatch(digits) and luhn.is_valid(digits):
        return "card"
    if (len(digits) == 18 and ric.is_valid(digits)) or (len(digits) == 15 and nir.is_valid(digits)):
        return "identity"
    if len(digits) == 11 and digits[0] != "0" and not _is_chinese_mobile(digits) and idnr.is_valid(digits):
        return "identity"
    if re.fullmatch(r"\d{3}[- ]\d{2}[- ]\d{4}", raw) and ssn.is_valid(digits):
        return "identity"
    return None


def _is_chinese_mobile(digits: str) -> bool:
    return len(digits) == 11 and digits[0] == "1" and digits[1] in "3456789"


def _is_phone(text: str, start: int, end: int, digits: str) -> bool:
    before = text[max(0, start - 3) : start]
    if before.rstrip(" (").endswith("+"):
        return _is_valid(f"+{digits}", ("ZZ",), strict=False)
    if digits.startswith("00"):
        return _is_valid(f"+{digits[2:]}", ("ZZ",), strict=False)
    sizes = [len(group) for group in _GROUP.findall(text[start:end])]
    if digits.startswith("0"):
        return _is_valid(digits, _TRUNK)
    if sizes in ([3, 3, 4], [1, 3, 3, 4]):
        return _is_valid(digits, ("US",), strict=False)
    if _is_chinese_mobile(digits) and _is_valid(digits, ("CN",)):
        return True
    return _PHONE_LABEL.search(text[max(0, start - 70) : start]) is not None and _is_valid(digits, _ANY, strict=False)


def _is_valid(number: str, regions: tuple[str, ...], *, strict: bool = True) -> bool:
    """Return True if the number is in use in one of the regions, or (not strict) has a possible length there."""
    import phonenumbers

    for region in regions:
        try:
            parsed = phonenumbers.parse(number, region)
        except phonenumbers.NumberParseException:
            continue
        if phonenumbers.is_valid_number(parsed) or (not strict and phonenumbers.is_possible_number(parsed)):
            return True
    return False
