"""Scorer behind an endpoint, for whole runs that are not about engines: each engine costs 10 seconds of CPU time."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ScorerEndpoint(ThreadingHTTPServer):
    """OpenAI-compatible server that answers Yes to every question, with log-probabilities.

    `says` is the text of the answers, or a function of the request's body that returns it. `asked_with` collects the
    Authorization headers. While `holds()` is true, answers are held back, so that a run stays
    where it is.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.says: str | Callable[[str], str] = "Verdict: Yes"
        self.asked_with: set[str | None] = set()
        self.holds: Callable[[], bool] = lambda: False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def both(self) -> dict[str, str]:
        """Return the settings of a run whose reranker and judge are this endpoint."""
        return {key: value for role in ("reranker", "judge") for key, value in self._pool(role).items()}

    @property
    def judge(self) -> dict[str, str]:
        """Return the settings of a run that asks this endpoint as its judge, and no reranker."""
        return self._pool("judge") | {"rewards.consistency.mode": "soft_judge"}

    def _pool(self, role: str) -> dict[str, str]:
        given = {"type": "openai", "endpoint": self.url, "model": "m"}
        # It answers every question alike.
        return {f"pools.{role}.{key}": value for key, value in given.items()} | {"scorers.accept_chance": "true"}


@contextlib.contextmanager
def scorer_endpoint() -> Iterator[ScorerEndpoint]:
    with ScorerEndpoint() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.holds = lambda: False
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: ScorerEndpoint

    def do_POST(self) -> None:
        self.server.asked_with.add(self.headers.get("Authorization"))
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        while self.server.holds():
            time.sleep(0.05)
        likely = [
            {"token": t, "logprob": p, "bytes": None} for t, p in ((" Yes", -0.3), (" Part", -2.0), (" No", -2.2))
        ]
        # As vLLM lists them: the end of the turn is among the tokens, and not in the text.
        said = [(t, likely if t == " Yes" else []) for t in ("Verdict", ":", " Yes", "<|im_end|>")]
        content = [{"token": t, "logprob": -0.1, "bytes": None, "top_logprobs": top} for t, top in said]
        says = self.server.says if isinstance(self.server.says, str) else self.server.says(asked)
        message = {"role": "assistant", "content": says}
        choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": {"content": content}}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        data = json.dumps(body).encode()
        with contextlib.suppress(ConnectionError):  # the client may have been killed
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""
