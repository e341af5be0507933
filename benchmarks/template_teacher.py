"""OpenAI-compatible endpoint without a model: it fills a window's own turns into the form of a plan.

Use it where there is no teacher. As a judge it accepts everything, so that only rules drop its plans.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hamr.apps.data.recipes.patm import PLANNING_SCORES, REWRITE_SCORES


def answer(question: str) -> str:
    """The endpoint's answer to a rendered question of `hamr data patm`."""
    shown = dict(re.findall(r"<(\w+)>\n(.*?)\n</\1>", question, re.DOTALL))
    if "plan_1" not in shown:
        return plan(shown)
    if "first" in shown:
        return json.dumps({"reason": "-", **dict.fromkeys(REWRITE_SCORES, 1), "violation_list": []})
    return json.dumps({"reason": "-", **dict.fromkeys(PLANNING_SCORES, 1), "total_score": len(PLANNING_SCORES)})


def plan(shown: Mapping[str, str]) -> str:
    """The rewrite of a window, in the window's own words.

    >>> plan({"first": "Agent: Why?", "environment": "Customer: No.", "second": "Agent: I see.", "calls": "[]"})[:75]
    '<plans><plan_1>I tell the customer: "Why?"</plan_1><plan_2>Assuming the cus'
    """
    came = " and then ".join(_came(line) for line in shown["environment"].splitlines())
    return (
        f"<plans><plan_1>I {_done(shown['first'])}</plan_1><plan_2>Assuming {came}, this indicates how the case goes "
        f"on, therefore, I can {_done(shown['second'])}</plan_2></plans><actions>{shown['calls']}</actions>"
    )


def _done(turn: str) -> str:
    """Of a call only the tool's name: a plan is anonymous."""
    called = re.match(r"Agent calls ([^(]+)", turn)
    return f"call {called.group(1)}." if called else f'tell the customer: "{turn.removeprefix("Agent: ")}"'


def _came(turn: str) -> str:
    who, _, words = turn.partition(": ")
    return f'the tool returns "{words}"' if who == "Tool" else f'the customer says "{words}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(_completion(answer(asked["messages"][-1]["content"]))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def _completion(text: str) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "template", "choices": [choice]}


@contextmanager
def served() -> Iterator[str]:
    """The endpoint's URL, for as long as it is there."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
