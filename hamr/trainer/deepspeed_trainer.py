"""One rank of the trainer: takes a batch, runs optimiser steps, returns metrics. Uses DeepSpeed, not Ray.

The batch is cut into micro-batches by tokens. Every loss is divided by the count of the WHOLE batch, over all ranks and
micro-batches, so the step does not depend on the cut.
"""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hamr.algorithms.aggregation import divisors
from hamr.algorithms.losses import Correction, LossTerms, policy_loss, sft_loss
from hamr.algorithms.objectives import configured_objective
from hamr.algorithms.own_objective import checked_objective
from hamr.algorithms.packing import Microbatch, pack, split_minibatches
from hamr.algorithms.schedule import learning_rate
from hamr.algorithms.terms import token_means
from hamr.config.algorithm import AlgorithmConfig
from hamr.config.custom import ARGUMENTS
from hamr.config.schema import TrainerConfig
from hamr.errors import TrainingDiverged
from hamr.garbage import no_collection
from hamr.models.cpu_env import hand_back_freed_memory
from hamr.security.functions import FunctionSource, load_function
from hamr.trainer import adapters
from hamr.trainer import deepspeed_engine as backend
from hamr.trainer.deepspeed_checkpoint import OptimiserProgress, load_state, save_state
from hamr.trainer.deepspeed_weights import (
    full_weights,
    gather,
    overwrite_weight_file,
    side_files,
    weight_metadata,
    write_model_folder,
)
from hamr.trainer.host_memory import Parked, optimizer_states
from hamr.trainer.policy_batch import PolicyBatch, build_batch
from hamr.trainer.policy_model import PolicyModel
from hamr.trainer.state_files import StateFiles
from hamr.types import TrainBatch, TrainGroup

WATCHED = 4
"""Number of matrices used to compare the update with the weights."""


@dataclass(frozen=True, kw_only=True)
class _Work:
    """One micro-batch of this rank. Its log-probabilities are fixed before the first optimiser step on it."""

    batch: PolicyBatch
    proximal_N: Tensor | None = None
    reference_N: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class _Step:
    """This rank's share of one optimiser step, and the whole step over all ranks."""

    work: tuple[_Work, ...]
    whole: TrainBatch


