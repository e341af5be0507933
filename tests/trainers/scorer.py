"""A server that answers as `hamr serve` does, with made-up rewards; a response with "hang" has none."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SAMPLE = json.dumps({"id": "s"})


class Scorer(ThreadingHTTPServer):
    def __init__(self, *, answers: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.open = threading.Event()
        if answers:
            self.open.set()

    def __enter__(self) -> Scorer:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.open.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Scorer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.open.wait(30)
        if self.path == "/get_reward":
            from hamr.adapters.wire import read_get_reward, tell_get_reward

            groups = [(texts, *_score(texts)) for _, texts in read_get_reward(body)]
            records = [record for _, _, own in groups for record in own]
            answer: dict[str, Any] = tell_get_reward(([values for _, values, _ in groups], records), "nan")
        else:
            scored = [_score(group["responses"]) for group in body["groups"]]
            answer = {"groups": [{"rewards": values, "records": records} for values, records in scored]}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Quiet."""


def _score(texts: list[str]) -> tuple[list[float | None], list[dict[str, Any]]]:
    values = [None if "hang" in text else len(text) / 10 for text in texts]
    totals = [{"kind": "failure", "detail": "stuck"} if v is None else {"kind": "scored", "value": v} for v in values]
    return values, [{"total": total, "action": None, "band": "inside"} for total in totals]
