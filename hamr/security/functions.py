"""Functions that a configuration names: reading the file, loading and checking one.

A path comes from the command line or the user's own config folder, never from a recorded configuration
(`hamr.config.custom`). Standard library only.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import threading
import tokenize
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hamr.errors import ConfigError, did_you_mean
from hamr.security.redaction import redact_text

if TYPE_CHECKING:
    from hamr.config.custom import FunctionConfig

T = TypeVar("T")

LARGEST_REWARD = 1e6
"""A larger value is a sentinel or a fault, and sums of such values overflow."""
NUMBER = f"return a number from -{LARGEST_REWARD:,.0f} to {LARGEST_REWARD:,.0f}"
SHOWN = 200
"""Maximum length of a user's value or message in an error."""


@dataclass(frozen=True, kw_only=True)
class FunctionSource:
    """Everything that a process needs to load a function. `file` (absolute) and `text` are None for a module.

    `key` is that of the path, such as `algorithm.loss.path`.
    """

    key: str
    path: str
    file: str | None = None
    text: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    sha256: str | None = None

    @classmethod
    def of_config(cls, section: str, config: FunctionConfig, **settings: Any) -> Self:
        """Read the file of a function in `section` of the configuration. Nothing is executed.

        Raises:
            ConfigError: The file is missing or unreadable, or the path may not be executed.
        """
        config.refuse_recorded(section)
        key = f"{section}.path"
        return cls(key=key, path=config.path, kwargs=config.kwargs, sha256=config.sha256, **settings).with_text()

    def with_text(self) -> Self:
        """Return the source with the text of its file, which can be sent to another machine; unchanged for a module.

        Raises:
            ConfigError: The file is missing or unreadable.
        """
        if not self.place.endswith(".py"):
            return self
        file = Path(self.place).expanduser().resolve()
        try:
            with tokenize.open(file) as opened:  # as Python reads it: with a byte order mark, in the declared encoding
                text = opened.read()
        except FileNotFoundError:
            raise self.error(f"no such file in {file.parent}; give FILE.py:FUNCTION") from None
        except (OSError, UnicodeDecodeError, SyntaxError) as error:
            raise self.error(f"cannot be read ({error})") from None
        return replace(self, file=str(file), text=text)

    @property
    def place(self) -> str:
        """The file or the module."""
        return self.path.rpartition(":")[0]

    @property
    def function(self) -> str:
        return self.path.rpartition(":")[2]

    @property
    def module(self) -> str:
        """Name of the module that a file is executed as. It must not hide an installed module."""
        return "user_" + self.key.removesuffix(".path").replace(".", "_")

    def error(self, remedy: str) -> ConfigError:
        return ConfigError(self.key, self.path, remedy)


@dataclass(frozen=True, kw_only=True)
class LoadedFunction:
    """`sha256` is the digest of the function's file, None if a module has no file."""

    source: FunctionSource
    call: Callable[..., Any]
    sha256: str | None

    @property
    def is_async(self) -> bool:
        """True if several calls may run concurrently."""
        return inspect.iscoroutinefunction(self.call) or inspect.iscoroutinefunction(type(self.call).__call__)

    def __call__(self, *args: Any) -> Any:
        return self.call(*args, **self.source.kwargs)


def load_function(source: FunctionSource, arguments: Sequence[str] | None) -> LoadedFunction:
    """Execute the file, or import the module, and return its function, which takes `arguments` by position.

    With None the arguments are not checked, and a class is accepted.

    Raises:
        ConfigError: There is no such module or function, its digest differs, or it cannot be called as needed.
    """
    content = source.text.encode() if source.text is not None else _module_content(source)
    sha256 = hashlib.sha256(content).hexdigest() if content is not None else None
    if source.sha256 not in (None, sha256):
        raise source.error(
            f"has changed since the run began (SHA-256 {str(sha256)[:12]}, recorded {str(source.sha256)[:12]}); "
            "restore the file, or start a new run"
        )
    try:
        module = _execute(source) if source.text is not None else importlib.import_module(source.place)
    except (Exception, SystemExit) as error:
        raise source.error(f"cannot be imported: {describe_error(error, source)}") from None
    function = getattr(module, source.function, None)
    if function is None:
        found = {n: f for n, f in vars(module).items() if getattr(f, "__module__", None) == module.__name__}
        classes = [n for n, f in found.items() if inspect.isclass(f) and arguments is None]
        known = sorted([*classes, *(n for n, f in found.items() if inspect.isfunction(f))])
        kind, hint = "class or function" if arguments is None else "function", did_you_mean(source.function, known)
        raise source.error(f"no such {kind}; {hint}{source.place} defines {', '.join(known) or 'none'}")
    if not callable(function):
        raise source.error(f"is not a function but {describe_value(function)}")
    if arguments is not None:
        check_signature(source, function, arguments)
    return LoadedFunction(source=source, call=function, sha256=sha256)


