"""The working tree as one archive for a cluster: what git would keep, never a secret, and not too much of it."""

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
"""Files that hold keys by custom; they stay here whatever .gitignore says."""
SEARCHED_BYTES = 1 << 20
"""Larger files are not searched for the values of secret variables."""
_TIME = (1980, 1, 1, 0, 0, 0)
"""The same tree makes the same archive, which a cluster then has already."""


@dataclass(frozen=True, kw_only=True)
class Package:
    path: Path
    files: int
    megabytes: float
    kept_back: tuple[str, ...]
    """Files that look like keys."""
    names: tuple[str, ...]

    def has(self, path: str) -> bool:
        """Whether a file, or something of a folder, is in it; `path` is named from the packed folder."""
        name = os.path.normpath(path)
        return any(n == name or n.startswith(f"{name}/") for n in self.names)


def pack(root: Path, target: Path, extra: Mapping[str, str], *, most_mb: float) -> Package:
    """Writes `root` and the texts of `extra` (by their names in the archive) into the zip `target`; run folders stay.

    Raises BadInput for more than `most_mb` (of file sizes, before compression), with the largest files, and for a file
    in which the value of a secret environment variable stands.
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
                    "package", str(file), "holds the value of a secret environment variable; take it out of the file"
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
    """Files of `root`, relative to it, that no .gitignore leaves out; in a git work tree or not."""
    with tempfile.TemporaryDirectory(prefix="hamr-git-") as aside:
        # An index of its own, with nothing in it: git then lists by .gitignore alone, and touches nothing here.
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
