"""The engine against transformers: sampled tokens, reported log-probabilities and weight updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hamr.errors import BadInput
from hamr.protocols import GenerationRequest, SamplingConfig

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

TOLERANCE = 1e-3
"""float32 engine against float32 transformers (nats); a stale head or KV cache is off by far more."""


@pytest.fixture(scope="module")
def host(start_engine: Callable[..., Any], tiny: Path) -> Iterator[Any]:
    import ray

    actor = start_engine(tiny)
    ray.get(actor.ready.remote(), timeout=300)
    return actor


@pytest.fixture
def fresh(host: Any, tiny: Path, oracle: Any, tmp_path: Path) -> Any:
    """The engine on tiny's own weights, whatever an earlier test loaded."""
    import ray

    ray.get(host.load_weights.remote(str(oracle(tiny).save(tmp_path / "original.safetensors")), 0), timeout=120)
    return host


def ask(reference: Any) -> Any:
    import ray

    return ray.get(reference, timeout=240)


def gap(rollouts: list[Any], model: Any, temperature: float = 1.0) -> float:
    return max(
        abs(said - true)
        for r in rollouts
        for said, true in zip(r.logprobs, model.logprobs(r.prompt_ids, r.token_ids, temperature), strict=True)
    )


def test_same_seed_reproduces_and_other_seeds_differ(
    fresh: Any, prompt_ids: tuple[int, ...], request_of: Callable[..., GenerationRequest]
) -> None:
    request = request_of(prompt_ids, samples=6, tokens=12)
    first, second = ({r.key: r.token_ids for r in ask(fresh.generate.remote([request]))} for _ in range(2))
    assert first == second
    assert len(set(first.values())) == 6


def test_response_is_complete(
    fresh: Any, prompt_ids: tuple[int, ...], request_of: Callable[..., GenerationRequest]
) -> None:
    for rollout in ask(fresh.generate.remote([request_of(prompt_ids, samples=3, tokens=10)])):
        assert len(rollout.logprobs) == len(rollout.token_ids)
        assert rollout.finish_reason == ("length" if len(rollout.token_ids) == 10 else "stop")
        [span] = rollout.versions
        assert (span.version, span.start, span.end) == (0, 0, len(rollout.token_ids))
        assert rollout.prompt_ids == prompt_ids
        assert rollout.seed == rollout.key.sample


def test_end_of_sequence_token_is_included(
    fresh: Any, tiny: Path, prompt_ids: tuple[int, ...], request_of: Callable[..., GenerationRequest], oracle: Any
) -> None:
    """The head strongly prefers the end-of-sequence token, so that it is sampled first."""
    import torch

    from hamr.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(tiny)
    model = oracle(tiny)
    weights = {k: v.clone() for k, v in model.model.state_dict().items()}
    last = model.model.model(torch.tensor([list(prompt_ids)])).last_hidden_state[0, -1]
    weights["lm_head.weight"][tokenizer.eos_id] = last / last.norm() * 10
    path = Path(fresh_file(weights))
    ask(fresh.load_weights.remote(str(path), 1))
    [rollout] = ask(fresh.generate.remote([request_of(prompt_ids, samples=1, tokens=10)]))
    path.unlink()
    assert rollout.token_ids == (tokenizer.eos_id,)
    assert (rollout.finish_reason, rollout.text) == ("stop", "")


def fresh_file(weights: dict[str, Any]) -> str:
    import tempfile

    from safetensors.torch import save_file

    with tempfile.NamedTemporaryFile(suffix=".safetensors", delete=False) as file:
        save_file(weights, file.name)
    return file.name


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_match_the_sampling_distribution(
    fresh: Any,
    tiny: Path,
    prompt_ids: tuple[int, ...],
    request_of: Callable[..., GenerationRequest],
    oracle: Any,
    temperature: float,
) -> None:
    rollouts = ask(fresh.generate.remote([request_of(prompt_ids, samples=4, tokens=24, temperature=temperature)]))
    assert gap(rollouts, oracle(tiny), temperature) < TOLERANCE