class DeepSpeedTrainer:
    """One rank of a DeepSpeed process group. Every method is collective: all ranks call it with the same arguments.

    `progress` counts the optimiser steps of the current stage and drives the schedule.
    """

    def __init__(
        self,
        config: TrainerConfig,
        algorithm: AlgorithmConfig,
        model_path: Path,
        *,
        total_steps: int,
        rank: int = 0,
        world: int = 1,
        seed: int = 0,
        temperature: float = 1.0,
        init_method: str = "tcp://127.0.0.1:29571",
        loss: FunctionSource | None = None,
    ) -> None:
        self.algorithm, self.rank, self.world, self.seed = algorithm, rank, world, seed
        self.temperature = temperature
        self.own_loss = None if loss is None else checked_objective(load_function(loss, ARGUMENTS["algorithm.loss"]))
        self.engine: Any = None
        self.reference: Any = None
        self._parked: Parked | None = None
        self._parked_reference: Parked | None = None
        self._sender: Any = None
        if not dist.is_initialized():
            with no_collection():
                backend.join_world(config, rank, world, init_method)
        self.writer = StateFiles()
        self.reset(model_path, config=config, total_steps=total_steps)
        self._merged_rank = 0 if self._earlier is None else self._earlier.rank

    @property
    def model(self) -> PolicyModel:
        """The policy, sharded by DeepSpeed under ZeRO-3."""
        return self.engine.module

    # --- stages ---

    def reset(self, model_path: Path, *, config: TrainerConfig, total_steps: int) -> None:
        """Start a new stage from the model in `model_path`: fresh optimiser, schedule, counters and random state.

        That model becomes the reference policy if `algorithm.kl` needs one.
        """
        self._release()
        self.config, self.total_steps = config, total_steps
        self.device = backend.device_of(config)
        self.files = side_files(Path(model_path))
        self._earlier = adapters.read_adapter(Path(model_path) / adapters.FOLDER)  # merged into the model
        self.progress = OptimiserProgress()
        # Seed all ranks equally, so that a fresh adapter is the same; then differently, so that dropout differs.
        torch.manual_seed(self.seed)
        settings = backend.engine_config(config)
        self.reference = self._load_reference(Path(model_path))
        model = backend.load_model(Path(model_path), config, self.temperature, settings)
        self.engine = backend.build_engine(model, config, settings, self.writer)
        self.engine.train()
        hand_back_freed_memory()  # memory used by loading
        torch.manual_seed(self.seed + self.rank)

    @property
    def _measures_kl(self) -> bool:
        return bool(self.algorithm.kl.coef or self.algorithm.kl.measure)

    def _load_reference(self, model_path: Path) -> Any:
        """Load the reference policy. With an adapter, the base model is the reference."""
        if not self._measures_kl or self.config.lora is not None:
            return None
        reference = backend.load_reference(model_path, self.config, self.temperature)
        self._park_reference(reference)
        return reference

    def _park_reference(self, reference: Any) -> None:
        """Move a reference that is whole on this rank to the host, until `_reference_at_hand`."""
        if self.device != "cpu" and self.config.zero_stage < 3:
            self._parked_reference = Parked(reference.parameters())

    @contextmanager
    def _reference_at_hand(self) -> Iterator[None]:
        """Have the reference policy on the device while the body runs."""
        parked, self._parked_reference = self._parked_reference, None
        if parked is not None:
            parked.restore()
        try:
            yield
        finally:
            if parked is not None:
                self._park_reference(self.reference)

    def _release(self) -> None:
        """Free the previous stage's memory before the next one allocates.

        The memory stays with the process; otherwise the next stage would have to request it again page by page.
        """
        if self.engine is not None:
            self.engine.destroy()
        backend.release_modules(self.engine, self.reference)
        self.engine = self.reference = self._parked = self._parked_reference = None
        gc.collect()

    def close(self) -> None:
        """Close the transfer of weights, release the engine and leave the group of ranks."""
        if self._sender is not None:
            self._sender.shutdown()
        self._release()
        dist.destroy_process_group()

    # --- training ---

    def train(self, batch: TrainBatch) -> dict[str, float]:
        """Run `epochs` x `minibatches` optimiser steps on a policy batch, or one on a supervised batch.

        Returns:
            Metrics over all ranks under `policy/` or `sft/`.

        Raises:
            ValueError: The batch is empty.
            TrainingDiverged: `max_bad_steps` consecutive steps had a non-finite gradient norm.
        """
        if not batch.groups:
            raise ValueError("a batch needs at least one group")
        start = time.perf_counter()
        self._restore_states()
        policy = batch.loss == "policy"
        epochs = self.algorithm.epochs if policy else 1
        parts = split_minibatches(batch.groups, self.algorithm.minibatches) if policy else (batch.groups,)
        with self._reference_at_hand() if policy and self._measures_kl else nullcontext():
            steps = [self._share(batch, part, proximal=policy and epochs * len(parts) > 1) for part in parts]
        sums: Counter[str] = Counter()
        norms: list[float] = []
        before = self._watched_weights()
        seconds = {"forward_backward": time.perf_counter() - start, "optimizer": 0.0}
        rate = 0.0
        for _ in range(epochs):
            for step in steps:
                rate = self._set_learning_rate()
                begun = time.perf_counter()
                sums.update(self._forward_backward(step, policy))
                done = time.perf_counter()
                norms.append(self._optimizer_step(policy))
                seconds["forward_backward"] += done - begun
                seconds["optimizer"] += time.perf_counter() - done
        area = "policy" if policy else "sft"
        metrics = _means(area, self._over_ranks(sums), norms)
        metrics |= {f"{area}/learning_rate": rate, f"{area}/tokens": float(batch.tokens)}
        metrics[f"{area}/update_ratio"] = _update_ratio(before, self._watched_weights())
        metrics[f"{area}/skipped_steps"] = float(self.progress.skipped)
        metrics |= {f"{area}/{name}": float(self.model.layout == name) for name in ("shared_prompt", "padded")}
        metrics[f"{area}/liger"] = float(self.model.liger)
        return metrics | {f"timing/train/{phase}": value for phase, value in seconds.items()}

    def _watched_weights(self) -> list[Tensor]:
        """Copy a few matrices spread over the depth."""
        matrices = [p for p in self.model.parameters() if p.requires_grad and backend.dimensions(p) > 1]
        chosen = matrices[:: max(1, len(matrices) // WATCHED)][:WATCHED]
        with gather(chosen):
            return [p.detach().clone() for p in chosen]

    def _share(self, whole: TrainBatch, groups: Sequence[TrainGroup], proximal: bool) -> _Step:
        """Return this rank's micro-batches of one optimiser step, with the log-probabilities that the loss needs."""
        work = []
        for microbatch in self._plan(groups):
            batch, fixed = build_batch(groups, microbatch, self.model.layout, self.device), {}
            if proximal:
                fixed["proximal_N"] = self._logprobs(batch)
            if whole.loss == "policy" and self._measures_kl:
                fixed["reference_N"] = self._reference_logprobs(batch)
            work.append(_Work(batch=batch, **fixed))
        return _Step(work=tuple(work), whole=replace(whole, groups=tuple(groups)))

    def _plan(self, groups: Sequence[TrainGroup]) -> tuple[Microbatch, ...]:
        """Return this rank's micro-batches."""
        budget = self.config.tokens_per_microbatch
        return pack(groups, budget=budget, ranks=self.world, layout=self.model.layout)[self.rank]

    def _forward_backward(self, step: _Step, policy: bool) -> dict[str, float]:
        """Compute the gradients of the whole step. Return sums over this rank's tokens."""
        sums: dict[str, Tensor] = {}
        for i, work in enumerate(step.work):
            self.engine.set_gradient_accumulation_boundary(i == len(step.work) - 1)
            terms = self._loss(work, step, policy)
            # DeepSpeed averages over ranks, but the loss is already divided by the whole batch's count.
            self.engine.backward(terms.loss * self.world)
            for name, value in terms.sums.items():
                sums[name] = sums.get(name, 0.0) + value.double()
        return {name: float(value) for name, value in sums.items()}

    def _loss(self, work: _Work, step: _Step, policy: bool) -> LossTerms:
        a, b = self.algorithm, work.batch
        with self._sampled_at(self.temperature if policy else 1.0):
            logprobs, entropies = self.engine(b)
        normaliser = divisors(step.whole, b.mask_N, b.owner_N)
        if not policy:
            return sft_loss(logprobs, b.mask_N, normaliser=normaliser)
        return policy_loss(
            logprobs,
            work.proximal_N,
            b.advantages_N,
            b.mask_N,
            normaliser=normaliser,
            behaviour_logprobs=b.behaviour_N,
            correction=Correction(**a.importance.model_dump()),
            entropies=entropies,
            entropy_coef=a.entropy_coef,
            reference_logprobs=work.reference_N,
            kl_coef=a.kl.coef,
            kl_estimator=a.kl.estimator,
            objective=self.own_loss or configured_objective(a),
            sequences=b.owner_N,
        )

    def _set_learning_rate(self) -> float:
        c = self.config
        rate = learning_rate(
            self.progress.step,
            peak=c.learning_rate,
            total_steps=self.total_steps,
            schedule=c.schedule,
            warmup_frac=c.warmup_frac,
            minimum=c.min_learning_rate,
        )
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate * group.get(backend.RATE_SCALE, 1.0)
        return rate

    def _optimizer_step(self, policy: bool) -> float:
        """Apply one update, or none if the gradient norm is not finite. Return the norm before clipping."""
        norm = self._plain_step() if self.config.zero_stage == 0 else self._zero_step()
        self.progress = self.progress.after(applied=math.isfinite(norm))
        if self.progress.bad_in_a_row >= self.config.max_bad_steps:
            sft = "experiment.sft.learning_rate (hamr sft: trainer.learning_rate)"
            key = "trainer.learning_rate" if policy else sft
            raise TrainingDiverged(
                f"{self.progress.bad_in_a_row} consecutive optimiser steps had a non-finite gradient norm; lower "
                f"{key}={self.config.learning_rate:g} or resume from an earlier checkpoint"
            )
        return norm

    def _zero_step(self) -> float:
        self.engine.step()
        if not self.engine.was_step_applied():
            return math.inf
        return float(self.engine.get_global_grad_norm())

    def _plain_step(self) -> float:
        """Check the norm first: without ZeRO, DeepSpeed would clip by a non-finite norm and step."""
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None]))
        if math.isfinite(norm):
            self.engine.step()
        else:
            self.engine.zero_grad()
            self.engine.optimizer.zero_grad()
        return norm

    def _over_ranks(self, sums: Mapping[str, float]) -> dict[str, float]:
        if self.world == 1:
            return dict(sums)
        names = sorted(sums)
        values = torch.tensor([sums[n] for n in names], dtype=torch.float64, device=self.device)
        dist.all_reduce(values)
        return dict(zip(names, values.tolist(), strict=True))

    def offload_states(self) -> None:
        """Move what only an optimiser step needs to the host until the next call that needs it, and release the memory
        that this process's allocator caches."""
        if self._parked is None:
            self._parked = Parked(optimizer_states(self.engine))
        if self.device != "cpu":
            gc.collect()
            torch.cuda.empty_cache()

    def _restore_states(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.restore()

    # --- log-probabilities ---

    @contextmanager
    def _sampled_at(self, temperature: float) -> Iterator[None]:
        """Compute the log-probabilities of sampling at this temperature. SFT learns the model's own distribution, 1."""
        self.model.head.temperature, usual = temperature, self.model.head.temperature
        try:
            yield
        finally:
            self.model.head.temperature = usual

    def logprobs(self, groups: Sequence[TrainGroup], temperature: float = 1.0) -> list[list[tuple[float, ...]]]:
        """Return log p of every completion token, by group, sequence and token; the same on every rank."""
        found: list[tuple[int, int, tuple[float, ...]]] = []
        with self._sampled_at(temperature):
            for microbatch in self._plan(groups):
                batch = build_batch(groups, microbatch, self.model.layout, self.device)
                values = self._logprobs(batch).tolist()
                for piece in microbatch:
                    for i in piece.sequences:
                        count = len(groups[piece.group].sequences[i].token_ids)
                        found.append((piece.group, i, tuple(values[:count])))
                        del values[:count]
        result: list[list[tuple[float, ...]]] = [[()] * len(g.sequences) for g in groups]
        for group, i, row in self._from_all(found):
            result[group][i] = row
        return result

    def _from_all(self, found: list[Any]) -> list[Any]:
        if self.world == 1:
            return found
        everywhere: list[Any] = [None] * self.world
        dist.all_gather_object(everywhere, found)
        return [item for part in everywhere for item in part]

    @torch.no_grad()
    def _logprobs(self, batch: PolicyBatch) -> Tensor:
        self.engine.eval()
        logprobs, _ = self.engine(batch)
        self.engine.train()
        return logprobs

    @torch.no_grad()
    def _reference_logprobs(self, batch: PolicyBatch) -> Tensor:
        if self.reference is None:
            with self.model.without_adapter():
                return self._logprobs(batch)
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=backend.autocast_only(self.config)):
            logprobs, _ = self.reference(batch)
        return logprobs

    # --- weights and checkpoints ---

    def write_weights(self, path: Path, dtype: str | None = None) -> None:
        """Write every weight to one safetensors file, the tied head included, adapters merged. Overwrites the file."""
        chosen = getattr(torch, dtype or self.config.dtype)
        overwrite_weight_file(self.model, Path(path), chosen, self.rank)

    def open_transfer(self, address: Any, client: Any) -> None:
        """Connect to the engines, over CUDA IPC if there is no address. Blocks until every engine has joined."""
        from hamr.models.weights import open_sender

        dtype = getattr(torch, self.config.dtype)
        if self._sender is not None:
            self._sender.shutdown()
        self._sender = open_sender(
            address,
            self.rank,
            client,
            lambda: weight_metadata(self.model, dtype),
            lambda: full_weights(self.model, dtype),
        )

    def send_weights(self) -> None:
        """Send the present weights to the engines over NCCL or CUDA IPC. All ranks take part."""
        self._sender.send_weights()

    def copy_state(self, folder: Path) -> None:
        """Copy what `save` writes to host memory, for `write_copy`. Small files are written immediately."""
        with self.writer.holding():
            self.save(folder)

    def write_copy(self) -> None:
        """Write the copied files. Another thread may train meanwhile."""
        self.writer.write_held()

    def save(self, folder: Path) -> None:
        """Write the model to `folder/policy` (Hugging Face) and the state for exact resumption to `folder/trainer`."""
        folder = Path(folder)
        self._restore_states()
        self.save_policy(folder)
        if self.reference is not None:
            # A resumed run starts from another model than this stage did, but its reference must stay the same.
            model, dtype = getattr(self.reference, "module", self.reference), backend.weight_dtype(self.config)
            with self._reference_at_hand():
                write_model_folder(model, folder / "reference", dtype, self.rank, self.files, self.writer.open)
        save_state(self.engine, folder / "trainer", self.config, self.rank, self.world, self.progress)

    def save_policy(self, folder: Path) -> None:
        """Write `folder/policy` only, which suffices to start a stage; also the LoRA adapter that is merged into it."""
        dtype, policy = getattr(torch, self.config.dtype), Path(folder) / "policy"
        write_model_folder(self.model, policy, dtype, self.rank, self.files, self.writer.open)
        if self.config.lora is not None:
            adapter = self._joined_adapter()
            if self.rank == 0:
                adapters.write_adapter(adapter, policy / adapters.FOLDER)

    def _joined_adapter(self) -> adapters.Adapter:
        """Return the trained adapter joined to those of earlier stages. Collective."""
        adapter = adapters.trained_adapter(self.model)
        return adapter if self._earlier is None else self._earlier.join(adapter)

    def adapter_files(self) -> dict[str, bytes]:
        """Return the files of the adapter on the model that this trainer started from. Collective under ZeRO-3."""
        adapter = self._joined_adapter()
        if self._merged_rank:
            adapter = adapter.part(self._merged_rank, adapter.rank)
        return adapters.adapter_files(adapter) if self.rank == 0 else {}

    def load(self, folder: Path) -> None:
        """Restore exactly the state of `save`. Call right after construction or `reset`.

        Another number of ranks or ZeRO stage may have written it. Raises RunFolderError if there is no state.
        """
        folder = Path(folder)
        self._restore_states()
        if self.reference is not None and (folder / "reference").is_dir():
            backend.release_modules(self.reference)
            self.reference = self._parked_reference = None
            self.reference = self._load_reference(folder / "reference")
        self.progress = load_state(self.engine, folder / "trainer", self.config, self.rank, self.world)
        if self.config.lora is not None:
            written, own = adapters.read_adapter(folder / "policy" / adapters.FOLDER), self.config.lora.rank
            self._earlier = written.part(0, written.rank - own) if written and written.rank > own else None


def _update_ratio(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Return the norm of the change over the norm of the weights."""
    change = math.hypot(*(_norm(new - old) for old, new in zip(before, after, strict=True)))
    return change / max(math.hypot(*map(_norm, before)), 1e-15)


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))


def _means(area: str, sums: dict[str, float], norms: list[float]) -> dict[str, float]:
    """Return means over the tokens of all steps; loss and (finite) gradient norm are means over the steps."""
    means = {f"{area}/loss": sums.pop("loss") / len(norms)}
    means |= {f"{area}/{name}": value for name, value in token_means(sums).items()}
    finite = [n for n in norms if math.isfinite(n)]
    if finite:
        means[f"{area}/grad_norm"] = math.fsum(finite) / len(finite)
    return means
