"""Common frame of all reports: one self-contained HTML page with embedded pictures."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamr.report.template import STYLE
from hamr.security.redaction import redact_text
from hamr.telemetry.run_folder import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RELOAD = '<meta http-equiv="refresh" content="10">'
"""Makes a browser reload the page every 10 s."""

FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
{{ reload|default("")|safe }}<title>{{ title }} · hamr report</title>
<style>{{ style|safe }}</style>
</head>
<body><main>
<header>
<h1>{{ heading|default(title) }}</h1>
<p class="verdict">{{ verdict }}</p>
<p class="facts">{{ facts|join(' · ') }}</p>
</header>
{% block body %}{% endblock %}
</main></body></html>
"""


def write_page(file: Path, body: str, **shown: Any) -> Path:
    """Render `body`, a Jinja template for the part below the heading, and write the page.

    All values are escaped, and secrets are redacted. `shown` contains `title`, `verdict` and `facts` for the frame, and
    `heading` if it differs from the title.
    """
    from jinja2 import DictLoader, Environment

    page = '{% extends "frame" %}{% block body %}' + body + "{% endblock %}"
    html = Environment(autoescape=True, loader=DictLoader({"frame": FRAME})).from_string(page)
    write_atomic(file, redact_text(html.render(style=STYLE, **shown)))
    return file


def picture(folder: Path, name: str, figure: Figure) -> str:
    """Write plots/<name>.png and return it as a base64 data URI. Characters not allowed in file names become `_`."""
    file = folder / "plots" / ("".join(c if c.isalnum() or c in "-_" else "_" for c in name) + ".png")
    file.parent.mkdir(exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    file.write_bytes(drawn.getvalue())
    return base64.b64encode(drawn.getvalue()).decode()
