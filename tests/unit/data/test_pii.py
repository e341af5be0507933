"""Rule-based detection of private values in both languages, and aliases within a ticket."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hamr.data.pii import Aliases, find_pii, kind_by_name, private_in

PEM = f"-----BEGIN RSA {'PRIVATE'} KEY-----\nMIIEvQIBADANBg\n9w0BAQ==\n-----END RSA {'PRIVATE'} KEY"
"""A block of a private key. The parts of secrets are joined, so that no scanner of repositories takes them for real."""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Call me at 13812345678.", [("phone", "13812345678")]),
        ("手机号是138-1234-5678，谢谢", [("phone", "138-1234-5678")]),
        ("+86 13812345678", [("phone", "+86 13812345678")]),
        ("It's (977) 625-2661", [("phone", "(977) 625-2661")]),
        ("+44 20 7946 0958 is my line", [("phone", "+44 20 7946 0958")]),
        ("座机 0571-88886666", [("phone", "0571-88886666")]),
        ("Mail cminh730@email.com, please", [("email", "cminh730@email.com")]),
        ("邮箱：li.lei@example.com.cn。", [("email", "li.lei@example.com.cn")]),
        ("Mail an jörg.müller@example.de!", [("email", "jörg.müller@example.de")]),
        (
            "anna@müller-shop.de, info@bücher.example",
            [("email", "anna@müller-shop.de"), ("email", "info@bücher.example")],
        ),
        ("jo\u0308rg@mu\u0308ller.de", [("email", "jo\u0308rg@mu\u0308ller.de")]),
        ("请写到li@x.com谢谢", [("email", "li@x.com")]),
        ("li@x.com或张伟@例子.中国", [("email", "li@x.com"), ("email", "或张伟@例子.中国")]),
        ("call 1.977.625.2661", [("phone", "1.977.625.2661")]),
        ("our site shop.example.com is down", [("domain", "shop.example.com")]),
        ("打不开 https://www.example.cn/a?b=1，", [("domain", "https://www.example.cn/a?b=1")]),
        ("server 47.98.12.33 refuses", [("network", "47.98.12.33")]),
        ("My UID: 48213377", [("account", "48213377")]),
        ("the order number is 3348917502", [("account", "3348917502")]),
        ("user id mia_li_3668", [("account", "mia_li_3668")]),
        ("账号：zhang_01，密码：Abc12345", [("account", "zhang_01"), ("key", "Abc12345")]),
        ("身份证号 11010519491231002X", [("identity", "11010519491231002X")]),
        ("at 6821 1st ave, in town", [("address", "6821 1st ave")]),
        ("at 221B Baker Street, in town", [("address", "221B Baker Street")]),
        ("12 Maple Court", [("address", "12 Maple Court")]),
        ("975 Sunset Drive Suite 217", [("address", "975 Sunset Drive Suite 217")]),
        ("寄到浙江省杭州市西湖区文三路 90 号", [("address", "浙江省杭州市西湖区文三路 90 号")]),
        ("寄到浙江省杭州市西湖区文三路90号", [("address", "浙江省杭州市西湖区文三路90号")]),
        ("key sk-abcDEF123456789xyz here", [("key", "sk-abcDEF123456789xyz")]),
        ("AccessKey: LTAI5tQ9abcdefghij", [("key", "LTAI5tQ9abcdefghij")]),
        ("password is hunter22", [("key", "hunter22")]),
        (f"use sk_{'live'}_51HabcDEF1234567890ab.", [("key", f"sk_{'live'}_51HabcDEF1234567890ab")]),
        (f"rk_{'test'}_51HabcDEF1234567890ab", [("key", f"rk_{'test'}_51HabcDEF1234567890ab")]),
        (f"github_{'pat'}_11ABCDEFG0abcdefgh_mnopq", [("key", f"github_{'pat'}_11ABCDEFG0abcdefgh_mnopq")]),
        (f"gl{'pat'}-abcdefGHIJ1234567890", [("key", f"gl{'pat'}-abcdefGHIJ1234567890")]),
        (f"h{'f'}_abcdefghijklmnopqrstuvwxyzABCD", [("key", f"h{'f'}_abcdefghijklmnopqrstuvwxyzABCD")]),
        (f"xo{'xb'}-123456789012-abcdefGHIJKL", [("key", f"xo{'xb'}-123456789012-abcdefGHIJKL")]),
        (f"My key:\n{PEM}-----\nthanks", [("key", PEM)]),
        ("短信签名【阿甲科技】没有通过", [("signature", "阿甲科技")]),
        ('signature: "Acme"', [("signature", "Acme")]),
        ("签名名称：阿甲", [("signature", "阿甲")]),
    ],
)
def test_private_values_are_found(text: str, found: list[tuple[str, str]]) -> None:
    assert [(f.kind, f.value) for f in find_pii(text)] == found
    for f in find_pii(text):
        assert text[f.start : f.end] == f.value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I would like to cancel my order, please.",
        "It costs 120 euros and takes 3 to 5 days.",
        "The flight on 2024-05-20 at 15:00 is fine.",
        "我想取消订单，请问需要多久？",
        "请在 24 小时内重启 2 次。",
        "version 3.11.2 of Node.js",
        "version 10.0.19045.3803.",
        "Chrome 124.0.6367.9155 crashes",
        "2 items@2.50 each",
        "It shows error code 0x80070057 with promo code SPRING24.",
        "10 minutes on University Boulevard",
        "We are open 24 hours. 7 days this way",
        "See you at 6 pm. Dr. Mann is in.",
        "FullName/DateOfBirth/SecurityAnswer1/SecurityAnswer2",
        "One way or round trip?",
        "[PHONE_1] belongs to [ACCOUNT_2]",
        "your password was wrong",
        "What is your account number?",
    ],
)
def test_ordinary_text_has_no_private_values(text: str) -> None:
    assert find_pii(text) == ()


def test_alias_is_the_same_for_every_occurrence() -> None:
    aliases = Aliases()
    aliases.learn("My UID is 48213377 and my phone 13812345678.")
    aliases.learn("Or call 13900001111.")
    assert aliases.hide("48213377? Call 13812345678, not 13900001111, 148213377.") == (
        "[ACCOUNT_1]? Call [PHONE_1], not [PHONE_2], 148213377."
    )
    assert aliases.hide_value({"uid": 48213377, "n": 7, "to": ["13900001111"], "on": True}) == {
        "uid": "[ACCOUNT_1]", "n": 7, "to": ["[PHONE_2]"], "on": True,
    }  # fmt: skip
    assert aliases.named_in("lookup [PHONE_2]") == {"[PHONE_2]": "13900001111"}


def test_json_with_a_hidden_number_stays_json() -> None:
    aliases = Aliases()
    aliases.learn("1234567890")
    text = '{"parcel": 1234567890, "all": [1234567890, -1234567890.5], "said": "a \\" 1234567890"}'
    assert json.loads(aliases.hide(text)) == {
        "parcel": "[NUMBER_1]", "all": ["[NUMBER_1]", "-[NUMBER_1].5"], "said": 'a " [NUMBER_1]',
    }  # fmt: skip
    assert aliases.hide("[1234567890 is it") == "[[NUMBER_1] is it"


def test_field_name_determines_the_kind_of_value() -> None:
    aliases = Aliases()
    aliases.learn_value("", {"customer": {"username": "cminh", "city": "san mateo", "phone": 5551234}})
    assert aliases.hide("cminh of san mateo, 5551234") == "[ACCOUNT_1] of san mateo, [PHONE_1]"
    names = {"email_address": "email", "user_id": "account", "SignName": "signature", "uid": "account"}
    names |= {"phone_type": None, "emailVerified": None, "cabin": None, "CustomerName": None}
    assert {name: kind_by_name(name) for name in names} == names


def test_whole_floats_are_hidden_like_integers() -> None:
    """A table with an empty cell stores the numbers of the column as floats."""
    row = {"phone": 4915112345678.0, "customer_number": 48213377.0, "total": 48213376.5, "phones": True, "n": 2.0}
    aliases = Aliases()
    aliases.learn_value("", row)
    assert aliases.hide_value(row) == {
        "phone": "[PHONE_1]", "customer_number": "[ACCOUNT_1]", "total": 48213376.5, "phones": True, "n": 2.0,
    }  # fmt: skip
    assert aliases.values == {"4915112345678": "[PHONE_1]", "48213377": "[ACCOUNT_1]"}


def test_words_in_private_fields_are_no_private_values() -> None:
    words = {
        "domain": "restaurant", "phone": "unknown", "mobile": ["none", "true"], "email": "not given", "iban": "missing",
        "order_id": "pending", "passport": "expired", "birthdate": "hidden", "ip": "dynamic",
    }  # fmt: skip
    aliases = Aliases()
    aliases.learn_value("", words)
    assert aliases.values == {}
    formed = {"domain": "http://intranet/wiki", "phone": "ext. 17", "email": "mia@work", "mac": "fe80::abcd"}
    named = {"username": "cminh", "address": "Rose Cottage", "password": "sesame"}
    aliases.learn_value("", formed | named)
    assert set(aliases.values) == {*formed.values(), *named.values()}


def test_short_value_does_not_split_a_longer_one() -> None:
    aliases = Aliases()
    aliases.learn_value("user_id", "mia_1")
    aliases.learn_value("user_id", "mia_1-b")
    assert aliases.hide("mia_1-b, mia_1, xmia_1") == "[ACCOUNT_2], [ACCOUNT_1], xmia_1"


def test_remaining_private_values_are_detected() -> None:
    assert private_in("I ask for the customer's mobile number.") is None
    assert private_in("I look 48213377 up") == "48213377"
    assert private_in("I look [ACCOUNT_1] up in 2024 for 120 euros") is None
    assert private_in("I greet zhang_01", ["zhang_01"]) == "zhang_01"
    assert private_in("I greet zhang_012", ["zhang_01"]) is None


@given(st.text(max_size=200))
def test_hiding_is_idempotent(text: str) -> None:
    """For any text, hidden text contains none of the values that were hidden."""
    aliases = Aliases()
    aliases.learn(text)
    hidden = aliases.hide(text)
    assert aliases.hide(hidden) == hidden
    again = Aliases()
    again.learn(hidden)
    assert not set(again.values) & set(aliases.values)


@pytest.mark.parametrize(
    "piece", ["a.", "1 ", "账号", "市区路", "a@", "张@", "ü@ü.", "v1.1.1.", "+1 ", "ave 1 ", PEM[:31]]
)
def test_long_texts_take_linear_time(piece: str) -> None:
    assert isinstance(find_pii(piece * (20_000 // len(piece))), tuple)


@pytest.mark.parametrize("character", "/+")
def test_long_runs_of_one_sign_take_linear_time(character: str) -> None:
    assert find_pii(character * 200_000) == ()


_KEY = re.compile(
    r"(?<![A-Za-z0-9_])(?=[A-Za-z0-9+/]*[a-z])(?=[A-Za-z0-9+/]*[A-Z])(?=(?:[A-Za-z+/]*\d){4})[A-Za-z0-9+/]{28,}={0,2}"
)
"""Base64 keys, in a form that takes quadratic time."""


@given(st.text("gZ7+/_= ", min_size=28, max_size=80))
@example("gZ7+" * 8)
@example("my_dir/" + "gZ77" * 7 + "==")
@example("_+" + "gZ77" * 7)
@example("_" + "gZ77" * 7)
def test_keys_start_at_every_run_of_base64(text: str) -> None:
    assert [f.value for f in find_pii(text) if f.kind == "key"] == [m.group() for m in _KEY.finditer(text)]
