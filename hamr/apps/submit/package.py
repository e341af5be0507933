"""Archive of the working tree for a cluster: the files that git would track, without secrets, up to a size limit."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hamr.errors import BadInput
from hamr.security.key_files import find_key, is_key_file
from hamr.security.redaction import secret_values, spellings

SHOWN_FILES = 5
_TIME = (1980, 1, 1, 0, 0, 0)
"""Constant timestamp: the same tree gives the same archive, which the cluster may already have."""


@dataclass(frozen=True, kw_only=True)
class Package:
    path: Path
    megabytes: float
    names: tuple[str, ...]
    untracked: tuple[str, ...]
    """Packed files that git does not track."""
    kept_back: Mapping[str, str]
    """Excluded files that look like keys, and why."""
    dot_folders: tuple[str, ...]
    """Excluded folders."""
    unsent_links: tuple[str, ...]
    """Symbolic links to what is outside of the folder or excluded."""

    def describe(self) -> list[str]:
        """Return lines that say what is sent, and what is not."""
        lines = [f"{len(self.names)} files, {self.megabytes:.1f} MB"]
        if self.untracked:
            lines.append(f"{len(self.untracked)} not tracked by git: {_some(self.untracked)}")
        if self.kept_back:
            named = [f"{name} ({why})" for name, why in self.kept_back.items()]
            lines.append(f"excluded, because they look like keys: {', '.join(named)}")
        if self.dot_folders:
            lines.append(f"excluded folders: {_some(self.dot_folders)}")
        if self.kept_back or self.dot_folders:
            lines.append("cluster.package_also=[PATTERN] sends such files all the same")
        if self.unsent_links:
            lines.append(f"excluded links, because their targets are not in the package: {_some(self.unsent_links)}")
        return lines

    def has(self, path: str) -> bool:
        """Return whether the package contains a file, or a file of a folder. `path` is relative to the packed
        folder."""
        name = os.path.normpath(path)
        return any(n == name or n.startswith(f"{name}/") for n in self.names)


def pack(root: Path, target: Path, extra: Mapping[str, str], *, most_mb: float, also: Sequence[str] = ()) -> Package:
    """Write `root` and the texts of `extra` (keyed by name in the archive) into the zip `target`.

    Without run folders, and without folders that start with a dot and files that look like keys, except those that
    match a pattern in `also`. A symbolic link becomes a copy of the packed files that it points to.

    Raises BadInput for a file name that is not UTF-8, for more than `most_mb` (file sizes before compression), naming
    the largest files, and for a file that contains the value of a secret environment variable.
    """
    listed = dict(sorted(_list_files(root)))
    runs = {f.parent for f in listed if f.name == "run.lock"}
    found = [f for f in listed if not runs.intersection(f.parents) and str(f) not in extra]
    if odd := next((str(f) for f in found if re.search(r"[\ud800-\udfff]", str(f))), None):
        raise BadInput("package", odd, "has a name that is not UTF-8; rename it, or add it to .gitignore")
    wanted = {f for f in found if any(fnmatch.fnmatch(str(f), pattern) for pattern in also)}
    hidden = {f: folder for f in found if f not in wanted and (folder := _dot_folder(f)) is not None}
    kept_back = {str(f): "by name" for f in found if f not in hidden and f not in wanted and is_key_file(f)}
    sources, unsent_links = _follow_links(root, [f for f in found if f not in hidden and str(f) not in kept_back])
    _refuse_oversized(root, sources, most_mb)
    secrets = [os.fsencode(form) for value in secret_values() for form in spellings(value)]
    size = 0
    names: list[Path] = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, source in sources.items():
            data = (root / source).read_bytes()
            if not wanted.intersection((file, source)) and (kind := find_key(data)) is not None:
                kept_back[str(file)] = kind
                continue
            if any(secret in data for secret in secrets):
                raise BadInput(
                    "package", str(file), "holds the value of a secret environment variable; remove it from the file"
                )
            _add(archive, str(file), data, 0o755 if os.access(root / source, os.X_OK) else 0o644)
            size += len(data)
            names.append(file)
        for name, text in extra.items():
            _add(archive, name, text.encode(), 0o644)
    return Package(
        path=target,
        megabytes=size / 1e6,
        names=(*map(str, names), *extra),
        untracked=tuple(str(f) for f in names if not listed.get(f, listed[sources[f]])),
        kept_back=kept_back,
        dot_folders=tuple(sorted(set(hidden.values()))),
        unsent_links=unsent_links,
    )


def _follow_links(root: Path, files: Sequence[Path]) -> tuple[dict[Path, Path], tuple[str, ...]]:
    """Return name -> file to read, and the links whose target is not among the files or contains the link.

    A link to a folder gives the files of the folder. Links to folders inside it are not followed.
    """
    sources = {f: f for f in files if not (root / f).is_symlink()}
    top = os.path.realpath(root)
    targets = {f: Path(os.path.relpath(os.path.realpath(root / f), top)) for f in files if f not in sources}
    sources |= {link: target for link, target in targets.items() if target in sources}
    folders = {link: target for link, target in targets.items() if link not in sources}
    unsent: list[Path] = []
    copies: dict[Path, Path] = {}
    for link, target in folders.items():
        inner = {link / f.relative_to(target): source for f, source in sources.items() if target in f.parents}
        if not inner or target in link.parents:
            unsent.append(link)
            continue
        copies |= inner
        unsent += [link / other.relative_to(target) for other in folders if target in other.parents]
    return dict(sorted((sources | copies).items())), tuple(map(str, sorted(unsent)))


def _refuse_oversized(root: Path, sources: Mapping[Path, Path], most_mb: float) -> None:
    sizes = {file: (root / source).stat().st_size / 1e6 for file, source in sources.items()}
    total = sum(sizes.values())
    if total > most_mb:
        named = ", ".join(f"{f} ({sizes[f]:.1f} MB)" for f in sorted(sizes, key=lambda f: -sizes[f])[:3])
        raise BadInput(
            "cluster.max_package_mb",
            most_mb,
            f"{root} has {total:.1f} MB in {len(sizes)} files, the largest are {named}; add what the job does not need "
            "to .gitignore, or raise it",
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_FILES} more" if len(names) > SHOWN_FILES else ""
    return f"{', '.join(names[:SHOWN_FILES])}{more}"


def _dot_folder(file: Path) -> str | None:
    """Return the outermost folder of the file whose name starts with a dot."""
    return next((str(folder) for folder in reversed(file.parents) if folder.name.startswith(".")), None)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = mode << 16
    archive.writestr(info, data)


def _list_files(root: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the files and links of `root` that no .gitignore excludes, relative to it, each with whether git tracks it.

    The folder need not be a git work tree, and repositories inside it are listed by their own rules.
    """
    with tempfile.TemporaryDirectory(prefix="hamr-git-") as aside:
        # Use an empty temporary index: git then lists by .gitignore alone and changes nothing here.
        env = {"GIT_DIR": f"{aside}/git", "GIT_WORK_TREE": str(root)}
        try:
            _git(["init", "-q"], root, env)
            listed = _git(["ls-files", "-z", "--others", "--exclude-standard"], root, env)
        except (OSError, subprocess.CalledProcessError) as e:
            raise BadInput("package", str(root), f"git cannot list the files ({e}); is it installed?") from None
    try:
        tracked = set(_git(["ls-files", "-z"], root, {}).split("\0"))
    except subprocess.CalledProcessError:  # no work tree
        tracked = set()
    for name in filter(None, listed.split("\0")):
        path = root / name
        if name.endswith("/"):  # a repository of its own
            yield from ((Path(name) / inner, known) for inner, known in _list_files(path))
        elif (path.is_file() or path.is_symlink()) and ".git" not in Path(name).parts:
            yield Path(name), name in tracked


def _git(args: list[str], root: Path, env: Mapping[str, str]) -> str:
    """Return git's output. Variables that name a repository or an index, as a hook's do, do not apply to `root`.

    A repository inside the folder may come from anywhere, so its monitor of files, a program, is not run.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith("GIT_CONFIG")}
    return os.fsdecode(
        subprocess.run(
            ["git", "-c", "core.fsmonitor=false", *args], cwd=root, env={**kept, **env}, check=True, capture_output=True
        ).stdout
    )
