"""Distribution packages, fetched with apt into a private folder and unpacked, never installed.

Assumes `apt-get`, `apt-config` and `dpkg-deb` on the host, and a mirror that the host's own apt uses
(or the one that `VHCA_DEBIAN_MIRROR` names). Guarantees: needs no root; reads the host's apt settings
(proxies, keys, mirror) and changes nothing of them; every file fetched is checked, either by apt against
the signed index or against a SHA-256 recorded in :mod:`vhca.lab.pins`, and again when it is used; unpacked files have
no setuid bits and are where their package says, whatever links another package has.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vhca.lab.cache import Cache, Progress, free_bytes, remove, space_remedy
from vhca.lab.errors import PackageError

SUITES = ("trixie", "trixie-backports")
_DEBIAN_RELEASES = frozenset(
    ("bullseye", "bookworm", "trixie", "forky", "sid", "oldoldstable", "oldstable", "stable", "testing", "unstable")
)
_KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)
_APT_HELPER = Path("/usr/lib/apt/apt-helper")
_KEPT_MODE: Final = 0o755
_FULL_BYTES = 16 << 20  # a disk with less can take no index and no package
_INDEX_MAX_AGE_S = 12 * 3600.0
_URI_LINE = re.compile(r"^'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})$")
UNPACKED: Final = "1"
"""How packages are unpacked; part of the key of what is unpacked, so that a change here renews the cache."""


@dataclass(slots=True, frozen=True)
class PackageFile:
    """One package file that apt would fetch."""

    name: str
    version: str
    file: str
    size_bytes: int
    sha256: str


@dataclass(slots=True, frozen=True)
class PoolFile:
    """A file of the mirror's pool that the index need not list: only its SHA-256 says that it is right."""

    path: str  # below the mirror, such as pool/main/l/linux/...
    sha256: str
    size_bytes: int

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.rsplit("/", 1)[-1]


def tools_missing() -> list[str]:
    """Name the host programs that are needed to fetch and unpack packages and are not there."""
    missing = [tool for tool in ("apt-get", "apt-config", "dpkg-deb") if shutil.which(tool) is None]
    if not missing and not _APT_HELPER.exists():
        missing.append(str(_APT_HELPER))
    return missing


def keyring() -> Path | None:
    """The distribution's archive keyring on this host: `VHCA_DEBIAN_KEYRING`, else where packages put it."""
    if own := os.environ.get("VHCA_DEBIAN_KEYRING"):
        return Path(own)
    return next((path for path in _KEYRINGS if path.exists()), None)


def find_mirror() -> str:
    """Return the URI of the mirror, ending in `/`.

    `VHCA_DEBIAN_MIRROR` wins; else the mirror that the host's apt takes its main archive from.
    """
    if own := os.environ.get("VHCA_DEBIAN_MIRROR"):
        return own.rstrip("/") + "/"
    remedy = "set VHCA_DEBIAN_MIRROR to the URI of a Debian mirror (the folder that holds dists/ and pool/)"
    try:
        listing = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(LABEL)|$(RELEASE)|$(COMPONENT)"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PackageError(f"cannot ask apt for its mirror: {error}", remedy) from error
    mirror = choose_mirror(listing.splitlines())
    if mirror is None:
        raise PackageError("the host's apt settings name no mirror of the Debian archive", remedy)
    return mirror


def choose_mirror(rows: Iterable[str]) -> str | None:
    """Pick the main Debian archive out of rows `uri|label|release|component` as apt lists its index targets.

    apt knows the label only once it has an index; before that the release name must do.
    """
    best: tuple[int, str] | None = None
    for row in rows:
        fields = row.split("|")
        if len(fields) != 4:
            continue
        uri, label, release, component = fields
        if component != "main":
            continue
        score = 0
        if label == "Debian":
            score = 4
        elif release.split("/")[0] in _DEBIAN_RELEASES and label in ("", "$(LABEL)"):
            score = 3 if uri.rstrip("/").endswith("/debian") else 2
        if score and (best is None or score > best[0]):
            best = (score, uri.rstrip("/") + "/")
    return best[1] if best else None


class DiskFull(PackageError):
    """The disk of the cache is full."""


