"""Policy module that maps a micro-batch to log-probabilities of the completion tokens."""

from __future__ import annotations

import itertools
import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamr.algorithms.packing import Layout, padding_reason
from hamr.config.schema import AttentionKernel, Checkpointing, choose_kernel
from hamr.config.section import LoraConfig
from hamr.errors import ConfigError
from hamr.trainer.host_memory import activations_on_host
from hamr.trainer.policy_attention import NAME, SharedRow, shared_prompt_attention
from hamr.trainer.policy_batch import FEW_ROWS, PolicyBatch
from hamr.trainer.policy_head import token_logprobs

log = logging.getLogger(__name__)


class PolicyModel(nn.Module):
    """Causal language model of transformers with a separate head, so that logits exist only where a loss needs them.

    `forward(batch)` returns (log-probabilities [N], entropies [N]) in float32 nats at `temperature`. `layout` is the
    layout in use. It differs from the requested one, with a warning, if the model does not support that. `kernel`
    computes the attention of rows with blocks. `liger` says whether Liger's kernels compute the rest of the layers.
    """

    def __init__(
        self,
        causal_lm: nn.Module,
        *,
        layout: Layout,
        temperature: float = 1.0,
        kernel: AttentionKernel = "auto",
        liger: bool = False,
        offload_activations: bool = False,
    ) -> None:
        super().__init__()
        self.kernel, self.liger = kernel, liger
        self.offload_activations = offload_activations
        self.causal_lm = causal_lm
        self.head = _Head(causal_lm.get_output_embeddings(), temperature)  # type: ignore[operator]
        self.layout = _use_attention(_base(causal_lm), layout)

    def forward(self, batch: PolicyBatch) -> tuple[Tensor, Tensor]:
        """Return (log-probabilities [N], entropies [N]) of the batch's N completion tokens, in float32 nats."""
        ids = batch.input_ids_BT
        kwargs: dict[str, Any] = {}
        if batch.blocks is not None:
            kernel = choose_kernel(self.kernel, ids.device.type)
            kwargs["hamr_row"] = SharedRow(blocks=batch.blocks, kernel=kernel, tokens=ids.shape[1], device=ids.device)
        with activations_on_host() if self.offload_activations else nullcontext():
            hidden_BTE = _backbone(_base(self.causal_lm))(
                input_ids=ids,
                attention_mask=batch.attention_mask_BT,
                position_ids=batch.position_ids_BT,
                use_cache=False,
                **kwargs,
            ).last_hidden_state
        # On a CPU, each new number of rows would compile a new kernel.
        count = len(batch.targets_N)
        more = -count % FEW_ROWS if hidden_BTE.device.type == "cpu" else 0
        read, targets = F.pad(batch.read_N, (0, more)), F.pad(batch.targets_N, (0, more))
        logprobs, entropies = self.head(hidden_BTE.flatten(0, 1)[read], targets)
        return logprobs[:count], entropies[:count]

    def without_adapter(self) -> AbstractContextManager[None]:
        """Disable the LoRA adapter while the body runs: the base model is the reference policy, at no extra memory."""
        return self.causal_lm.disable_adapter()  # type: ignore[operator]


class _Head(nn.Module):
    """Shares the language model's head. It is a separate module so that ZeRO-3 gathers its weight at the right time."""

    def __init__(self, linear: nn.Linear, temperature: float) -> None:
        super().__init__()
        self.weight, self.bias, self.temperature = linear.weight, linear.bias, temperature

    def forward(self, hidden_NE: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias, device = self.weight, self.bias, hidden_NE.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            hidden_NE, weight = hidden_NE.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        with torch.autocast(device, enabled=False):
            return token_logprobs(hidden_NE, weight, bias, targets_N, self.temperature)


def load_policy(
    path: Path,
    *,
    dtype: torch.dtype,
    layout: Layout,
    temperature: float = 1.0,
    lora: LoraConfig | None = None,
    gradient_checkpointing: Checkpointing = False,
    kernel: AttentionKernel = "auto",
    liger: bool = False,
) -> PolicyModel:
    """Load the model in folder `path`, with a fresh LoRA adapter if requested, and with Liger's kernels if `liger`.

    Raises ConfigError if the model's head is more than one linear layer, since its log-probabilities would be silently
    wrong, or if it is a mixture of experts, since its weights would be exported under names that no engine knows.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    _check_dense(AutoConfig.from_pretrained(path, trust_remote_code=False), path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, trust_remote_code=False)
    _check_head(model, path)
    liger = liger and _use_liger(model)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if lora is not None:
        from peft import LoraConfig as PeftLora
        from peft import get_peft_model

        if gradient_checkpointing:
            model.enable_input_require_grads()
        adapter = PeftLora(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.target_modules), bias="none")
        model = get_peft_model(model, adapter, autocast_adapter_dtype=False)
    offload = gradient_checkpointing == "offload"
    return PolicyModel(
        model, layout=layout, temperature=temperature, kernel=kernel, liger=liger, offload_activations=offload
    )


def _base(causal_lm: nn.Module) -> Any:
    """Return the transformers model, with or without adapter (LoRA layers are inside it)."""
    return causal_lm.get_base_model() if hasattr(causal_lm, "get_base_model") else causal_lm  # type: ignore[operator]


def _backbone(model: Any) -> nn.Module:
    """Return the model without its head."""
    return getattr(model, model.base_model_prefix)


def _check_head(model: Any, path: Path) -> None:
    scaled = [k for k in ("final_logit_softcapping", "logits_scaling", "logit_scale") if getattr(model.config, k, None)]
    if scaled or not isinstance(model.get_output_embeddings(), nn.Linear):
        found = scaled or [type(model.get_output_embeddings()).__name__]
        raise ConfigError("model.path", str(path), f"its head is not one plain linear layer ({found[0]}); use another")


def _check_dense(config: Any, path: Path) -> None:
    """transformers keeps the experts of a layer in one tensor; published files and engines have one per expert."""
    inner = (getattr(config, name, None) for name in ("text_config", "ffn_config"))
    keys = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    for part, key in itertools.product((config, *inner), keys):
        if (count := getattr(part, key, None) or 0) > 1:
            remedy = f"it is a mixture of experts ({key}={count}), whose weights hamr cannot export; use a dense model"
            raise ConfigError("model.path", str(path), remedy)


def _use_liger(model: Any) -> bool:
    """Have Liger's kernels compute norms, rotary embeddings and MLPs. Returns False, with a warning, for models that
    Liger does not know."""
    from liger_kernel.transformers import monkey_patch

    kind = model.config.model_type
    if kind not in monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN:
        log.warning("liger-kernel does not know models of type %s; they keep their own code, which is slower", kind)
        return False
    # Head and loss are hamr's own.
    monkey_patch._apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)
    return True


def _use_attention(model: Any, layout: Layout) -> Layout:
    """Register and select the attention of `layout`. Falls back to `padded`, with a warning, if unsupported."""
    if layout == "padded":
        return layout
    reason = _no_blocks(model)
    if reason:
        log.warning("trainer.attention=%s is not supported (%s); using 'padded', which is slower", layout, reason)
        return "padded"
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, shared_prompt_attention)
    model.set_attn_implementation(NAME)
    return layout


def _no_blocks(model: Any) -> str | None:
    """Return the reason why the model's attention cannot be replaced, or None."""
    if not getattr(model, "_supports_attention_backend", False):
        return f"{type(model).__name__} has its own attention"
    return padding_reason(model.config)