def test_classify_returns_label_logprobs(fresh: Any, tiny: Path, prompt_ids: tuple[int, ...], oracle: Any) -> None:
    from hamr.models.tokenizer import load_tokenizer

    labels = [load_tokenizer(tiny).encode(word)[0] for word in ("Yes", "Part", "No")]
    said = ask(fresh.classify.remote(prompt_ids, labels))
    expected = oracle(tiny).distributions(prompt_ids, ())[0]
    assert said == pytest.approx({label: expected[label].item() for label in labels}, abs=TOLERANCE)


def test_samples_of_a_prompt_share_its_prefill(fresh: Any, prompt_ids: tuple[int, ...]) -> None:
    """Of N concurrent requests one computes the prompt; the others hit all its full blocks in the prefix cache."""
    unseen = (*prompt_ids[::-1], 5, 6)
    answers = ask(fresh.complete_all.remote([unseen] * 8, SamplingConfig(max_new_tokens=4), []))
    blocks = (len(unseen) - 1) // 32 * 32
    assert blocks >= 64
    assert sorted(answer.cached_tokens for answer in answers) == [0, *[blocks] * 7]


def test_prompts_exceeding_one_step_are_generated_correctly(
    fresh: Any, tiny: Path, request_of: Callable[..., GenerationRequest], oracle: Any
) -> None:
    """Six seeded prompts of 450 tokens exceed the 2,048 tokens of one step; none may be truncated."""
    asked = [request_of(tuple((7 * i + j * j) % 3000 + 20 for j in range(450)), f"p{i}", 2, 6) for i in range(6)]
    rollouts = ask(fresh.generate.remote(asked))
    assert {r.key for r in rollouts} == {key for request in asked for key in request.keys}
    assert gap(rollouts, oracle(tiny)) < TOLERANCE


def test_stop_string_ends_the_text(fresh: Any, tiny: Path, prompt_ids: tuple[int, ...]) -> None:
    from hamr.models.tokenizer import load_tokenizer

    greedy = SamplingConfig(temperature=0.0, max_new_tokens=24)
    [whole] = ask(fresh.complete_all.remote([prompt_ids], greedy, []))
    stop = load_tokenizer(tiny).decode(whole.token_ids[5:7])
    [cut] = ask(fresh.complete_all.remote([prompt_ids], greedy, [stop]))
    assert whole.text == load_tokenizer(tiny).decode(whole.token_ids)
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]


def check_new_weights(engine: Any, path: Path, asked: list[GenerationRequest], oracle: Any, folder: Path) -> None:
    ask(engine.generate.remote(asked))  # the prompt is in the prefix cache, under the old weights
    new = oracle(path, noise=0.02)
    ask(engine.load_weights.remote(str(new.save(folder / "new.safetensors")), 3))
    rollouts = ask(engine.generate.remote(asked))
    assert gap(rollouts, new) < TOLERANCE
    assert gap(rollouts, oracle(path)) > 10 * TOLERANCE, "the new weights must differ, or the test shows nothing"
    assert {span.version for r in rollouts for span in r.versions} == {3}


def test_new_weights_reach_head_and_cache(
    host: Any,
    tiny: Path,
    prompt_ids: tuple[int, ...],
    request_of: Callable[..., GenerationRequest],
    oracle: Any,
    tmp_path: Path,
) -> None:
    check_new_weights(host, tiny, [request_of(prompt_ids, samples=4, tokens=16)], oracle, tmp_path)


@pytest.mark.deep
def test_untied_head_is_updated(
    start_engine: Callable[..., Any],
    tiny_untied: Path,
    prompt_ids: tuple[int, ...],
    request_of: Callable[..., GenerationRequest],
    oracle: Any,
    tmp_path: Path,
) -> None:
    engine = start_engine(tiny_untied)
    check_new_weights(engine, tiny_untied, [request_of(prompt_ids, samples=4, tokens=16)], oracle, tmp_path)


