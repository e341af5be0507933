"""What hamr adds to vLLM's own worker, in whichever process that worker lives (`worker_extension_cls`)."""

from __future__ import annotations


class WorkerExtension:
    """Mixed into vLLM's worker."""

    def load_weight_file(self, path: str) -> None:
        """Replaces every weight by the file's. The file must hold `lm_head.weight` even where it is tied to the
        embeddings: the CPU backend keeps a repacked copy of the head, which would silently stay at the old version.
        """
        from safetensors import safe_open

        with safe_open(path, "pt") as tensors:
            names = list(tensors.keys())
            if "lm_head.weight" not in names:
                raise ValueError(f"{path} lacks lm_head.weight; write it too, tied or not")
            self.reload_weights(weights_iterator=((name, tensors.get_tensor(name)) for name in names))  # type: ignore[attr-defined]

    def speed_up_cpu(self) -> None:
        """A sampler and kernels that cost a CPU less than those that vLLM chooses there."""
        from hamr.backends.vllm_kernels import use_fused_kernels
        from hamr.backends.vllm_sampler import LeanSampler

        runner = self.model_runner  # type: ignore[attr-defined]
        use_fused_kernels(runner.model)
        runner.sampler = LeanSampler(runner.sampler.logprobs_mode, runner.sampler.use_fp64_gumbel)
