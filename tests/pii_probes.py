"""Sentences of customers with a private value, and ordinary ones without, in four languages. Deterministic.

The values are made here, from the published formats and check-digit rules, not by the detector's libraries: a mistake
of theirs would show.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Language = Literal["en", "zh", "de", "fr"]
LANGUAGES: tuple[Language, ...] = get_args(Language)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A sentence with one private value."""

    kind: str
    language: Language
    text: str
    value: str


# --- values ------------------------------------------------------------------------------------


def _digits(rng: random.Random, count: int) -> str:
    return str(rng.randint(1, 9)) + "".join(str(rng.randint(0, 9)) for _ in range(count - 1))


def _luhn(number: str) -> str:
    total = 0
    for i, digit in enumerate(reversed(number)):
        doubled = int(digit) * (2 if i % 2 == 0 else 1)
        total += doubled - 9 if doubled > 9 else doubled
    return number + str(-total % 10)


def _grouped(number: str, *sizes: int, by: str = " ") -> str:
    parts, at = [], 0
    for size in sizes:
        parts.append(number[at : at + size])
        at += size
    return by.join(parts)


def _card(rng: random.Random, language: Language) -> str:
    prefix, length, sizes = rng.choice(
        [
            ("4", 16, (4, 4, 4, 4)),
            ("53", 16, (4, 4, 4, 4)),
            ("37", 15, (4, 6, 5)),
            ("6011", 16, (4, 4, 4, 4)),
            ("2221", 16, (4, 4, 4, 4)),
        ]
    )
    number = _luhn(prefix + _digits(rng, length - len(prefix) - 1))
    return rng.choice([number, _grouped(number, *sizes), _grouped(number, *sizes, by="-")])


def _bank_card(rng: random.Random, language: Language) -> str:
    number = _luhn("62" + _digits(rng, rng.choice([16, 13])))
    return number if len(number) != 19 else rng.choice([number, _grouped(number, 4, 4, 4, 4, 3)])


def _iban(rng: random.Random, language: Language) -> str:
    country = rng.choice(
        {"en": ["GB", "IE"], "de": ["DE", "AT", "CH"], "fr": ["FR", "BE"], "zh": ["DE", "GB"]}[language]
    )
    if country in ("GB", "IE"):
        body = rng.choice(["NWBK", "AIBK", "BARC"]) + _digits(rng, 14)
    elif country == "FR":  # bank, branch, account, its own key of the three
        bank, branch, account = _digits(rng, 5), _digits(rng, 5), _digits(rng, 11)
        body = f"{bank}{branch}{account}{97 - (89 * int(bank) + 15 * int(branch) + 3 * int(account)) % 97:02d}"
    elif country == "BE":
        account = _digits(rng, 10)
        body = f"{account}{int(account) % 97 or 97:02d}"
    else:
        body = _digits(rng, {"DE": 18, "AT": 16, "CH": 17}[country])
    number = "".join(str(int(character, 36)) for character in f"{body}{country}00")
    value = f"{country}{98 - int(number) % 97:02d}{body}"
    return value if rng.random() < 0.4 else " ".join(value[i : i + 4] for i in range(0, len(value), 4))


def _ssn(rng: random.Random, language: Language) -> str:
    return f"{rng.randint(100, 665)}-{rng.randint(10, 99)}-{rng.randint(1000, 9999)}"


def _chinese_id(rng: random.Random, language: Language) -> str:
    area = rng.choice(["110105", "310101", "440305", "330106", "510104"])
    body = f"{area}{rng.randint(1950, 2005)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}{rng.randint(1, 999):03d}"
    weights = [7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2]
    return body + "10X98765432"[sum(w * int(d) for w, d in zip(weights, body, strict=True)) % 11]


def _french_id(rng: random.Random, language: Language) -> str:
    body = f"{rng.randint(1, 2)}{rng.randint(50, 99)}{rng.randint(1, 12):02d}{rng.randint(1, 19):02d}"
    body += f"{rng.randint(1, 900):03d}{rng.randint(1, 900):03d}"
    number = f"{body}{97 - int(body) % 97:02d}"
    return rng.choice([number, _grouped(number, 1, 2, 2, 2, 3, 3, 2)])


