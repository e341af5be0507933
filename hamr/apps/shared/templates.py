"""Text files that a command writes, from the folder `templates` of its package."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def render_file(package: str, name: str, /, **values: object) -> str:
    """Return the template `name` of a package with these values, which are not escaped."""
    made = Environment(
        loader=PackageLoader(package),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        comment_start_string="{##",  # the shell has ${#array[@]}
    )
    return made.get_template(f"{name}.j2").render(**values)
