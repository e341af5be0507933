"""Arguments of `hamr serve`."""

from __future__ import annotations

from hamr.apps.shared.commands import ConfiguredCommand


class ServeCommand(ConfiguredCommand):
    """Serve the reward system over HTTP: OpenRLHF's remote reward, a client for TRL and verl, full records. `serve.*`
    sets the address and the value of a missing reward. Other addresses than this machine's own require a token in
    HAMR_SERVE_TOKEN.

      POST /score       {"groups": [{"sample": {...}, "responses": [...]}]} -> rewards and full records by group
      POST /get_reward  OpenRLHF's remote reward model: {"query", "prompts", "labels"} -> {"rewards", "scores"}
      GET  /health      200 while every pool has a running replica

    Client timeouts should be longer than `router.deadline_s`, after which a response without a reward counts as failed.
    OpenRLHF waits 180 s, so set router.deadline_s=120 for it. On SIGTERM or Ctrl-C the server finishes pending requests
    and exits.
    """

    examples = ("hamr serve experiment=quickstart serve.port=8042",)

    def run(self) -> int:
        from hamr.apps.serve.run import serve

        serve(self.config())
        return 0