def _german_id(rng: random.Random, language: Language) -> str:
    digits = [str(d) for d in rng.sample(range(1, 10), 9)]
    body = "".join(digits) + digits[rng.randint(0, 7)]
    product = 10
    for digit in body:
        total = (int(digit) + product) % 10 or 10
        product = total * 2 % 11
    number = f"{body}{(11 - product) % 10}"
    return rng.choice([number, _grouped(number, 2, 3, 3, 3)])


def _british_id(rng: random.Random, language: Language) -> str:
    letters, number = rng.choice(["AB", "JG", "PW", "SE"]), _digits(rng, 6)
    return rng.choice([f"{letters}{number}C", f"{letters} {_grouped(number, 2, 2, 2)} A"])


def _phone(rng: random.Random, language: Language) -> str:
    d = lambda count: _digits(rng, count)  # noqa: E731
    made: Mapping[Language, list[Callable[[], str]]] = {
        "en": [
            lambda: f"({rng.randint(212, 219)}) {rng.randint(220, 990)}-{d(4)}",
            lambda: f"{rng.choice([415, 646, 503])}-{rng.randint(220, 990)}-{d(4)}",
            lambda: f"{rng.choice([415, 646, 503])}.{rng.randint(220, 990)}.{d(4)}",
            lambda: f"020 7{d(3)} {d(4)}",
            lambda: f"07{rng.choice(['700', '911', '423'])} {d(6)}",
            lambda: f"+1 {rng.choice([415, 646, 503])} {rng.randint(220, 990)} {d(4)}",
        ],
        "de": [
            lambda: f"0151 {d(8)}",
            lambda: f"030 {d(7)}",
            lambda: f"089/{d(6)}",
            lambda: f"0171-{d(7)}",
            lambda: f"+49 (0)171 {d(7)}",
            lambda: f"0049 30 {d(8)}",
        ],
        "fr": [
            lambda: f"06 {' '.join(f'{rng.randint(10, 99)}' for _ in range(4))}",
            lambda: f"01.{'.'.join(f'{rng.randint(40, 49)}' for _ in range(4))}",
            lambda: f"+33 6 {' '.join(f'{rng.randint(10, 99)}' for _ in range(4))}",
            lambda: f"06{d(8)}",
        ],
        "zh": [
            lambda: f"13{d(9)}",
            lambda: f"186 {d(4)} {d(4)}",
            lambda: f"+86 139-{d(4)}-{d(4)}",
            lambda: f"010-6{d(7)}",
            lambda: f"0571 8{d(7)}",
        ],
    }
    return rng.choice(made[language])()


def _foreign_phone(rng: random.Random, language: Language) -> str:
    d = lambda count: _digits(rng, count)  # noqa: E731
    return rng.choice(
        [
            lambda: f"+81 90 {d(4)} {d(4)}",
            lambda: f"+55 11 9{d(4)}-{d(4)}",
            lambda: f"+91 98{d(3)} {d(5)}",
            lambda: f"+61 4{d(2)} {d(3)} {d(3)}",
            lambda: f"+34 6{d(2)} {d(3)} {d(3)}",
            lambda: f"+39 34{d(1)} {d(7)}",
            lambda: f"+852 6{d(3)} {d(4)}",
            lambda: f"+41 79 {d(3)} {rng.randint(10, 99)} {rng.randint(10, 99)}",
        ]
    )()


_MONTHS: Mapping[Language, list[str]] = {
    "en": ["January", "March", "May", "August", "October", "December"],
    "de": ["Januar", "März", "Mai", "August", "Oktober", "Dezember"],
    "fr": ["janvier", "mars", "mai", "août", "octobre", "décembre"],
    "zh": [],
}


def _birthdate(rng: random.Random, language: Language) -> str:
    year, month, day = rng.randint(1940, 2006), rng.randint(1, 12), rng.randint(1, 28)
    if language == "zh":
        return rng.choice([f"{year}年{month}月{day}日", f"{year}-{month:02d}-{day:02d}", f"{year}{month:02d}{day:02d}"])
    name = rng.choice(_MONTHS[language])
    return rng.choice(
        {
            "en": [
                f"{month:02d}/{day:02d}/{year}",
                f"{name} {day}, {year}",
                f"{day} {name} {year}",
                f"{year}-{month:02d}-{day:02d}",
            ],
            "de": [f"{day:02d}.{month:02d}.{year}", f"{day}. {name} {year}", f"{day}.{month}.{year % 100:02d}"],
            "fr": [f"{day:02d}/{month:02d}/{year}", f"{day} {name} {year}"],
        }[language]
    )


