"""HTML renderer of report values: one self-contained page that loads nothing."""

from __future__ import annotations

from pathlib import Path

from hamr.files import encodable, write_atomic
from hamr.report.drawing import PALETTE
from hamr.report.values import Page, format_value
from hamr.security.redaction import redact_text

RELOAD = '<meta http-equiv="refresh" content="10">'
"""Makes a browser reload the page every 10 s."""


def write_page(page: Page, folder: Path, *, live: bool = False) -> Path:
    """Write report.html and plots/*.png into `folder`. Secrets are redacted and lone surrogates replaced. A
    `live` page reloads itself."""
    for figure in page.figures():
        if figure.png is not None:
            file = folder / "plots" / f"{figure.name}.png"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(figure.png)
    report = folder / "report.html"
    write_atomic(report, redact_text(encodable(render_page(page, live=live))))
    return report


def render_page(page: Page, *, live: bool = False) -> str:
    """Return the page as HTML. All text is escaped."""
    return render("page.html.j2", page=page, reload=RELOAD if live else "")


def render(template: str, **values: object) -> str:
    """Return a page of `templates/`. All values are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        autoescape=True,
        loader=PackageLoader("hamr.report"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters["zip"] = zip
    made.globals |= {
        "kind": lambda value: type(value).__name__.lower(),
        "palette": PALETTE,
        "format_value": format_value,
    }
    return made.get_template(template).render(**values)
