"""Arguments of `hamr config` and `hamr completion`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hamr.apps.shared.commands import Command, ConfiguredCommand, Flag, Word


class ConfigShowCommand(ConfiguredCommand):
    """Print the resolved configuration of a job as YAML. A comment gives the origin of every value: the command line,
    a file with its line, or the default of the schema. `hamr train ... --cfg job` prints the same.
    """

    examples = ("hamr config show experiment=quickstart trainer.learning_rate=1e-4",)

    info: Annotated[bool, Flag()] = False
    """Print only the chosen files, in the order in which they are composed."""

    def run(self) -> int:
        from hamr.apps.config.show import show_config, show_files

        print("\n".join(show_files(self.overrides) if self.info else show_config(self.overrides)))
        return 0


class ConfigExplainCommand(ConfiguredCommand):
    """Print type, default, meaning, value and origin of a key, or of all keys of a section."""

    examples = ("hamr config explain algorithm.kl.coef experiment=quickstart",)

    key: Annotated[str, Word(), Field(title="KEY")]
    """Key or section: `trainer.learning_rate`, `pools.judge`, `rewards`."""

    def run(self) -> int:
        from hamr.apps.config.show import explain_key

        print("\n".join(explain_key(self.key, self.overrides)))
        return 0


class CompletionCommand(Command):
    """Print a script that completes commands, groups, choices and keys in a shell."""

    examples = ("hamr completion bash > ~/.local/share/bash-completion/completions/hamr",)

    shell: Annotated[Literal["bash", "zsh", "fish"], Word(), Field(title="bash|zsh|fish")]
    """The shell."""

    def run(self) -> int:
        from hamr.apps.config.completion import completion_script

        print(completion_script(self.shell), end="")
        return 0
