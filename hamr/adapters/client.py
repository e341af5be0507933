"""A client of `hamr serve`. Standard library only."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from hamr.errors import BadInput, HamrError
from hamr.security.endpoints import check_url, is_loopback, look_up

_AGAIN = (502, 503, 504)


class RewardClient:
    """Asks a server for records or rewards. May be used from several threads."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 300.0,
        attempts: int = 5,
        pause_s: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`url` of the server, e.g. `http://localhost:8711`; `timeout_s` bounds one answer and wants to be above the
        server's `router.deadline_s`; what fails in transport is tried `attempts` times, with a pause that doubles."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadInput("url", url, "give the server's address, e.g. http://localhost:8711")
        check_url("url", url, resolve=look_up)
        self.url = url.rstrip("/")
        self._timeout_s, self._attempts, self._pause_s, self._sleep = timeout_s, max(1, attempts), pause_s, sleep
        # A proxy that the environment names for the world is not asked for this very machine.
        near = [urllib.request.ProxyHandler({})] if is_loopback(parts.hostname) else []
        self._opener = urllib.request.build_opener(_NoRedirect(), *near)

    def score(self, samples: Sequence[tuple[Mapping[str, Any], Sequence[str]]]) -> list[list[dict[str, Any]]]:
        """The full records of every group, as `hamr score` writes them."""
        return [group["records"] for group in self.groups(samples)]

    def rewards(self, samples: Sequence[tuple[Mapping[str, Any], Sequence[str]]]) -> list[list[float | None]]:
        """The whole reward of every response, by group; None where scoring failed."""
        return [group["rewards"] for group in self.groups(samples)]

    def health(self) -> dict[str, Any]:
        """What the server says of itself. Raises HamrError while it is not there or not well."""
        return self._ask("/health", None)

    def groups(self, samples: Sequence[tuple[Mapping[str, Any], Sequence[str]]]) -> list[dict[str, Any]]:
        """Both, by group: {"rewards": [...], "records": [...]}."""
        body = {"groups": [{"sample": dict(sample), "responses": list(texts)} for sample, texts in samples]}
        return self._ask("/score", body)["groups"] if samples else []

    def _ask(self, path: str, body: Mapping[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        problem = ""
        for attempt in range(self._attempts):
            if attempt:
                self._sleep(self._pause_s * 2 ** (attempt - 1))
            request = urllib.request.Request(self.url + path, data=data, headers=headers)
            try:
                with self._opener.open(request, timeout=self._timeout_s) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                with error:
                    problem = f"{error.code} {_reason(error.read())}".strip()
                if error.code in (400, 413):
                    raise BadInput(f"{self.url}{path}", problem, "the server refused what it was sent") from error
                if error.code not in _AGAIN:
                    break
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = str(getattr(error, "reason", None) or error) or type(error).__name__
        raise HamrError(f"{self.url}{path}: no answer in {attempt + 1} attempts: {problem}")


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """hamr's server sends nobody elsewhere, and elsewhere is a host that was not checked."""

    def redirect_request(self, *_: Any) -> None:
        return None
