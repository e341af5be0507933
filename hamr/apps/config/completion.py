"""Completion scripts for shells. The words are fixed when the script is printed."""

from __future__ import annotations

import re

from hamr.apps.jobs import JOBS
from hamr.config.explain import known_keys
from hamr.config.load import load_config
from hamr.config.overrides import group_options
from hamr.config.resources import resource
from hamr.config.schema import GROUPS, Config

BASH = """\
_hamr() {
    local word=${COMP_LINE:0:COMP_POINT}
    word=${word##*[[:space:]]}
    COMPREPLY=($(compgen -W "WORDS" -- "$word") $(compgen -f -- "$word"))
    # Bash splits words at "=", so the part before it must not be repeated.
    [[ $word == *=* && $COMP_WORDBREAKS == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*=}"}"}")
    [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace
}
complete -F _hamr hamr
"""
ZSH = """\
#compdef hamr
_hamr() {
    local -a words_known
    words_known=(WORDS)
    compadd -S '' -- ${(M)words_known:#*=}
    compadd -- ${words_known:#*=}
    _files
}
if [[ $funcstack[1] == _hamr ]]; then  # the first call runs the file of fpath
    _hamr "$@"
else
    compdef _hamr hamr
fi
"""
FISH = """\
complete -c hamr -a "WORDS"
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completion_script(shell: str) -> str:
    """Return the script for a shell: a key of SCRIPTS."""
    return SCRIPTS[shell].replace("WORDS", " ".join(completion_words()))


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
