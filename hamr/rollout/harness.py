"""Dialogues of an agent harness of the user's own: `env=endpoint env.command="python my_agent.py"`.

Every dialogue is a process. It finds the policy where OpenAI's clients look for it, in OPENAI_BASE_URL and
OPENAI_API_KEY, so that a harness needs no adapter, and its task on its standard input:

    {"id": "s17", "seed": 4711, "sample": {...}}

A process for each dialogue rather than a worker for many: what a harness keeps in memory cannot leak from one dialogue
into another, a crash costs one dialogue, and a kill ends an abandoned one for certain. Where starting up is expensive,
the command can be a small client of a service that is already running.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import IO

from hamr.config.custom import HarnessConfig
from hamr.config.use import ServeConfig
from hamr.data.samples import to_json
from hamr.errors import ConfigError
from hamr.rollout.endpoint import BIND_REMEDY, Conversation, PolicyEndpoint
from hamr.security.http_server import bind_socket
from hamr.security.processes import kill_session
from hamr.types import AskPolicy, Component, Episode, EpisodeOutcome, Scored

SHOWN = 200
"""Maximum length of the harness's last line in a failure."""
_INTERPRETER = re.compile(r"(python|pypy)[\d.]*|(ba|da|k|z)?sh")


class HarnessError(Exception):
    """The process of a dialogue failed, or ended without a reward."""


class HarnessEpisode:
    """Episode function of `env=endpoint`. `scored`: the configured rewards score each turn."""

    def __init__(self, config: HarnessConfig, limits: ServeConfig, *, scored: bool) -> None:
        self._command, self._host = shlex.split(config.path), config.host
        self._scored = scored
        self._endpoint = PolicyEndpoint(limits.model_copy(update={"host": config.host, "port": 0}))

    async def __call__(self, episode: Episode, ask: AskPolicy) -> Episode:
        """Hold one dialogue.

        Raises:
            HarnessError: The exit code is not 0, or there is no reward, although no limit was reached.
        """
        task = {"id": episode.sample.id, "seed": episode.seed, "sample": to_json(episode.sample)}
        scored = episode.sample if self._scored else None
        with self._endpoint.conversation(ask, scored) as conversation, tempfile.TemporaryFile() as output:
            with tempfile.TemporaryFile() as given:
                given.write(json.dumps(task).encode())
                given.seek(0)
                code = await self._run(conversation, given, output)
            outcome: EpisodeOutcome = "ended"
            rewards, rewarded = conversation.rewards, bool(self._scored or conversation.turn_rewards)
            if conversation.limit is not None:
                outcome = conversation.limit.outcome
                rewards = rewards if rewards or rewarded else {"reward": 0.0}
            elif code:
                raise HarnessError(f"exit code {code}: {_last_line(output)}")
            elif not (rewards or rewarded):
                raise HarnessError('no reward; POST {"reward": 1.0} to $OPENAI_BASE_URL/reward')
        components = [Component(name=n, outcome=Scored(value=v), weight=1.0) for n, v in rewards.items()]
        ended = episode.end(outcome=outcome, turn_rewards=conversation.turn_rewards)
        return replace(ended, components=tuple(components))

    async def _run(self, conversation: Conversation, given: IO[bytes], output: IO[bytes]) -> int:
        """Return the exit code of the process. Raises the exception of an engine. No process of its session is left."""
        known = {"OPENAI_BASE_URL": conversation.base_url, "OPENAI_API_KEY": conversation.token}
        direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        known |= dict.fromkeys(("no_proxy", "NO_PROXY"), f"{direct},{self._host}" if direct else self._host)
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=given, stdout=output, stderr=output, env=os.environ | known, start_new_session=True
        )
        waiting = asyncio.create_task(process.wait())
        try:
            await asyncio.wait((waiting, conversation.broken), return_when=asyncio.FIRST_COMPLETED)
            if conversation.broken.done():
                conversation.broken.result()
            return waiting.result()
        finally:
            await asyncio.to_thread(kill_session, process.pid)
            await waiting


def check_harness(key: str, config: HarnessConfig) -> None:
    """Raise BadInput if the command may not be run, its program or an interpreter's script does not exist, or the
    policy endpoint cannot listen on `host`."""
    config.refuse_recorded(key)
    program, script, *_ = [*shlex.split(config.path), "-"]
    if shutil.which(program) is None:
        raise ConfigError(f"{key}.path", config.path, f"there is no program {program!r}; give its path, or install it")
    interprets = _INTERPRETER.fullmatch(Path(program).name) and not script.startswith("-")
    if interprets and not Path(script).exists() and shutil.which(script) is None:
        raise ConfigError(f"{key}.path", config.path, f"there is no file {script!r}; give its path from {Path.cwd()}")
    bind_socket(ServeConfig(host=config.host, port=0), f"{key}.host", BIND_REMEDY).close()


def _last_line(output: IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - 4096))
    lines = output.read().decode(errors="replace").split("\n")
    return next((" ".join(line.split())[:SHOWN] for line in reversed(lines) if line.strip()), "no output")
