"""Completion scripts for shells. The words are fixed when the script is printed."""

from __future__ import annotations

import re

from hamr.apps.jobs import JOBS
from hamr.apps.shared.templates import render_file
from hamr.config.explain import known_keys
from hamr.config.load import load_config
from hamr.config.overrides import group_options
from hamr.config.resources import resource
from hamr.config.schema import GROUPS, Config


def completion_script(shell: str) -> str:
    """Return the script for a shell: bash, zsh or fish."""
    return render_file("hamr.apps.config", f"completion.{shell}", words=" ".join(completion_words()))


def completion_words() -> list[str]:
    """Return the words of commands, `group=choice` of every choice that hamr ships, and `section.key=` of every key."""
    commands = (word for path in JOBS for word in path.split())
    options = group_options([resource("conf")], GROUPS)
    choices = (f"{group}={choice}" for group, names in options.items() for choice in names)
    known = list(known_keys(Config, load_config().model_dump(mode="json")))
    sections = {key.rpartition(".")[0] for key in known}
    keys = (f"{key}=" for key in known if key not in sections and "." in key)
    words = [*commands, *choices, *keys, "--help"]
    return [word for word in dict.fromkeys(words) if re.fullmatch(r"[\w.=-]+", word)]