class PackageStore:
    """apt with folders of its own, in the cache.

    `shelf` names where fetched files lie until :meth:`clear`; two processes may use one cache at a time, but
    not one shelf. `suites` are those that packages come from; each set has an index of its own. `late`: take an index
    that the mirror has not renewed in time, too; it must be signed all the same.
    """

    def __init__(
        self,
        cache: Cache,
        progress: Progress,
        shelf: str = "other",
        suites: tuple[str, ...] = SUITES,
        *,
        late: bool = False,
    ) -> None:
        self.cache = cache
        self.progress = progress
        self.shelf = shelf
        self.suites = suites
        self._late = late
        self._folder = "apt" if suites == SUITES else f"apt-{'-'.join(suites)}"
        self._configured: dict[str, str] | None = None
        self._fresh = False
        self.mirror = ""

    # ---- apt and its settings ----
    def _environment(self) -> dict[str, str]:
        """Write the private apt settings (once) and return the environment that makes apt use them."""
        if self._configured is not None:
            return self._configured
        if missing := tools_missing():
            raise PackageError(
                f"not found on this host: {', '.join(missing)}",
                "packages are fetched with apt and dpkg: use a Debian or Ubuntu host, or fill the cache there",
            )
        self.mirror = find_mirror()
        base = self.cache.folder(self._folder)
        for part in ("lists/partial", "archives/partial", "state"):
            self.cache.folder(self._folder, *part.split("/"))
        (base / "status").touch()
        ring = keyring()
        options = f" [signed-by={ring}]" if ring else ""
        sources = "".join(f"deb{options} {self.mirror} {suite} main\n" for suite in self.suites)
        _write_whole(base / "sources.list", sources)
        settings = {
            "Dir::State": base / "state",
            "Dir::State::Lists": base / "lists",
            "Dir::State::status": base / "status",
            "Dir::Cache": base,
            "Dir::Cache::archives": base / "archives",
            "Dir::Etc::main": "/dev/null",
            "Dir::Etc::Parts": "/dev/null",
            "Dir::Etc::SourceList": base / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::Preferences": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "APT::Install-Recommends": "false",
            "APT::Architecture": "amd64",
            "APT::Get::AllowUnauthenticated": "false",
            "Acquire::Languages": "none",
            "Acquire::ForceHash": "SHA256",  # in what --print-uris prints
            "Acquire::Retries": "2",
        }
        if self._late:
            settings["Acquire::Check-Valid-Until"] = "false"
        if os.geteuid() == 0:
            # apt's own unprivileged user may not enter the cache folder; without this it says so each time
            settings["APT::Sandbox::User"] = "root"
        lines = [f'{name} "{value}";' for name, value in settings.items()]
        _write_whole(base / "apt.conf", "\n".join([*self._host_acquire_settings(), *lines]) + "\n")
        self._configured = {**os.environ, "APT_CONFIG": str(base / "apt.conf"), "LC_ALL": "C.UTF-8"}
        return self._configured

    @staticmethod
    def _host_acquire_settings() -> list[str]:
        """The host's proxies, time limits and the like; its hooks stay out: they would act on the host."""
        dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False, timeout=30).stdout
        kept = ("Acquire::http", "Acquire::https", "Acquire::ftp", "Acquire::ForceIPv", "Acquire::socks")
        return [line for line in dump.splitlines() if line.startswith(kept)]

    def _apt(self, arguments: Sequence[str], timeout_s: float, cwd: Path | None = None) -> str:
        """Run an apt program to its end and return what it printed; raise with apt's own words if it fails."""
        environment = self._environment()
        try:
            done = subprocess.run(
                arguments,
                env=environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PackageError(
                f"{arguments[0]} took longer than {timeout_s:.0f} s", "check the network and the mirror"
            ) from error
        if done.returncode:
            # apt blames what a full disk cut short: broken packages, hashes, an index without a package
            full = "No space left" in done.stderr or free_bytes(self.cache.root) < _FULL_BYTES
            remedy = space_remedy(self.cache.root) if full else _apt_remedy(done.stderr)
            raise (DiskFull if full else PackageError)(
                f"{' '.join(arguments[:3])} failed:\n{_tail(done.stderr)}", remedy
            )
        return done.stdout

    def probe_mirror(self) -> None:
        """Ask the mirror for one small file; raise :class:`PackageError` if it does not answer in 20 s."""
        self._environment()
        with tempfile.TemporaryDirectory() as folder:
            address = f"{self.mirror}dists/{self.suites[0]}/Release"
            self._apt(
                [str(_APT_HELPER), "-oAcquire::http::Timeout=10", "download-file", address, f"{folder}/Release"],
                timeout_s=20,
            )

    def refresh_index(self) -> None:
        """Fetch the signed index of the suites, unless the one at hand is less than half a day old."""
        if not self._fresh:
            self._environment()
            with self.cache.lock(self._folder, lambda: self.progress.step("another run is fetching the package index")):
                self._refresh_index()
            self._fresh = True

    def _refresh_index(self) -> None:
        lists = self.cache.path(self._folder, "lists")
        stamp = self.cache.path(self._folder, "updated")
        with contextlib.suppress(OSError):
            if time.time() - stamp.stat().st_mtime < _INDEX_MAX_AGE_S and stamp.read_text() == self.mirror:
                return
        self.progress.step(f"fetching the package index of {', '.join(self.suites)} (10 MB) from {self.mirror}")
        try:
            self._apt(["apt-get", "update", "-q", "-oAPT::Update::Error-Mode=any"], timeout_s=300)
        except PackageError as error:
            if isinstance(error, DiskFull) or not any(lists.glob("*_Packages*")):
                raise
            self.progress.say(f"  the index could not be renewed, using the one at hand:\n{error}")
        else:
            stamp.write_text(self.mirror)

    # ---- what there is ----
    def names(self, prefix: str) -> list[str]:
        """Names of the packages in the index that start with `prefix`."""
        self.refresh_index()
        return sorted(self._apt(["apt-cache", "pkgnames", prefix], timeout_s=60).split())

    def candidates(self, names: Sequence[str]) -> set[str]:
        """Those of `names` that the index can really deliver (apt also knows names that are only referred to)."""
        self.refresh_index()
        found: set[str] = set()
        current = ""
        for line in self._apt(["apt-cache", "policy", *names], timeout_s=60).splitlines():
            if line and not line.startswith(" "):
                current = line.rstrip(":")
            elif line.startswith("  Candidate:") and not line.endswith("(none)"):
                found.add(current)
        return found

    def plan(self, names: Sequence[str], suite: str, without: Collection[str] = ()) -> list[PackageFile]:
        """Resolve `names` and what they depend on in `suite`; leave out the packages named in `without`."""
        self.refresh_index()
        listing = self._apt(["apt-get", "-y", "-t", suite, "--print-uris", "install", *names], timeout_s=120)
        return self._listed(listing, names, without)

    def plan_alone(self, names: Sequence[str]) -> list[PackageFile]:
        """Find just these packages, whatever they depend on."""
        self.refresh_index()
        return self._listed(self._apt(["apt-get", "--print-uris", "download", *names], timeout_s=120), names, ())

    @staticmethod
    def _listed(listing: str, names: Sequence[str], without: Collection[str]) -> list[PackageFile]:
        files = []
        for line in listing.splitlines():
            if match := _URI_LINE.match(line):
                package, version, _ = match["file"].split("_", 2)
                if package not in without:
                    version = version.replace("%3a", ":")
                    size = int(match["size"])
                    files.append(PackageFile(package, version, match["file"], size, match["sha256"]))
        # what is in apt's own archive folder already is not listed: that folder is kept empty
        if not files:
            raise PackageError(f"apt lists nothing to fetch for {' '.join(names)}", "run `vhca doctor`")
        return files

    # ---- fetching ----
    def fetch(self, files: Sequence[PackageFile], what: str) -> list[Path]:
        """Fetch index packages, all at once, checked by apt; return where they are."""
        folder = self.cache.folder("debs", self.shelf)
        absent = [f for f in files if not _is(folder / f.file, f.size_bytes, f.sha256)]
        if absent:
            total = sum(f.size_bytes for f in absent)
            self._announce(what, len(absent), total, folder)
            self._download(absent, folder, total, what)
        return [folder / f.file for f in files]

    def clear(self) -> None:
        """Remove the fetched files: what was made of them is in the cache."""
        remove(self.cache.path("debs", self.shelf))

    def fetch_pool(self, files: Sequence[PoolFile], what: str) -> list[Path]:
        """Fetch pool files by name, each checked against its recorded SHA-256; return where they are."""
        self._environment()
        folder = self.cache.folder("debs", self.shelf)
        absent = [f for f in files if not _is(folder / f.name, f.size_bytes, f.sha256)]
        if absent:
            self._announce(what, len(absent), sum(f.size_bytes for f in absent), folder)
        for file in absent:
            target = folder / file.name
            partial = folder / f".part-{file.name}"
            try:
                with _growth(self.progress, [partial], file.size_bytes, file.name.split("_")[0]):
                    self._apt(
                        [
                            str(_APT_HELPER),
                            "download-file",
                            self.mirror + file.path,
                            str(partial),
                            f"SHA256:{file.sha256}",
                        ],
                        timeout_s=1800,
                    )
                if sha256_of(partial) != file.sha256:
                    raise PackageError(f"{file.name} is not the file that was recorded (SHA-256 differs)")
                os.rename(partial, target)
            finally:
                partial.unlink(missing_ok=True)
        return [folder / f.name for f in files]

    def _download(self, absent: Sequence[PackageFile], folder: Path, total: int, what: str) -> None:
        partial = self.cache.folder("debs", self.shelf, "partial")
        wanted = [f"{f.name}={f.version}" for f in absent]
        paths = [partial / f.file for f in absent]
        with _growth(self.progress, paths, total, what):
            self._apt(["apt-get", "download", "-q", *wanted], timeout_s=1800, cwd=partial)
        for file, path in zip(absent, paths, strict=True):
            if not _is(path, file.size_bytes, file.sha256):
                path.unlink(missing_ok=True)
                raise PackageError(f"apt fetched {file.file}, but it is not the file that the index lists", "try again")
            os.rename(path, folder / file.file)

    def _announce(self, what: str, count: int, total: int, folder: Path) -> None:
        self.progress.step(f"{what}: {count} packages, {total / 1e6:.1f} MB, from {self.mirror} to {folder}")
        if free_bytes(folder) < 3 * total + 200_000_000:
            raise PackageError(
                f"only {free_bytes(folder) / 1e6:.0f} MB free for {folder}",
                space_remedy(folder),
            )


def unpack(debs: Sequence[Path], root: Path, progress: Progress, label: str) -> None:
    """Unpack package files below `root`; nothing of them is run.

    Each is unpacked alone and then moved into place, so that a link of one does not lead the next astray: files are put
    below `root` only. Setuid, setgid and sticky bits, and the right of others to write, are dropped.
    """
    root.mkdir(parents=True, exist_ok=True)
    done = 0

    def one(deb: Path) -> Path:
        alone = Path(tempfile.mkdtemp(dir=workspace))
        result = subprocess.run(
            ["dpkg-deb", "-x", str(deb), str(alone)], capture_output=True, text=True, check=False, timeout=600
        )
        if result.returncode:
            raise PackageError(
                f"cannot unpack {deb.name}:\n{_tail(result.stderr)}",
                f"remove {deb} and try again; check the free space",
            )
        return alone

    with (
        tempfile.TemporaryDirectory(prefix=".unpack-", dir=root.parent) as workspace,
        ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool,
    ):
        for deb, alone in zip(debs, pool.map(one, debs), strict=True):
            try:
                _merge(alone, root, root.resolve())
            except (OSError, RuntimeError) as error:  # a loop of links is the latter, before Python 3.13
                raise PackageError(f"cannot unpack {deb.name}: {error}", "check the free space") from error
            done += 1
            progress.bar(label, done, len(debs))


def _merge(source: Path, target: Path, root: Path) -> None:
    """Move what is in the folder `source` into the folder `target`, which is `root` or below it."""
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        place = target / entry.name
        if entry.is_dir(follow_symlinks=False):
            if place.is_symlink():  # such as lib -> usr/lib: followed, but not out of the root
                place = place.resolve()
                if not place.is_relative_to(root):
                    raise PackageError(f"a package has files in {target / entry.name}, which leads out of {root}")
            place.mkdir(parents=True, exist_ok=True)
            _merge(Path(entry.path), place, root)
            place.chmod(stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode) & _KEPT_MODE | 0o700)
        elif entry.is_file(follow_symlinks=False):
            os.chmod(entry.path, entry.stat(follow_symlinks=False).st_mode & _KEPT_MODE)
            os.replace(entry.path, place)
        elif entry.is_symlink():
            os.replace(entry.path, place)
        else:
            raise PackageError(f"a package has {place.relative_to(root)}, which is neither file, folder nor link")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def _growth(progress: Progress, paths: Sequence[Path], total: int, label: str) -> Iterator[None]:
    """Show how files grow while something else writes them."""
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(0.3):
            size = 0
            for path in paths:
                with contextlib.suppress(OSError):
                    size += path.stat().st_size
            progress.bar(label, min(size, total - 1), total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
    progress.bar(label, total, total)


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that another process sees the old or the new one, never a part."""
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    beside.write_text(text)
    os.replace(beside, path)


def _is(path: Path, size_bytes: int, sha256: str) -> bool:
    """Is there a file at `path`, no link, with this content?"""
    try:
        status = path.lstat()
        return stat.S_ISREG(status.st_mode) and status.st_size == size_bytes and sha256_of(path) == sha256
    except OSError:
        return False


def _tail(text: str, lines: int = 6) -> str:
    return "\n".join("  " + line for line in text.strip().splitlines()[-lines:])


def _apt_remedy(stderr: str) -> str:
    """Say what to do about an apt failure, judging by apt's own words."""
    if "NO_PUBKEY" in stderr or "is not signed" in stderr or "Missing key" in stderr:
        return (
            "the host's keyring does not know the keys of the trixie archive: update the package "
            "debian-archive-keyring, or set VHCA_DEBIAN_KEYRING to a newer keyring file"
        )
    if any(word in stderr for word in ("resolve", "connect", "Timeout", "timed out", "Temporary failure")):
        return "check the network and apt's proxy settings, or set VHCA_DEBIAN_MIRROR to a mirror that can be reached"
    if "404" in stderr:
        return "the index is out of date or the file left the mirror: remove the cache's apt folder and try again"
    if "Unable to locate" in stderr:
        return "the mirror does not carry that package: set VHCA_DEBIAN_MIRROR to a full Debian mirror"
    return "run `vhca doctor`"
