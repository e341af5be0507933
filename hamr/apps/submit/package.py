"""Archive of the working tree for a cluster: the files that git would track, without secrets, up to a size limit."""

from __future__ import annotations

import fnmatch
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hamr.errors import BadInput
from hamr.security.redaction import secret_values, spellings

SECRET_FILES = (".env", ".env.*", "*.pem", "*.key", "*.p12", "id_rsa*", "id_ed25519*", ".netrc", "auth_token")
"""Patterns of files that usually contain keys; they are excluded regardless of .gitignore."""
SEARCHED_BYTES = 1 << 20
"""Larger files are not searched for the values of secret variables."""
_TIME = (1980, 1, 1, 0, 0, 0)
"""Constant timestamp: the same tree gives the same archive, which the cluster may already have."""


@dataclass(frozen=True, kw_only=True)
class Package:
    path: Path
    files: int
    megabytes: float
    kept_back: tuple[str, ...]
    """Excluded files that look like keys."""
    names: tuple[str, ...]

    def has(self, path: str) -> bool:
        """Return whether the package contains a file, or a file of a folder. `path` is relative to the packed
        folder."""
        name = os.path.normpath(path)
        return any(n == name or n.startswith(f"{name}/") for n in self.names)


def pack(root: Path, target: Path, extra: Mapping[str, str], *, most_mb: float) -> Package:
    """Write `root` and the texts of `extra` (keyed by name in the archive) into the zip `target`, without run folders.

    Raises BadInput for more than `most_mb` (file sizes before compression), naming the largest files, and for a file
    that contains the value of a secret environment variable.
    """
    listed = sorted(_list_files(root))
    runs = {f.parent for f in listed if f.name == "run.lock"}
    found = [f for f in listed if not runs.intersection(f.parents)]
    kept_back = tuple(str(f) for f in found if any(fnmatch.fnmatch(f.name, p) for p in SECRET_FILES))
    files = [f for f in found if str(f) not in kept_back and str(f) not in extra]
    sizes = {f: (root / f).stat().st_size for f in files}
    total = sum(sizes.values()) / 1e6
    if total > most_mb:
        largest = sorted(files, key=lambda f: -sizes[f])[:3]
        named = ", ".join(f"{f} ({sizes[f] / 1e6:.1f} MB)" for f in largest)
        raise BadInput(
            "cluster.max_package_mb",
            most_mb,
            f"{root} has {total:.1f} MB in {len(files)} files, the largest are {named}; add what the job does not need "
            "to .gitignore, or raise it",
        )
    secrets = [form.encode() for value in secret_values() for form in spellings(value)]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            data = (root / file).read_bytes()
            if len(data) <= SEARCHED_BYTES and any(secret in data for secret in secrets):
                raise BadInput(
                    "package", str(file), "holds the value of a secret environment variable; remove it from the file"
                )
            mode = 0o755 if os.access(root / file, os.X_OK) else 0o644
            _add(archive, str(file), data, mode)
        for name, text in extra.items():
            _add(archive, name, text.encode(), 0o644)
    names = (*map(str, files), *extra)
    return Package(path=target, files=len(names), megabytes=total, kept_back=kept_back, names=names)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = mode << 16
    archive.writestr(info, data)


def _list_files(root: Path) -> Iterator[Path]:
    """Yield the files of `root`, relative to it, that no .gitignore excludes, inside or outside a git work tree."""
    with tempfile.TemporaryDirectory(prefix="hamr-git-") as aside:
        # Use an empty temporary index: git then lists by .gitignore alone and changes nothing here.
        env = {**os.environ, "GIT_DIR": f"{aside}/git", "GIT_WORK_TREE": str(root)}
        try:
            _git(["init", "-q"], root, env)
            listed = _git(["ls-files", "-z", "--others", "--exclude-standard"], root, env)
        except (OSError, subprocess.CalledProcessError) as e:
            raise BadInput("package", str(root), f"git cannot list the files ({e}); is it installed?") from None
    for name in filter(None, listed.split("\0")):
        path = root / name
        if path.is_file() and not path.is_symlink() and ".git" not in Path(name).parts:
            yield Path(name)


def _git(args: list[str], root: Path, env: Mapping[str, str]) -> str:
    return subprocess.run(["git", *args], cwd=root, env=env, check=True, capture_output=True, text=True).stdout
