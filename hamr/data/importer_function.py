"""Training samples from a function of the user's own: `def read() -> Iterable[dict]`.

Its objects have the sample format (`hamr.data.samples`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from hamr.config.custom import ARGUMENTS, ImporterConfig
from hamr.data.samples import from_json, read_samples
from hamr.errors import ConfigError, DataError
from hamr.security.functions import FunctionSource, describe_error, describe_value, load_function, within
from hamr.types import ServiceSample


def imported_samples(config: ImporterConfig) -> list[ServiceSample]:
    """Call the function and check every object that it yields. Return the samples of an earlier call, if there was one.

    Raises:
        ConfigError: The function cannot be loaded, raises an exception, yields no objects, or exceeds its deadline.
        DataError: An object is not a sample, or its id was used before; names its number, from 1.
    """
    if config.samples is not None:
        return read_samples(config.samples) if isinstance(config.samples, Path) else config.samples
    source = FunctionSource.of_config("data.importer", config)
    return within(config.deadline_s, source, partial(_samples, config, source))


def _samples(config: ImporterConfig, source: FunctionSource) -> list[ServiceSample]:
    function = load_function(source, ARGUMENTS["data.importer"])
    samples: dict[str, ServiceSample] = {}
    try:
        rows = function()
        if not isinstance(rows, Iterable) or isinstance(rows, str | Mapping):
            raise source.error(f"returned {describe_value(rows)}; yield objects of the sample format")
        for number, row in enumerate(rows, 1):
            where = f"{config.path}: sample {number}"
            sample = row if isinstance(row, ServiceSample) else from_json(row, where=where)
            if sample.id in samples:
                raise DataError(f"{where}: id", sample.id, "already used by an earlier sample; make it unique")
            samples[sample.id] = sample
    except (ConfigError, DataError):
        raise
    except Exception as error:
        raise source.error(f"raised {describe_error(error, source)}") from error
    if not samples:
        raise source.error("yielded no sample")
    return list(samples.values())