def test_weights_are_loaded_in_place_or_through_vllm(
    fresh: Any, tiny: Path, prompt_ids: tuple[int, ...], request_of: Callable[..., GenerationRequest], oracle: Any
) -> None:
    """A name that vLLM skips has no parameter to copy into, so these weights go through vLLM. The order is free."""
    import torch

    asked = [request_of(prompt_ids, samples=2, tokens=8)]
    for seed, other in enumerate([{}, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, {}]):
        new = oracle(tiny, noise=0.02 + 0.01 * seed)
        path = Path(fresh_file({k: v.clone() for k, v in new.model.state_dict().items()} | other))
        assert ask(fresh.load_in_place.remote(str(path))) is not bool(other)
        path.unlink()
        assert gap(ask(fresh.generate.remote(asked)), new) < TOLERANCE


def test_update_in_flight_records_version_spans(
    fresh: Any,
    tiny: Path,
    prompt_ids: tuple[int, ...],
    request_of: Callable[..., GenerationRequest],
    oracle: Any,
    tmp_path: Path,
) -> None:
    check_weights_in_flight(fresh, tiny, prompt_ids, request_of, oracle, tmp_path)


def check_weights_in_flight(
    engine: Any,
    model: Path,
    prompt: tuple[int, ...],
    request_of: Callable[..., GenerationRequest],
    oracle: Any,
    folder: Path,
) -> None:
    old, new = oracle(model), oracle(model, noise=0.02)
    check_update_in_flight(engine, str(new.save(folder / "new.safetensors")), old, new, prompt, request_of)


def check_update_in_flight(
    engine: Any, update: Any, old: Any, new: Any, prompt: tuple[int, ...], request_of: Callable[..., GenerationRequest]
) -> None:
    asked = [request_of(prompt, "short", 1, 4), request_of(prompt[::-1], "long", 2, 300)]
    rollouts = ask(engine.generate_across.remote(asked, update, 5))
    spanning = [r for r in rollouts if len(r.versions) == 2]
    assert spanning, "no response was in flight at the update"
    for rollout in spanning:
        before, after = rollout.versions
        assert (before.version, after.version, before.start, after.end) == (0, 5, 0, len(rollout.token_ids))
        assert before.end == after.start
        old_says, new_says = (m.logprobs(rollout.prompt_ids, rollout.token_ids) for m in (old, new))
        expected = [*old_says[: before.end], *new_says[before.end :]]
        assert rollout.logprobs == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.deep
def test_adapter_gives_the_logprobs_of_the_merged_weights(
    start_engine: Callable[..., Any],
    tiny: Path,
    prompt_ids: tuple[int, ...],
    request_of: Callable[..., GenerationRequest],
    oracle: Any,
    tmp_path: Path,
) -> None:
    """Also from the middle of a response on, and when an adapter of another rank replaces it."""
    import torch
    from peft import LoraConfig, get_peft_model

    engine = start_engine(tiny, adapter_rank=12)
    adapters, merged = [], []
    for rank, layers in ((4, ["q_proj", "o_proj", "down_proj"]), (12, ["k_proj", "v_proj", "gate_proj", "up_proj"])):
        torch.manual_seed(rank)
        model = oracle(tiny)
        adapted = get_peft_model(model.model, LoraConfig(r=rank, lora_alpha=8, target_modules=layers))
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(std=0.05)
        adapted.save_pretrained(tmp_path / str(rank))
        adapters.append({file.name: file.read_bytes() for file in (tmp_path / str(rank)).glob("adapter_*")})
        model.model = adapted.merge_and_unload()
        merged.append(model)
    check_update_in_flight(engine, adapters[0], oracle(tiny), merged[0], prompt_ids, request_of)
    ask(engine.load_adapter.remote(adapters[1], 6))
    rollouts = ask(engine.generate.remote([request_of(prompt_ids, samples=4, tokens=16)]))
    assert {span.version for r in rollouts for span in r.versions} == {6}
    assert gap(rollouts, merged[1]) < TOLERANCE
    assert gap(rollouts, merged[0]) > 10 * TOLERANCE


