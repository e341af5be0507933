"""Resources that an actor takes from a node, and the nodes that may run it."""

from __future__ import annotations

from pydantic import Field, model_validator

from hamr.config.section import NonNegative, PositiveFloat, Section


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
