"""What hamr adds to vLLM's own worker, in whichever process that worker lives (`worker_extension_cls`)."""

from __future__ import annotations

from hamr.rollout.vllm_reload import InPlaceReload, drop_idle_packing


class WorkerExtension:
    """Mixed into vLLM's worker."""

    def load_weight_file(self, path: str) -> bool:
        """Replaces every weight by the file's; True where that went in place, False where vLLM made its layers anew.
        The file must hold `lm_head.weight` even where it is tied to the embeddings: the CPU backend keeps a repacked
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

    def speed_up_cpu(self) -> None:
        """A sampler and kernels that cost a CPU less than those that vLLM chooses there."""
        from hamr.rollout.vllm_kernels import use_fused_kernels
        from hamr.rollout.vllm_sampler import LeanSampler

        runner = self.model_runner  # type: ignore[attr-defined]
        use_fused_kernels(runner.model)
        drop_idle_packing(runner.model)
        runner.sampler = LeanSampler(runner.sampler.logprobs_mode, runner.sampler.use_fp64_gumbel)
