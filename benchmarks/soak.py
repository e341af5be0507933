"""Score many responses through real pools whose endpoint fails in every way, and count what the ledger holds.

    python benchmarks/soak.py --responses 100000
    python benchmarks/soak.py --responses 20000 --add        # continue the same file

A reranker and a judge, both pools of Ray Serve, ask a local endpoint that resets connections, hangs, refuses and
answers with malformed bodies. benchmarks/README.md says what is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from calibration import machine  # noqa: E402
from results_json import write_results  # noqa: E402

from hamr.cascade.replay import replay  # noqa: E402
from hamr.config.pools import PoolConfig, RouterConfig  # noqa: E402
from hamr.config.rewards import RewardsConfig  # noqa: E402
from hamr.data.formats import Formats  # noqa: E402
from hamr.models.bundled import resolve_model  # noqa: E402
from hamr.pools.deployment import start_pools, stop_pools  # noqa: E402
from hamr.pools.router_actor import RouterClient  # noqa: E402
from hamr.telemetry.ledger import Ledger  # noqa: E402
from hamr.types import Failure, Reference, Reply, Rollout, SampleKey, ServiceSample, Turn  # noqa: E402

RUN = "soak"
GROUP = 16
CHUNK = 10_000
DEADLINE_S = 20.0
FAULTS = {"reset": 0.03, "hang": 0.01, "HTTP 500": 0.02, "HTTP 429": 0.001, "malformed": 0.04}
"""Share of the requests that each fault meets."""
MALFORMED = (
    b"", b"<html>", b"\xff\xfe", b"[]", b"{" * 4000, b'{"choices": []}', b'{"choices": [{"message": {"content": 7}}]}',
    b'{"choices": [{"message": {"content": "Perhaps."}}]}', b'{"choices": [{"message": {"content": [{"text": 3}]}}]}',
)  # fmt: skip


class Endpoint:
    """OpenAI-compatible server in a thread of its own. The same question gets the same verdict, if it gets one."""

    def __init__(self, seed: int) -> None:
        self._random, self.met = random.Random(seed), Counter[str]()
        self._up = threading.Event()
        self.port = 0
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._up.wait()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._up.set()
        async with server:
            await server.serve_forever()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(size))
                status, told = await self._answer(body)
                writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nRetry-After: 0.2\r\n" % status)
                writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(told), told))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()

    async def _answer(self, body: dict[str, Any]) -> tuple[int, bytes]:
        [fault] = self._random.choices([*FAULTS, "none"], [*FAULTS.values(), 1 - sum(FAULTS.values())])
        self.met[fault] += 1
        if fault == "reset":
            raise ConnectionResetError
        if fault == "hang":
            await asyncio.sleep(2 * DEADLINE_S)
        if fault.startswith("HTTP"):
            return int(fault[-3:]), b"{}"
        if fault == "malformed":
            return 200, self._random.choice(MALFORMED)
        asked = body["messages"][-1]["content"]
        verdict = ("Yes", "No")[hashlib.sha256(asked.encode()).digest()[0] % 2]
        message = {"role": "assistant", "content": f"Verdict: {verdict}"}
        return 200, json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()


def pools(port: int) -> dict[str, PoolConfig]:
    shared = {"type": "openai", "endpoint": f"http://127.0.0.1:{port}/v1", "logprobs": False, "deadline_s": DEADLINE_S}
    shared |= {"engine": {"num_cpus": 0.1}, "batch_size": 16, "max_ongoing_requests": 64}
    return {
        role: PoolConfig.model_validate({"role": role, "prompt": f"{role}.en", **shared})
        for role in ("reranker", "judge")
    }


def group(number: int) -> list[tuple[ServiceSample, Rollout]]:
    """The responses of one prompt, all different."""
    sample = ServiceSample(
        id=f"s{number}",
        ticket={},
        policy="Help the customer.",
        tools=(),
        history=(Turn(role="customer", content=f"My package {number} is too dear."),),
        references=(Reference(action=Reply(content="May I offer a cheaper one?")),),
    )
    return [
        (
            sample,
            Rollout(
                key=SampleKey(run=RUN, step=number, prompt=sample.id, sample=index),
                prompt_ids=(1,),
                token_ids=(2, 3),
                logprobs=(-0.1, -0.2),
                text=f"Package {number} may cost {index} less.",
                finish_reason="stop",
                versions=(),
                siblings=GROUP,
            ),
        )
        for index in range(GROUP)
    ]


async def soak(first: int, responses: int, at_once: int, folder: Path, endpoint: Endpoint, keep: Any) -> None:
    """Score `responses` from group `first` on, and pass the counts of each chunk to `keep`."""
    config, rewards = pools(endpoint.port), RewardsConfig()
    await start_pools(config, {}, run=RUN, timeout_s=300)
    router = RouterConfig(deadline_s=60.0)
    client = await RouterClient.start(rewards, config, router, resolve_model("tiny"), Formats(), RUN)
    free = asyncio.Semaphore(at_once)

    async def one(pair: tuple[ServiceSample, Rollout]) -> Any:
        async with free:
            return await client.score(*pair)

    try:
        with Ledger(folder / "ledger.sqlite") as ledger:
            for begin in range(0, responses, CHUNK):
                count = min(CHUNK, responses - begin) // GROUP
                start = first + begin // GROUP
                asked = [pair for number in range(start, start + count) for pair in group(number)]
                before, since = Counter(endpoint.met), time.monotonic()
                records = await asyncio.gather(*map(one, asked), return_exceptions=True)
                seconds = time.monotonic() - since
                good = [record for record in records if not isinstance(record, BaseException)]
                added = ledger.add(good)
                again = ledger.add(good)
                texts = {rollout.key: rollout.text for _, rollout in asked}
                due = {pair[1].key for pair in asked}
                rows = list(ledger.rows(since=start))
                keys = [r.key for r in rows]
                keep(
                    {
                        "responses": len(asked),
                        "seconds": round(seconds, 1),
                        "lost": len(due.difference(keys)),
                        "twice": len(keys) - len(set(keys)) + again,
                        "raised": len(records) - len(good),
                        "not added": len(good) - added,
                        "of another response": sum(texts.get(r.key) != r.response for r in rows),
                        "replayed otherwise": sum(replay(r, rewards) != r.total for r in rows),
                        "outcomes": dict(
                            Counter(r.total.kind if isinstance(r.total, Failure) else "scored" for r in rows)
                        ),
                        "faults": dict(endpoint.met - before),
                    }
                )
    finally:
        await client.shutdown()
        await stop_pools(RUN)


def summarise(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    def total(key: str) -> dict[str, int]:
        return dict(sum((Counter(chunk[key]) for chunk in chunks), Counter[str]()))

    counts = (
        "responses",
        "seconds",
        "lost",
        "twice",
        "raised",
        "not added",
        "of another response",
        "replayed otherwise",
    )
    sums = {key: round(sum(chunk[key] for chunk in chunks), 1) for key in counts}
    return sums | {"outcomes": total("outcomes"), "faults": total("faults")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=100_000)
    parser.add_argument("--at-once", type=int, default=256)
    parser.add_argument("--add", action="store_true", help="add the responses to those of the results file")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "soak.json")
    args = parser.parse_args()
    chunks: list[dict[str, Any]] = json.loads(args.out.read_text())["chunks"] if args.add and args.out.is_file() else []

    def keep(chunk: dict[str, Any]) -> None:
        chunks.append(chunk)
        known = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine()}
        args.out.parent.mkdir(exist_ok=True)
        write_results(args.out, {**known, "summary": summarise(chunks), "chunks": chunks})
        print(json.dumps(chunk), flush=True)

    import ray

    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_worker_niceness", "0")
    first = 1 + sum(chunk["responses"] for chunk in chunks) // GROUP
    with tempfile.TemporaryDirectory(prefix="hk", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=4, include_dashboard=False, _temp_dir=folder, object_store_memory=100 << 20, log_to_driver=False
        )
        try:
            asyncio.run(soak(first, args.responses, args.at_once, Path(folder), Endpoint(len(chunks)), keep))
        finally:
            ray.shutdown()
    print(json.dumps(summarise(chunks), indent=1))


if __name__ == "__main__":
    main()
