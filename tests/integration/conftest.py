"""Real Ray and real engines on the bundled model `tiny`.

An engine lives in a Ray actor even where Ray is not what is tested: vLLM takes one engine per process, and reads its
environment when it is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hamr.config.pools import EngineConfig
from hamr.garbage import collect_rarely
from hamr.models.bundled import resolve_model
from hamr.protocols import GenerationRequest, SamplingConfig
from hamr.types import SampleKey

ENGINE = EngineConfig(threads=1, kv_cache_mb=32, max_num_seqs=32, block_size=32)


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The folder of the bundled model `tiny`: a random Qwen3 with tied embeddings."""
    return resolve_model("tiny")


@pytest.fixture(scope="session")
def tiny_untied(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` with a head of its own."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("untied")
    tied = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    config = tied.config
    config.tie_word_embeddings = False
    model = type(tied)(config)
    weights = tied.state_dict()
    weights["lm_head.weight"] = weights["lm_head.weight"].flip(0).clone()
    model.load_state_dict(weights)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def prompt_ids(tiny: Path) -> tuple[int, ...]:
    """A chat prompt of more than two KV blocks."""
    from hamr.models.tokenizer import load_tokenizer

    words = "Hello, I would like to cancel my mobile package because it is too expensive. " * 4
    return tuple(load_tokenizer(tiny).chat_ids([{"role": "user", "content": words}]))


@pytest.fixture(scope="session")
def request_of() -> Callable[..., GenerationRequest]:
    """Builds a request: `request_of(prompt_ids, name, samples, tokens, temperature=…)`, seeds 0, 1, ..."""

    def build(
        prompt: tuple[int, ...], name: str = "p", samples: int = 4, tokens: int = 16, **sampling: Any
    ) -> GenerationRequest:
        return GenerationRequest(
            prompt_ids=prompt,
            keys=tuple(SampleKey(run="test", step=0, prompt=name, sample=i) for i in range(samples)),
            seeds=tuple(range(samples)),
            sampling=SamplingConfig(max_new_tokens=tokens, **sampling),
        )

    return build


class Oracle:
    """transformers' own float32 model on the same weights."""

    def __init__(self, path: Path, noise: float = 0.0) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        if noise:
            generator = torch.Generator().manual_seed(7)
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.add_(noise * torch.randn(parameter.shape, generator=generator))

    def distributions(self, prompt: tuple[int, ...], tokens: tuple[int, ...], temperature: float = 1.0) -> Any:
        """log p over the vocabulary at each of `tokens` and at the position after them: (len(tokens) + 1, V)."""
        import torch

        with torch.no_grad():
            logits = self.model(torch.tensor([[*prompt, *tokens]])).logits[0].float()
        return torch.log_softmax(logits[len(prompt) - 1 :] / temperature, -1)

    def logprobs(self, prompt: tuple[int, ...], tokens: tuple[int, ...], temperature: float = 1.0) -> list[float]:
        rows = self.distributions(prompt, tokens, temperature)
        return [rows[i, token].item() for i, token in enumerate(tokens)]

    def save(self, path: Path) -> Path:
        """Every key, the tied head included, as one safetensors file."""
        from safetensors.torch import save_file

        save_file({k: v.clone().contiguous() for k, v in self.model.state_dict().items()}, str(path))
        return path


@pytest.fixture(scope="session")
def oracle() -> type[Oracle]:
    return Oracle


@pytest.fixture(scope="session")
def start_engine(local_ray: None) -> Iterator[Callable[..., Any]]:
    """`start_engine(path)` gives the handle of an actor that holds one float32 engine; all are killed at the end."""
    import ray

    from hamr.rollout.vllm_settings import engine_env

    class EngineHost:
        def __init__(self, path: str, engine: EngineConfig, max_context: int, adapter_rank: int) -> None:
            collect_rarely()
            from hamr.rollout.vllm_engine import VllmEngine

            self.engine = VllmEngine(path, engine, "float32", max_context, seed=0, adapter_rank=adapter_rank)

        async def ready(self) -> int:
            return os.getpid()

        async def generate(self, requests: list[GenerationRequest]) -> list[Any]:
            return [rollout async for rollout in self.engine.generate(requests)]

        async def generate_across(self, requests: list[GenerationRequest], new: Any, version: int) -> list[Any]:
            """Generate while new weights (a path), or an adapter, are loaded after the first response."""
            load = self.engine.load_weights if isinstance(new, str) else self.engine.load_adapter
            rollouts = []
            async for rollout in self.engine.generate(requests):
                if not rollouts:
                    await load(new, version)
                rollouts.append(rollout)
            return rollouts

        async def complete_all(self, prompts: list[Any], sampling: SamplingConfig, stop: list[str]) -> list[Any]:
            import asyncio

            tasks = [self.engine.complete(p, sampling, stop=stop, seed=i) for i, p in enumerate(prompts)]
            return await asyncio.gather(*tasks)

        async def classify(self, prompt: Any, labels: list[int]) -> Mapping[int, float]:
            return (await self.engine.classify(prompt, labels)).logprobs

        async def load_weights(self, path: str, version: int) -> float:
            return await self.engine.load_weights(path, version)

        async def load_adapter(self, files: Mapping[str, bytes], version: int) -> None:
            await self.engine.load_adapter(files, version)

        async def load_in_place(self, path: str) -> bool:
            """Load new weights; return whether this happened in place or through vLLM's loader."""
            [in_place] = self.engine._engine.collective_rpc("load_weight_file", args=(path,))
            self.engine._engine.reset_prefix_cache()
            return bool(in_place)

        async def leave_early(self, requests: list[GenerationRequest]) -> int:
            """Take one response, stop the iteration and return the number of requests still active in the engine."""
            responses = self.engine.generate(requests)
            await anext(responses)
            await responses.aclose()
            return await self.engine.count_unfinished()

        async def die_while_generating(self, requests: list[GenerationRequest]) -> list[str]:
            """Break the stepping thread under two waiters; return the errors of both and of a later request."""
            import asyncio

            def broken() -> None:
                raise RuntimeError("the step broke")

            self.engine._engine.step = broken
            waiters = (self.generate(requests), self.classify(requests[0].prompt_ids, [1]))
            told = await asyncio.wait_for(asyncio.gather(*waiters, return_exceptions=True), 60)
            [late] = await asyncio.gather(self.generate(requests), return_exceptions=True)
            return [f"{type(error).__name__}: {error}" for error in (*told, late)]

    started = []

    def start(
        path: Path, engine: EngineConfig = ENGINE, max_context: int = 512, adapter_rank: int = 0, **env: str
    ) -> Any:
        actor = (
            ray.remote(EngineHost)
            .options(num_cpus=0.5, runtime_env={"env_vars": engine_env(engine) | env})
            .remote(str(path), engine, max_context, adapter_rank)
        )
        started.append(actor)
        return actor

    yield start
    for actor in started:
        ray.kill(actor)