def _passport(rng: random.Random, language: Language) -> str:
    return {
        "en": rng.choice([_digits(rng, 9), f"A{_digits(rng, 8)}"]),
        "de": f"C{rng.randint(0, 9)}{rng.choice('FGHJ')}X{_digits(rng, 5)}",
        "fr": f"{_digits(rng, 2)}AB{_digits(rng, 5)}",
        "zh": rng.choice([f"E{_digits(rng, 8)}", f"EA{_digits(rng, 7)}"]),
    }[language]


def _licence(rng: random.Random, language: Language) -> str:
    return {
        "en": rng.choice([f"D{_digits(rng, 7)}", f"{_digits(rng, 3)} {_digits(rng, 3)} {_digits(rng, 3)}"]),
        "de": f"B{_digits(rng, 3)}RRE{_digits(rng, 4)}",
        "fr": _digits(rng, 12),
        "zh": _digits(rng, 12),
    }[language]


def _ip(rng: random.Random, language: Language) -> str:
    return ".".join(str(rng.randint(11, 254)) for _ in range(4))


def _ip6(rng: random.Random, language: Language) -> str:
    groups = [f"{rng.randint(0x1000, 0xFFFF):x}" for _ in range(8)]
    return rng.choice([":".join(groups), f"2001:db8::{groups[0]}:{groups[1]}", f"fe80::{groups[2]}:{groups[3]}"])


def _mac(rng: random.Random, language: Language) -> str:
    return rng.choice(":-").join(f"{rng.randint(0, 255):02X}" for _ in range(6))


def _order(rng: random.Random, language: Language) -> str:
    return rng.choice(
        [
            _digits(rng, 5),
            _digits(rng, 6),
            _digits(rng, 8),
            f"A-{_digits(rng, 5)}",
            f"{_digits(rng, 3)}-{_digits(rng, 7)}",
            f"ORD-2024-{_digits(rng, 4)}",
            f"B{_digits(rng, 6)}",
        ]
    )


def _parcel(rng: random.Random, language: Language) -> str:
    return rng.choice(
        [
            f"1Z{_digits(rng, 3)}AA1{_digits(rng, 10)}",
            f"RR{_digits(rng, 9)}DE",
            f"00340{_digits(rng, 15)}",
            f"SF{_digits(rng, 13)}",
            f"JD{_digits(rng, 14)}",
            f"{_digits(rng, 4)} {_digits(rng, 4)} {_digits(rng, 4)}",
            f"6A{_digits(rng, 11)}",
        ]
    )


def _account(rng: random.Random, language: Language) -> str:
    return rng.choice([_digits(rng, 5), _digits(rng, 8), f"K{_digits(rng, 6)}", f"{_digits(rng, 3)}-{_digits(rng, 3)}"])


def _email(rng: random.Random, language: Language) -> str:
    name = rng.choice(["mia.li", "j.weber", "amelie_roux", "zhangwei", "tom+shop"])
    return (
        f"{name}{rng.randint(1, 99)}@{rng.choice(['example.com', 'mail.example.de', 'exemple.fr', 'example.com.cn'])}"
    )


def _site(rng: random.Random, language: Language) -> str:
    word = rng.choice(["weber-it", "miasbakery", "roux-conseil", "zhangwei"])
    return rng.choice(
        [f"{word}.{rng.choice(['com', 'de', 'fr', 'cn'])}", f"https://{word}.example.com/u/{_digits(rng, 4)}"]
    )


def _address(rng: random.Random, language: Language) -> str:
    number, code = rng.randint(2, 240), _digits(rng, 5)
    return rng.choice(
        {
            "en": [
                f"{number} Maple Street",
                f"{number} Oak Ave, Apt 4B",
                f"{number}B King's Road",
                f"{number} Sunset Court",
            ],
            "de": [
                f"Hauptstraße {number}",
                f"Lindenweg {number}, {code} Berlin",
                f"Goethestr. {number}a",
                f"Am Markt Platz {number}",
            ],
            "fr": [
                f"{number} rue de la Paix",
                f"{number} bis, avenue Victor Hugo, {code} Lyon",
                f"{number} boulevard Voltaire",
            ],
            "zh": [
                f"上海市浦东新区世纪大道{number}号",
                f"北京市朝阳区建国路{number}号5楼",
                f"杭州市西湖区文三路 {number} 号",
            ],
        }[language]
    )


