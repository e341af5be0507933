"""A judge behind an endpoint, for whole runs that are not about its engine: each engine costs a process of its own."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class JudgeEndpoint(ThreadingHTTPServer):
    """Answers `says`. Remembers who asked, and keeps its answers back while `holds()`, so that a run can be caught."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.says = "Verdict: Yes"
        self.asked_with: set[str | None] = set()
        self.holds: Callable[[], bool] = lambda: False

    @property
    def settings(self) -> dict[str, str]:
        """For a run whose pool `judge` is this one."""
        return {"pools.judge.type": "openai", "pools.judge.endpoint": f"http://127.0.0.1:{self.server_port}/v1"}

    @property
    def alone(self) -> dict[str, str]:
        """For a run in which nobody else is asked: without a reranker the only engine is the policy's."""
        return self.settings | {"rewards.consistency.mode": "soft_judge"}


@contextlib.contextmanager
def judge_endpoint() -> Iterator[JudgeEndpoint]:
    with JudgeEndpoint() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.holds = lambda: False
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: JudgeEndpoint

    def do_POST(self) -> None:
        self.server.asked_with.add(self.headers.get("Authorization"))
        self.rfile.read(int(self.headers["Content-Length"]))
        while self.server.holds():
            time.sleep(0.05)
        likely = [
            {"token": t, "logprob": p, "bytes": None} for t, p in ((" Yes", -0.3), (" Part", -2.0), (" No", -2.2))
        ]
        # As vLLM lists them: the end of the turn is among the tokens, and not in the text.
        said = [(t, likely if t == " Yes" else []) for t in ("Verdict", ":", " Yes", "<|im_end|>")]
        content = [{"token": t, "logprob": -0.1, "bytes": None, "top_logprobs": top} for t, top in said]
        message = {"role": "assistant", "content": self.server.says}
        choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": {"content": content}}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        data = json.dumps(body).encode()
        with contextlib.suppress(ConnectionError):  # who asked may have been killed meanwhile
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""
