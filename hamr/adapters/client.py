"""Client of `hamr serve`. Standard library only."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from hamr.errors import BadInput, HamrError
from hamr.security.endpoints import check_url, is_loopback, look_up

TOKEN = "HAMR_SERVE_TOKEN"
_AGAIN = (502, 503, 504)


class RewardClient:
    """Requests records or rewards from a server. Thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 300.0,
        attempts: int = 5,
        pause_s: float = 1.0,
        token: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Initialize the client.

        Args:
            url: Address of the server, e.g. `http://localhost:8711`.
            timeout_s: Timeout of one answer. Set it above the server's `router.deadline_s`.
            attempts: Number of attempts after transport errors.
            pause_s: First pause between attempts, doubled each time.
            token: Token of the server. By default that of the environment variable HAMR_SERVE_TOKEN, if it is set.
            sleep: Function that waits, for tests.
        """
        check_url("url", url, resolve=look_up)
        self.url = url.rstrip("/")
        self._timeout_s, self._attempts, self._pause_s, self._sleep = timeout_s, max(1, attempts), pause_s, sleep
        token = token or os.environ.get(TOKEN)
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling; TRL's AsyncGRPOTrainer scores in a process of its own."""
        return {name: value for name, value in vars(self).items() if name != "_opener"}

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        # Do not use a proxy from the environment for this machine.
        near = [urllib.request.ProxyHandler({})] if is_loopback(urlsplit(self.url).hostname or "") else []
        return urllib.request.build_opener(_NoRedirect(), *near)

    def score(self, samples: Sequence[tuple[Mapping[str, Any], Sequence[str]]]) -> list[list[dict[str, Any]]]:
        """Return the full records of every group, as `hamr score` writes them."""
        return [group["records"] for group in self.groups(samples)]

    def rewards(self, samples: Sequence[tuple[Mapping[str, Any], Sequence[str]]]) -> list[list[float | None]]:
        """Return the total reward of every response, by group. None if scoring failed."""
        return [group["rewards"] for group in self.groups(samples)]

    def health(self) -> dict[str, Any]:
        """Return the status of the server. Raise HamrError while it is unreachable or unhealthy."""
        return self._ask("/health", None)

    def groups(self, samples: Sequence[tuple[Mapping[str, Any], Sequence[str]]]) -> list[dict[str, Any]]:
        """Return both, by group: {"rewards": [...], "records": [...]}."""
        body = {"groups": [{"sample": dict(sample), "responses": list(texts)} for sample, texts in samples]}
        return self._ask("/score", body)["groups"] if samples else []

    def _ask(self, path: str, body: Mapping[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        problem = ""
        for attempt in range(self._attempts):
            if attempt:
                self._sleep(self._pause_s * 2 ** (attempt - 1))
            request = urllib.request.Request(self.url + path, data=data, headers=self._headers)
            try:
                with self._opener.open(request, timeout=self._timeout_s) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                with error:
                    problem = f"{error.code} {_reason(error)}".strip()
                if error.code in (400, 413):
                    raise BadInput(f"{self.url}{path}", problem, "the server rejected the request") from error
                if error.code not in _AGAIN:
                    break
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = str(getattr(error, "reason", None) or error) or type(error).__name__
        raise HamrError(f"{self.url}{path}: no answer in {attempt + 1} attempts: {problem}")


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the reason in the body of an error response. The connection may break before its end."""
    body = b""
    try:
        body = error.read()
        return str(json.loads(body)["error"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Reject redirects. hamr's server sends none, and the target host would not have been checked."""

    def redirect_request(self, *_: Any) -> None:
        return None