def test_weights_without_a_head_are_rejected(fresh: Any, tiny: Path, oracle: Any) -> None:
    weights = {k: v.clone() for k, v in oracle(tiny).model.state_dict().items() if k != "lm_head.weight"}
    path = Path(fresh_file(weights))
    with pytest.raises(ValueError, match=r"lm_head\.weight"):
        ask(fresh.load_weights.remote(str(path), 1))
    path.unlink()


@pytest.mark.parametrize("length", [0, 512])
def test_prompt_that_fills_the_context_is_rejected(
    fresh: Any, length: int, request_of: Callable[..., GenerationRequest]
) -> None:
    with pytest.raises(BadInput, match="max_context"):
        ask(fresh.generate.remote([request_of((7,) * length)]))


def test_leaving_early_aborts_the_rest(
    fresh: Any, prompt_ids: tuple[int, ...], request_of: Callable[..., GenerationRequest]
) -> None:
    asked = [request_of(prompt_ids, "short", 1, 2), request_of(prompt_ids, "long", 6, 300)]
    assert ask(fresh.leave_early.remote(asked)) == 0


def test_answer_mark_records_tokens_and_time_and_may_stop(
    fresh: Any, prompt_ids: tuple[int, ...], request_of: Callable[..., GenerationRequest]
) -> None:
    plain = request_of(prompt_ids, samples=2, tokens=24)
    said = {r.key: r for r in ask(fresh.generate.remote([plain]))}
    key, whole = next(iter(said.items()))
    assert (whole.answer_tokens, whole.answer_s) == (None, None)
    mark = whole.text[len(whole.text) // 2 : len(whole.text) // 2 + 4]
    end = whole.text.index(mark) + len(mark)
    for stop in ((), (mark,)):
        sampling = replace(plain.sampling, mark=mark, stop=stop)
        found = {r.key: r for r in ask(fresh.generate.remote([replace(plain, sampling=sampling)]))}[key]
        assert 0 < found.answer_tokens < len(whole.token_ids)
        assert 0.0 < found.answer_s <= found.seconds
        assert found.token_ids == whole.token_ids[: len(found.token_ids)]
        if stop:
            assert found.text == whole.text[:end]
            assert len(found.token_ids) == found.answer_tokens == len(found.logprobs)
        else:
            assert found.text == whole.text and found.logprobs == pytest.approx(whole.logprobs)


@pytest.mark.parametrize("extra", [{"min_tokens": 8}, {"allowed_token_ids": [5, 6, 7]}, {"min_p": 1.0}, {"top_k": 1}])
def test_extra_sampling_parameters_change_what_is_drawn(
    fresh: Any, prompt_ids: tuple[int, ...], request_of: Callable[..., GenerationRequest], extra: dict[str, Any]
) -> None:
    """Also with the fast sampler of CPU engines, which leaves such requests to vLLM's."""
    request = request_of(prompt_ids, samples=4, tokens=8)
    sampling = replace(request.sampling, extra=extra)
    drawn = {r.token_ids for r in ask(fresh.generate.remote([replace(request, sampling=sampling)]))}
    if "min_tokens" in extra:
        assert {len(ids) for ids in drawn} == {8}
    elif "allowed_token_ids" in extra:
        assert {token for ids in drawn for token in ids} <= {5, 6, 7}
    else:
        assert len(drawn) == 1, "only the most likely token is left"


def test_engine_death_fails_all_requests(
    fresh: Any, prompt_ids: tuple[int, ...], request_of: Callable[..., GenerationRequest]
) -> None:
    """This test ends the file's engine, so it is the last one."""
    told = ask(fresh.die_while_generating.remote([request_of(prompt_ids)]))
    assert len(told) == 3
    for words in told:
        assert words.startswith("EngineDied")
        assert "the step broke" in words