def _password(rng: random.Random, language: Language) -> str:
    return rng.choice([f"Sommer{_digits(rng, 4)}!", f"hunter{_digits(rng, 2)}", f"xK9{_digits(rng, 4)}$pq"])


def _pin(rng: random.Random, language: Language) -> str:
    return _digits(rng, rng.choice([4, 6]))


def _long(rng: random.Random, language: Language) -> str:
    return rng.choice([_digits(rng, rng.randint(7, 20)), f"{_digits(rng, 4)} {_digits(rng, 4)} {_digits(rng, 4)}"])


# --- sentences ---------------------------------------------------------------------------------

Make = Callable[[random.Random, Language], str]
KINDS: Mapping[str, tuple[Make, Mapping[Language, tuple[str, ...]]]] = {
    "card": (
        _card,
        {
            "en": ("Please charge {} instead.", "My card is {}, expiry 12/27.", "I paid with {} yesterday"),
            "de": ("Bitte belasten Sie {}.", "Meine Karte: {}, gültig bis 12/27.", "Ich habe mit {} bezahlt"),
            "fr": ("Débitez plutôt la carte {}.", "Ma carte est {}, expire 12/27.", "J'ai payé avec {} hier"),
            "zh": ("请用{}扣款。", "我的信用卡是{}，有效期12/27", "我刷的是 {} 这张卡"),
        },
    ),
    "bank card": (
        _bank_card,
        {
            "en": ("Refund it to {} please", "My UnionPay card {} was charged twice."),
            "de": ("Bitte auf {} erstatten", "Die Karte {} wurde zweimal belastet."),
            "fr": ("Remboursez sur {} s'il vous plaît", "Ma carte {} a été débitée deux fois."),
            "zh": ("退款到{}就行", "我的银行卡{}被扣了两次", "收款账户 {}，户名本人"),
        },
    ),
    "iban": (
        _iban,
        {
            "en": ("Send the refund to {}.", "My IBAN is {} and I wait since Monday."),
            "de": ("Bitte überweisen Sie auf {}.", "Meine IBAN lautet {}, danke"),
            "fr": ("Virez le remboursement sur {}.", "Mon IBAN est le {}, merci"),
            "zh": ("请退到{}。", "我的IBAN是{}，谢谢"),
        },
    ),
    "social security": (
        _ssn,
        {
            "en": ("My social is {}.", "For the credit check: {}", "SSN {} as you asked"),
            "de": ("Meine amerikanische Nummer ist {}.", "SSN: {}"),
            "fr": ("Mon numéro américain est {}.", "SSN : {}"),
            "zh": ("我的美国社会安全号是{}。", "SSN：{}"),
        },
    ),
    "Chinese identity number": (
        _chinese_id,
        {
            "en": ("My ID is {}.", "Verify me with {} please"),
            "de": ("Mein Ausweis aus China: {}", "Prüfen Sie {} bitte"),
            "fr": ("Ma pièce chinoise : {}", "Vérifiez {} svp"),
            "zh": ("我的身份证是{}", "实名用{}可以吗", "证件号：{}，本人"),
        },
    ),
    "French social security": (
        _french_id,
        {
            "en": ("My French insurance number is {}.",),
            "de": ("Französische Nummer {} bitte eintragen.",),
            "fr": ("Mon numéro de sécu est {}.", "Le {} est mon numéro de sécurité sociale.", "NIR : {}"),
            "zh": ("法国社保号是{}。",),
        },
    ),
    "German tax number": (
        _german_id,
        {
            "en": ("My German tax id is {}.", "Tax: {}"),
            "de": ("Meine Steuer-ID ist {}.", "Die {} ist meine IdNr."),
            "fr": ("Mon identifiant fiscal allemand est {}.",),
            "zh": ("德国税号是{}。",),
        },
    ),
    "British insurance number": (
        _british_id,
        {
            "en": ("NI number {}.", "My national insurance is {} if you need it"),
            "de": ("Britische Nummer: {}",),
            "fr": ("Numéro britannique : {}",),
            "zh": ("英国保险号 {}",),
        },
    ),
    "phone": (
        _phone,
        {
            "en": ("Call me on {} after six.", "My number is {}", "{} is where you reach me", "text {} when it ships"),
            "de": ("Rufen Sie mich unter {} an.", "Meine Nummer: {}", "Erreichbar bin ich ab 18 Uhr, {}", "Tel. {}"),
            "fr": ("Appelez-moi au {} après 18 h.", "Mon numéro : {}", "Je suis joignable au {}", "Tél. {}"),
            "zh": ("请打我电话{}。", "我的号码是 {}", "手机{}，晚上都在", "可以联系{}吗"),
        },
    ),
    "foreign phone": (
        _foreign_phone,
        {
            "en": ("I'm abroad, call {}.", "WhatsApp {}"),
            "de": ("Im Ausland unter {} erreichbar.", "WhatsApp: {}"),
            "fr": ("À l'étranger, appelez le {}.", "WhatsApp : {}"),
            "zh": ("我在国外，打{}。", "WhatsApp：{}"),
        },
    ),
    "birthdate": (
        _birthdate,
        {
            "en": ("I was born on {}.", "Date of birth: {}", "DOB {}, as on file", "My birthday is {}."),
            "de": ("Ich bin am {} geboren.", "Geburtsdatum: {}", "geb. {}", "Mein Geburtstag ist der {}."),
            "fr": ("Je suis née le {}.", "Date de naissance : {}", "né le {} à Lyon", "Mon anniversaire est le {}."),
            "zh": ("我是{}出生的", "出生日期：{}", "生日是{}", "我的生日 {}"),
        },
    ),
    "passport": (
        _passport,
        {
            "en": ("My passport number is {}.", "Passport {}, expires in May", "passport no. {}"),
            "de": ("Meine Reisepassnummer ist {}.", "Reisepass {}, gültig bis Mai", "Pass-Nr. im Reisepass: {}"),
            "fr": ("Mon numéro de passeport est {}.", "Passeport n° {}", "passeport {}, valable jusqu'en mai"),
            "zh": ("我的护照号码是{}", "护照{}，五月到期", "护照号：{}"),
        },
    ),
    "licence": (
        _licence,
        {
            "en": ("My driver's license number is {}.", "Driving licence {}"),
            "de": ("Mein Führerschein: {}", "Führerscheinnummer {}"),
            "fr": ("Mon permis de conduire : {}", "permis de conduire n° {}"),
            "zh": ("驾驶证号：{}", "驾照是{}"),
        },
    ),
    "IPv4": (
        _ip,
        {
            "en": ("My address is {} at home.", "ping {} fails"),
            "de": ("Mein Router hat {}.", "{} antwortet nicht"),
            "fr": ("Mon adresse est {}.", "{} ne répond pas"),
            "zh": ("我的IP是{}", "服务器{}连不上"),
        },
    ),
    "IPv6": (
        _ip6,
        {
            "en": ("It resolves to {}.", "host {} is down"),
            "de": ("Der Anschluss hat {}.", "{} ist nicht erreichbar"),
            "fr": ("La box a {}.", "{} est injoignable"),
            "zh": ("地址是{}", "服务器 {} 连不上"),
        },
    ),
    "MAC": (
        _mac,
        {
            "en": ("The router's MAC is {}.", "device {} is blocked"),
            "de": ("Die MAC ist {}.", "Gerät {} ist gesperrt"),
            "fr": ("L'adresse MAC est {}.", "appareil {} bloqué"),
            "zh": ("MAC地址{}", "设备{}被禁用了"),
        },
    ),
    "order": (
        _order,
        {
            "en": (
                "My order number is {}.",
                "Where is order #{}?",
                "order no. {} has not come",
                "Order {} is late, what now?",
            ),
            "de": (
                "Meine Bestellnummer ist {}.",
                "Wo bleibt Bestellung {}?",
                "Auftragsnummer: {}",
                "Bestellung Nr. {} fehlt",
            ),
            "fr": (
                "Mon numéro de commande est {}.",
                "Où est la commande {} ?",
                "commande n° {}",
                "Commande numéro {} en retard",
            ),
            "zh": ("我的订单号是{}", "订单{}还没到", "订单编号：{}", "帮我查下订单 {}"),
        },
    ),
    "parcel": (
        _parcel,
        {
            "en": ("Tracking number {}.", "The parcel {} is stuck", "My tracking code is {}"),
            "de": ("Sendungsnummer {}.", "Das Paket {} hängt fest", "Paketnummer: {}"),
            "fr": ("Numéro de suivi {}.", "Le colis {} est bloqué", "numéro de colis : {}"),
            "zh": ("快递单号{}", "运单号：{}", "物流单号是 {}，没动静"),
        },
    ),
    "account": (
        _account,
        {
            "en": ("My customer number is {}.", "account number: {}", "Member ID {}"),
            "de": ("Meine Kundennummer ist {}.", "Vertragsnummer: {}", "Mitgliedsnummer {}"),
            "fr": ("Mon numéro de client est {}.", "numéro de contrat : {}", "référence client {}"),
            "zh": ("我的客户号是{}", "会员号：{}", "账号{}登不上"),
        },
    ),
    "e-mail": (
        _email,
        {
            "en": ("Write to {}.", "it's {} now"),
            "de": ("Schreiben Sie an {}.", "neu ist {}"),
            "fr": ("Écrivez à {}.", "c'est {} maintenant"),
            "zh": ("发到{}", "邮箱是{}，谢谢"),
        },
    ),
    "site": (
        _site,
        {
            "en": ("My site {} is down.", "see {}"),
            "de": ("Meine Seite {} ist weg.", "siehe {}"),
            "fr": ("Mon site {} est en panne.", "voir {}"),
            "zh": ("我的网站 {} 打不开", "见 {} 。"),
        },
    ),
    "address": (
        _address,
        {
            "en": ("I live at {}.", "Ship it to {} please"),
            "de": ("Ich wohne {}.", "Bitte an {} liefern"),
            "fr": ("J'habite {}.", "Livrez au {} svp"),
            "zh": ("我住在{}", "寄到{}"),
        },
    ),
    "password": (
        _password,
        {
            "en": ("My password is {}", "password: {}"),
            "de": ("Mein Passwort ist {}", "Kennwort: {}"),
            "fr": ("Mon mot de passe est {}", "mot de passe : {}"),
            "zh": ("密码是{}", "密码：{}"),
        },
    ),
    "PIN": (
        _pin,
        {
            "en": ("My PIN is {}.", "The verification code is {}"),
            "de": ("Meine PIN ist {}.", "Bestätigungscode: {}"),
            "fr": ("Mon code PIN est {}.", "code de sécurité : {}"),
            "zh": ("验证码是{}", "验证码：{}"),
        },
    ),
    "long number": (
        _long,
        {
            "en": ("It says {} on the label.", "{} does that help?"),
            "de": ("Auf dem Etikett steht {}.", "{} hilft das?"),
            "fr": ("L'étiquette dit {}.", "{} est-ce utile ?"),
            "zh": ("标签上写着{}", "{} 有用吗"),
        },
    ),
}


