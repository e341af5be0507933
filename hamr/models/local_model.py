"""Model of a folder in this process, for one conversation: slower than an engine, but without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hamr.hardware import DType
from hamr.models.tokenizer import load_tokenizer


class LocalModel:
    """Causal language model, on the GPU where there is one. The constructor loads the weights (seconds)."""

    def __init__(self, path: Path, dtype: DType) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.tokenizer = load_tokenizer(path)
        self._full_tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, trust_remote_code=False).to(device).eval()

    def write(
        self, ids: Sequence[int], show: Callable[[str], None], *, max_new_tokens: int, temperature: float, seed: int
    ) -> str:
        """Return the answer to a prompt, and pass its text to `show` piece by piece. Temperature 0 is greedy."""
        import torch
        from transformers import GenerationConfig, TextStreamer

        class Streamer(TextStreamer):
            def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
                show(text)

        torch.manual_seed(seed)
        prompt = torch.tensor([list(ids)], device=self._model.device)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        settings = GenerationConfig(
            max_new_tokens=max_new_tokens,
            eos_token_id=self.tokenizer.eos_id,
            pad_token_id=self.tokenizer.eos_id,
            **sampling,
        )
        # The folder's own settings would fill in what these leave out.
        self._model.generation_config = settings
        streamer = Streamer(self._full_tokenizer, skip_prompt=True, skip_special_tokens=True)
        with torch.inference_mode():
            whole = self._model.generate(
                prompt, attention_mask=torch.ones_like(prompt), generation_config=settings, streamer=streamer
            )
        return self.tokenizer.decode(whole[0, len(ids) :].tolist())
