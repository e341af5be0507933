"""Extension of vLLM's own worker (`worker_extension_cls`), in the worker's process."""

from __future__ import annotations

from hamr.rollout.vllm_adapter import adapter_request
from hamr.rollout.vllm_reload import InPlaceReload, drop_idle_packing


class WorkerExtension:
    """Mixin of vLLM's worker."""

    def load_weight_file(self, path: str) -> bool:
        """Replace every weight by the file's. Return True if done in place, False if vLLM rebuilt its layers.

        The file must contain `lm_head.weight` even if it is tied to the embeddings. The CPU backend keeps a repacked
        copy of the head, which would silently stay at the old version.
        """
        from safetensors import safe_open

        runner = self.model_runner  # type: ignore[attr-defined]
        with safe_open(path, "pt") as tensors:
            names = list(tensors.keys())
            if "lm_head.weight" not in names:
                raise ValueError(f"{path} lacks lm_head.weight; write it too, tied or not")
            shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in names}
            in_place = InPlaceReload.of(runner.get_model(), shapes)
            if in_place is None:
                self.reload_weights(weights_iterator=((name, tensors.get_tensor(name)) for name in names))  # type: ignore[attr-defined]
            else:
                in_place.load(tensors.get_tensor)
        return in_place is not None

    def add_empty_adapter(self) -> None:
        """Add an adapter that changes nothing. A request selects its adapter when it starts, so one has to be there
        before the first is trained."""
        self.model_runner.lora_manager.add_dummy_lora(adapter_request(), rank=1)  # type: ignore[attr-defined]

    def speed_up_cpu(self) -> None:
        """Install the sampler and kernels that are faster on a CPU than vLLM's defaults."""
        from hamr.rollout.vllm_kernels import use_fused_kernels
        from hamr.rollout.vllm_sampler import LeanSampler

        runner = self.model_runner  # type: ignore[attr-defined]
        use_fused_kernels(runner.model)
        drop_idle_packing(runner.model)
        runner.sampler = LeanSampler(runner.sampler.logprobs_mode, runner.sampler.use_fp64_gumbel)