def within(seconds: float, source: FunctionSource, work: Callable[[], T]) -> T:
    """Return the result of work that runs the user's code, on a thread that is abandoned after `seconds`.

    Raises:
        ConfigError: The work took longer.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([done], timeout=seconds).done:
        raise source.error(f"did not return within {seconds:g} s; check what it waits for")
    return done.result()


def describe_value(value: Any) -> str:
    """Return a value of the user's in one line, with its type."""
    try:
        text = " ".join(redact_text(repr(value)).split())
    except Exception:
        text = "a value without a repr"
    return f"{text[:SHOWN]} ({type(value).__name__})" if value is not None else "None"


def read_number(value: Any) -> float | None:
    """Return a reward of the user's as a float, also one of NumPy or PyTorch; None if it is not a number in
    [-LARGEST_REWARD, LARGEST_REWARD].

    A truth value is none, because it is more often a mistake than a reward.
    """
    try:  # bool_ is NumPy's name before version 2
        number = float(value) if hasattr(value, "__float__") and type(value).__name__ not in ("bool", "bool_") else None
    except Exception:
        return None
    return number if number is not None and abs(number) <= LARGEST_REWARD else None


def describe_error(error: BaseException, source: FunctionSource) -> str:
    """Return an exception in one line, with the line of the user's file where it was raised."""
    text = " ".join(redact_text(f"{type(error).__name__}: {error}").split())[:SHOWN]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source.file]
    return f"{text} ({source.place}, line {lines[-1]})" if lines else text


def _module_content(source: FunctionSource) -> bytes | None:
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)  # last, so that a file there does not hide an installed module
    try:
        spec = importlib.util.find_spec(source.place)
    except (ImportError, ValueError, AttributeError) as error:
        raise source.error(f"cannot be imported: {describe_error(error, source)}") from None
    if spec is None:
        raise source.error("no such module here or installed; give MODULE:FUNCTION or FILE.py:FUNCTION")
    return Path(spec.origin).read_bytes() if spec.has_location and spec.origin else None


def _execute(source: FunctionSource) -> ModuleType:
    """Execute the text of a file as a module. It can import modules of its own folder, like a script."""
    assert source.text is not None and source.file is not None, "the caller checks this"
    module = ModuleType(source.module)
    module.__file__ = source.file
    sys.modules[source.module] = module
    folder = Path(source.file).parent
    for name, home in list(_HELPERS.items()):
        top = name.partition(".")[0]
        if home != folder and any((folder / each).exists() for each in (top, f"{top}.py")):
            del _HELPERS[name]
            sys.modules.pop(name, None)
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        # Otherwise the file has the `from __future__` imports of this one, and its type hints are texts.
        exec(compile(source.text, source.file, "exec", dont_inherit=True), vars(module))
    finally:
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder):
                _HELPERS[name] = folder
    return module


_HELPERS: dict[str, Path] = {}
"""Modules that the user's files have imported from their own folder, and that folder. A file of another folder that has
modules of the same names gets its own."""


def check_signature(source: FunctionSource, function: Callable[..., Any], arguments: Sequence[str]) -> None:
    """Raise ConfigError unless the function takes `arguments` by position, and the source's keyword arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some functions of extension modules have none
    try:
        signature.bind(*([None] * len(arguments)), **source.kwargs)
    except TypeError as error:
        given = ", ".join((*arguments, *(f"{key}=..." for key in source.kwargs)))
        raise source.error(f"cannot be called as {source.function}({given}): {error}") from None
