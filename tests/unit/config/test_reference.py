"""The generated reference of the configuration."""

import re

from scripts.docs_site import configuration


def test_every_key_has_a_description():
    rows = re.findall(r"^\| `(\S+)` \| .* \| (.*) \|$", configuration(), flags=re.MULTILINE)
    assert len(rows) > 300
    assert [key for key, meaning in rows if not meaning.strip()] == []


def test_keys_of_named_sections_have_a_placeholder():
    assert "| `pools.<name>.endpoint` | text or null | `null` | Base URL" in configuration()
