"""Base class, common types and common sections of the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


def _check_pool_name(name: str) -> str:
    """Ray Serve's applications are named RUN--POOL, and the pool has to be found again in that."""
    if not name or name.startswith("-") or "--" in name:
        raise ValueError(f"pool {name!r}: a name is not empty, has no '--' and starts with no '-'; rename the pool")
    return name


PositiveFloat = Annotated[float, Field(gt=0.0, le=1e9)]
NonNegative = Annotated[float, Field(ge=0.0, le=1e9)]
PositiveInt = Annotated[int, Field(gt=0, le=1_000_000_000)]
NonNegativeInt = Annotated[int, Field(ge=0, le=1_000_000_000)]
"""The upper bounds catch typing errors before they overflow a library's integers or fill the memory."""
MOST_STEPS = 10_000_000
Steps = Annotated[int, Field(ge=0, le=MOST_STEPS)]
MOST_SAMPLES = 1_000_000
SampleCount = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
"""Number of samples, sequences or requests that are held together."""
SmallInt = Annotated[int, Field(gt=0, le=10_000)]
"""Number of processes, replicas, threads or passes."""
Megabytes = Annotated[int, Field(gt=0, le=100_000_000)]
Tokens = Annotated[int, Field(ge=1, le=1 << 24)]
Seed = Annotated[int, Field(ge=0, le=(1 << 32) - 1)]
"""The range of NumPy's seeds, which is smaller than that of torch."""
Temperature = Annotated[float, Field(ge=0.0, le=2.0)]
"""Sampling temperature, in the range that vLLM and OpenAI's API take."""
RewardName = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
"""Name of a user's reward: that of its component in records and metrics."""
PoolKey = Annotated[str, AfterValidator(_check_pool_name)]
AbsolutePath = Annotated[str, AfterValidator(lambda path: str(Path(path).expanduser().resolve()))]
"""Absolute, so that a run resumed from another folder reads the same files."""


def _check_folder_name(name: str) -> str:
    size = len(name.encode())
    if not name.strip() or name.startswith(".") or "/" in name or "\0" in name or size > 200:
        raise ValueError(f"{name[:40]!r} becomes part of a folder's name; give 1 to 200 bytes, no slash, no dot first")
    return name


FolderName = Annotated[str, AfterValidator(_check_folder_name)]


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def clash(self, first: str, second: str, why: str) -> ValueError:
        """Return the error for the values of two keys that contradict each other."""
        return ValueError(f"{first}={self.yaml_value(first)} but {second}={self.yaml_value(second)}{why}")

    def yaml_value(self, key: str) -> str:
        """Return the value of a dotted key as YAML would have it, texts in quotes."""
        value: Any = self
        while key:
            if isinstance(value, dict):  # the name of a pool may have dots
                name = next(name for name in value if f"{key}.".startswith(f"{name}."))
                value = value[name]
            else:
                name = key.partition(".")[0]
                value = getattr(value, name)
            key = key[len(name) + 1 :]
        if value is None or isinstance(value, bool):
            return {None: "null", True: "true", False: "false"}[value]
        if isinstance(value, float):
            return f"{value:g}"
        return repr(list(value)) if isinstance(value, tuple) else repr(value)


class FootprintConfig(Section):
    """Logical resources of one actor: one engine, one trainer rank."""

    num_cpus: NonNegative = 0.5
    """Logical CPUs that Ray reserves, at least 0. A fraction lets actors share a CPU."""
    num_gpus: NonNegative = 0.0
    """A value below 1 is a share of a GPU. Ray only counts it and enforces nothing, so set the memory of the engine
    too."""
    custom_resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Further resources of the nodes, by the names that they were started with: `{big_disk: 1}`."""
    node_labels: dict[str, str] = Field(default_factory=dict)
    """Required node labels. A value may also be `!a`, `in(a,b)` or `!in(a,b)`."""

    @model_validator(mode="after")
    def _whole_gpus(self) -> FootprintConfig:
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise ValueError(
                f"num_gpus={self.num_gpus:g} is more than one GPU and not a whole number; Ray shares one GPU or "
                "assigns whole ones: round it"
            )
        for name in sorted({"CPU", "GPU"} & set(self.custom_resources)):
            raise ValueError(f"custom_resources has {name!r}, which has its own key; set num_{name.lower()}s")
        return self


class LoraConfig(Section):
    """A LoRA adapter, for training it instead of all weights."""

    rank: SmallInt = 16
    """Rank of the adapter matrices."""
    alpha: PositiveFloat = 32.0
    """Scale of the adapter: its output is multiplied by alpha / rank."""
    target_modules: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Names of the linear layers that get an adapter. `lm_head` cannot have one."""

    @model_validator(mode="after")
    def _targets_are_trained(self) -> LoraConfig:
        for name in self.target_modules:
            if name.rpartition(".")[2] in ("lm_head", "embed_tokens"):
                raise ValueError(
                    f"target_modules has {name!r}, whose adapter would not be trained or exported; remove it"
                )
        return self