def probes(count: int, seed: int = 0) -> list[Probe]:
    """Return probes that take turns in language and kind."""
    rng = random.Random(seed)
    made = []
    for i in range(count):
        language = LANGUAGES[i % 4]
        kind = list(KINDS)[i // 4 % len(KINDS)]
        make, sentences = KINDS[kind]
        value = make(rng, language)
        text = _among_others(rng, language, rng.choice(sentences[language])).format(value)
        made.append(Probe(kind=kind, language=language, text=text, value=value))
    return made


def _among_others(rng: random.Random, language: Language, sentence: str) -> str:
    """Return the sentence as customers type it: some in lower case, some before or after an ordinary one."""
    if rng.random() < 0.3:
        sentence = sentence.lower()
    neighbour = _ordinary(rng, language)
    return rng.choice([sentence, sentence, f"{neighbour} {sentence}", f"{sentence} {neighbour}"])


THE_36: tuple[Probe, ...] = tuple(
    Probe(kind=kind, language=language, text=text.format(value), value=value)
    for kind, language, text, value in (
        ("card", "en", "You can charge my Visa {}.", "4111 1111 1111 1111"),
        ("card", "de", "Meine Kreditkarte ist {}", "5500-0000-0000-0004"),
        ("card", "fr", "Ma carte Amex : {}", "3782 822463 10005"),
        ("card", "en", "card {} exp 09/28 cvv on request", "6011111111111117"),
        ("bank card", "zh", "我的工行卡 {}", "6222021234567890128"),
        ("social security", "en", "My SSN is {}", "536-90-4399"),
        ("social security", "en", "social security number {}", "536904399"),
        ("iban", "de", "Überweisen Sie bitte an {}", "DE89 3704 0044 0532 0130 00"),
        ("iban", "fr", "mon compte: {}", "FR14 2004 1010 0505 0001 3M02 606"),
        ("iban", "en", "Refund to {}", "GB82WEST12345698765432"),
        ("Chinese identity number", "zh", "身份证 {}", "11010519491231002X"),
        ("birthdate", "en", "My date of birth is {}", "07/14/1986"),
        ("birthdate", "en", "I was born {}", "March 3, 1979"),
        ("birthdate", "de", "Ich wurde am {} geboren", "3. Mai 1990"),
        ("birthdate", "fr", "je suis né le {}", "14 juillet 1986"),
        ("birthdate", "zh", "{}出生", "1990年3月5日"),
        ("phone", "en", "Call {}", "(415) 555-0132"),
        ("phone", "en", "ring me on {}", "07700 900123"),
        ("phone", "de", "Tel {}", "030 123456"),
        ("phone", "de", "mobil {}", "+49 171 1234567"),
        ("phone", "fr", "mon portable est le {}", "06 12 34 56 78"),
        ("phone", "zh", "打 {}", "13812345678"),
        ("phone", "zh", "座机 {}", "(010) 6552 9988"),
        ("foreign phone", "en", "my cell in Tokyo: {}", "+81-90-1234-5678"),
        ("foreign phone", "en", "India number {}", "+91 98765 43210"),
        ("passport", "en", "passport number {}", "X12345678"),
        ("passport", "zh", "护照号 {}", "E12345678"),
        ("IPv4", "en", "my IP is {}", "203.0.113.42"),
        ("IPv6", "en", "my IP is {}", "2001:db8::8a2e:370:7334"),
        ("MAC", "en", "MAC {}", "00:1A:2B:3C:4D:5E"),
        ("order", "en", "order number {}", "112-4839201-77"),
        ("parcel", "en", "UPS {}", "1Z999AA10123456784"),
        ("parcel", "zh", "顺丰 {}", "SF1234567890123"),
        ("e-mail", "en", "mail {}", "mia@example.com"),
        ("address", "en", "deliver to {}", "975 Sunset Drive Suite 217"),
        ("long number", "en", "the sticker reads {}", "83920174655"),
    )
)
"""One probe each of 36 forms, written by hand."""


_ORDINARY: Mapping[Language, tuple[str, ...]] = {
    "en": (
        "The {plan} GB plan costs ${price} a month.",
        "Your order of {n} items comes to ${amount}.",
        "Can we meet on {date_en} at {time}?",
        "I bought the {model} for {amount} dollars.",
        "My order was ${amount} and I got {n} of {n} items.",
        "The appointment is on {month} {day}, 2026.",
        "You have {plan},000 bonus points.",
        "It takes {n} to {m} working days.",
        "Version {n}.{m}.{day} crashes on {model}.",
        "Please restart the router {n} times and wait {m} minutes.",
        "The fee is {price} % of ${big}.",
        "Order {n} more and pay £{price}.",
        "Open from {time} to {time}, closed in 2025-2026.",
        "The flight on {iso} leaves at {time}.",
        "A birthday voucher of ${price} is valid until {date_en}.",
        "The case weighs {n}.{m} kg and the tracking takes {n} days.",
    ),
    "de": (
        "Der Tarif mit {plan} GB kostet {price_de} € im Monat.",
        "Ihre Bestellung über {n} Artikel kostet {amount_de} Euro.",
        "Der Termin ist am {date_de} um {time} Uhr.",
        "Ich habe das {model} für {amount_de} EUR gekauft.",
        "Die Lieferung dauert {n} bis {m} Tage.",
        "Sie haben {plan}.000 Punkte.",
        "Am {day}. Oktober 2026 um {time}, bitte.",
        "Version {n}.{m}.{day} stürzt auf dem {model} ab.",
        "Die Gebühr beträgt {price_de} % von {big_de} €.",
        "Zum Geburtstag gibt es {price_de} € Rabatt bis {date_de}.",
        "Das Paket wiegt {n},{m} kg.",
        "Die Rechnung vom {date_de} über {amount_de} € stimmt nicht.",
        "Starten Sie den Router {n} Mal neu.",
    ),
    "fr": (
        "Le forfait de {plan} Go coûte {price_de} € par mois.",
        "Votre commande de {n} articles coûte {amount_fr} €.",
        "Le rendez-vous est le {date_fr} à {time}.",
        "J'ai acheté le {model} pour {amount_fr} euros.",
        "La livraison prend {n} à {m} jours.",
        "Vous avez {plan} 000 points.",
        "Le {day} octobre 2026 à {time}, merci.",
        "La version {n}.{m}.{day} plante sur le {model}.",
        "Les frais sont de {price_de} % de {big_fr} €.",
        "Pour votre anniversaire, {price_de} € offerts jusqu'au {date_fr}.",
        "Le colis pèse {n},{m} kg.",
        "La facture du {date_fr} de {amount_fr} € est fausse.",
        "Redémarrez la box {n} fois.",
    ),
    "zh": (
        "{plan}GB套餐每月{price}元。",
        "您的订单共{n}件，合计{amount}元。",
        "预约在{iso} {time}可以吗？",
        "我花{amount}元买了{model}。",
        "配送需要{n}到{m}天。",
        "您有{plan}000积分。",
        "2026年10月{day}日{time}到店。",
        "{n}.{m}.{day}版本在{model}上闪退。",
        "手续费是{big}元的{n}%。",
        "生日优惠券{price}元，{iso}前有效。",
        "包裹重{n}.{m}公斤。",
        "{iso}的账单{amount}元不对。",
        "请重启路由器{n}次。",
    ),
}
_MODELS = (
    "iPhone 15 Pro",
    "Galaxy S24",
    "WH-1000XM5",
    "RTX 4090",
    "ThinkPad X1",
    "EOS R6",
    "MX-3000",
    "QN90C",
    "PS5",
    "Mate 60",
    "FRITZ!Box 7590",
    "KDL-55W805C",
    "LaserJet M110we",
)


def ordinary(count: int, seed: int = 0) -> list[tuple[Language, str]]:
    """Return sentences of a service without a private value: prices, sizes, amounts, dates of appointments, models."""
    rng = random.Random(seed)
    return [(language, _ordinary(rng, language)) for i in range(count) for language in [LANGUAGES[i % 4]]]


def _ordinary(rng: random.Random, language: Language) -> str:
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.choice([2025, 2026, 2027])
    cents, thousands, rest = rng.randint(0, 99), rng.randint(1, 99), rng.randint(100, 999)
    return rng.choice(_ORDINARY[language]).format(
        n=rng.randint(1, 9),
        m=rng.randint(2, 14),
        day=day,
        month=rng.choice(_MONTHS["en"]),
        plan=rng.choice([5, 20, 50, 100]),
        price=f"{rng.randint(2, 99)}.{cents:02d}",
        price_de=f"{rng.randint(2, 99)},{cents:02d}",
        amount=f"{rng.randint(20, 1999)}.{cents:02d}",
        amount_de=f"{thousands}.{rest},{cents:02d}",
        amount_fr=f"{thousands} {rest},{cents:02d}",
        big=f"{thousands},{rest},000",
        big_de=f"{thousands}.{rest}.000",
        big_fr=f"{thousands} {rest} 000",
        model=rng.choice(_MODELS),
        time=f"{rng.randint(8, 18)}:{rng.choice([0, 15, 30]):02d}",
        date_en=f"{month:02d}/{day:02d}/{year}",
        date_de=f"{day:02d}.{month:02d}.{year}",
        date_fr=f"{day:02d}/{month:02d}/{year}",
        iso=f"{year}-{month:02d}-{day:02d}",
    )


def is_hidden(probe: Probe, spans: Sequence[tuple[int, int]]) -> bool:
    """Return True if every letter and digit of the value is inside one of the spans of its text."""
    start = probe.text.index(probe.value)
    return all(
        any(a <= start + i < b for a, b in spans) for i, character in enumerate(probe.value) if character.isalnum()
    )
