"""Packages with a host of our own making: fake apt programs, no network."""

from __future__ import annotations

import hashlib
import shutil
import stat
from pathlib import Path

import pytest

from vhca.lab import packages, pins
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import PackageError
from vhca.lab.packages import PackageFile, PackageStore, PoolFile

MIRROR = "http://mirror.invalid/debian/"


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ([f"{MIRROR}|Debian|bookworm|main"], MIRROR),
        (["http://sec.invalid/x/|Debian-Security|bookworm-security|main", f"{MIRROR}|Debian|bookworm|main"], MIRROR),
        # before the first update apt knows no labels
        (["http://sec.invalid/debian-security/||bookworm-security|main", f"{MIRROR}||bookworm|main"], MIRROR),
        (["http://other.invalid/repo||bookworm|main", f"{MIRROR}||bookworm|main"], MIRROR),
        (["http://other.invalid/ubuntu/|Ubuntu|noble|main"], None),
        (["http://other.invalid/tool/|Tool|stable|main", "http://o.invalid/|Debian|bookworm|contrib"], None),
        (["nonsense", ""], None),
    ],
)
def test_the_mirror_is_the_one_the_host_uses(rows: list[str], chosen: str | None) -> None:
    assert packages.choose_mirror(rows) == chosen


class FakeHost:
    """Programs named like apt's that record their arguments and do what the test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.bodies: dict[str, str] = {}
        for name in ("apt-get", "apt-cache", "apt-config", "apt-helper", "dpkg-deb"):
            self.program(name, "exit 0")
        real = Path(shutil.which("true") or "/bin/true").parent
        monkeypatch.setenv("PATH", f"{folder}:{real}")
        monkeypatch.setenv("VHCA_DEBIAN_MIRROR", MIRROR)
        monkeypatch.setattr(packages, "_APT_HELPER", folder / "apt-helper")

    def program(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $@" >> {self.log}\n{body}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    folder = tmp_path / "host"
    folder.mkdir()
    return FakeHost(folder, monkeypatch)


@pytest.fixture
def store(tmp_path: Path, host: FakeHost) -> PackageStore:
    return PackageStore(Cache(tmp_path / "cache"), Progress(quiet=True), "test")


def test_apt_gets_settings_of_its_own_and_no_hooks_of_the_host(store: PackageStore, host: FakeHost) -> None:
    host.program(
        "apt-config",
        "echo 'Acquire::http::Proxy \"http://proxy.invalid:3128\";'; echo 'APT::Update::Post-Invoke:: \"rm -rf /\";'",
    )
    store.refresh_index()
    conf = (store.cache.root / "apt/apt.conf").read_text()
    assert "proxy.invalid" in conf
    assert "rm -rf" not in conf
    assert f'Dir::State::Lists "{store.cache.root}/apt/lists"' in conf
    assert 'Dir::Etc::Parts "/dev/null"' in conf
    sources = (store.cache.root / "apt/sources.list").read_text()
    assert [line.split()[-3:] for line in sources.splitlines()] == [
        [MIRROR, "trixie", "main"],
        [MIRROR, "trixie-backports", "main"],
    ]


def test_the_index_is_fetched_once(store: PackageStore, host: FakeHost, tmp_path: Path) -> None:
    store.refresh_index()
    store.refresh_index()
    PackageStore(Cache(tmp_path / "cache"), Progress(quiet=True), "test").refresh_index()
    assert sum("update" in call for call in host.calls()) == 1


def test_a_plan_is_what_apt_lists_less_what_is_not_wanted(store: PackageStore, host: FakeHost) -> None:
    listing = "\n".join(
        f"'{MIRROR}pool/{n}' {n}_1%3a2-3_amd64.deb {size} SHA256:{size:064x}" for n, size in (("one", 10), ("perl", 99))
    )
    host.program("apt-get", f"cat <<END\nReading package lists...\n{listing}\nEND")
    (file,) = store.plan(["one"], "trixie", without={"perl"})
    assert (file.name, file.version, file.size_bytes) == ("one", "1:2-3", 10)
    assert file.sha256 == f"{10:064x}"
    assert 'Acquire::ForceHash "SHA256"' in (store.cache.root / "apt/apt.conf").read_text()
    host.program("apt-get", "exit 0")
    with pytest.raises(PackageError, match="nothing to fetch"):
        store.plan(["one"], "trixie")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("The following signatures couldn't be verified: NO_PUBKEY 6ED0", "debian-archive-keyring"),
        ("Temporary failure resolving 'mirror.invalid'", "VHCA_DEBIAN_MIRROR"),
        ("No space left on device", "VHCA_CACHE"),
        ("E: Unable to locate package qemu", "full Debian mirror"),
    ],
)
def test_what_apt_complains_of_comes_with_a_remedy(
    store: PackageStore, host: FakeHost, words: str, remedy: str
) -> None:
    host.program("apt-get", f'echo "E: {words}" >&2; exit 100')
    with pytest.raises(PackageError, match=remedy) as caught:
        store.refresh_index()
    assert words in str(caught.value)


def test_a_full_disk_is_what_is_said_although_an_old_index_is_there(store: PackageStore, host: FakeHost) -> None:
    (store.cache.folder("apt", "lists") / "x_Packages").touch()
    host.program("apt-get", 'echo "E: Write error - write (28: No space left on device)" >&2; exit 100')
    with pytest.raises(PackageError, match=f"free for {store.cache.root}"):
        store.refresh_index()


def test_a_full_disk_is_not_blamed_on_packages(
    store: PackageStore, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.refresh_index()
    host.program("apt-get", 'echo "E: Unable to correct problems, you have held broken packages." >&2; exit 100')
    with pytest.raises(PackageError, match="run `vhca doctor`"):
        store.plan(["one"], "trixie")
    monkeypatch.setattr("vhca.lab.packages.free_bytes", lambda _: 1_000_000)
    with pytest.raises(PackageError, match="free some space"):
        store.plan(["one"], "trixie")


def test_a_host_without_apt_is_told(store: PackageStore, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PackageError, match="apt-get, apt-config, dpkg-deb"):
        store.refresh_index()


def test_a_host_with_no_mirror_is_told(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VHCA_DEBIAN_MIRROR")
    with pytest.raises(PackageError, match="VHCA_DEBIAN_MIRROR"):
        packages.find_mirror()


def test_a_pool_file_must_be_the_recorded_one(store: PackageStore, host: FakeHost) -> None:
    content = "the package"
    good = PoolFile("pool/p_1_all.deb", hashlib.sha256(content.encode()).hexdigest(), len(content))
    host.program("apt-helper", f'printf "{content}" > "$3"')
    (path,) = store.fetch_pool([good], "test")
    assert path.read_text() == content
    assert f"download-file {MIRROR}pool/p_1_all.deb" in host.calls()[-1]
    assert f"SHA256:{good.sha256}" in host.calls()[-1]
    host.program("apt-helper", 'printf "THE PACKAGE" > "$3"')
    bad = PoolFile("pool/q_1_all.deb", good.sha256, good.size_bytes)
    with pytest.raises(PackageError, match="SHA-256"):
        store.fetch_pool([bad], "test")
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing unchecked stays


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


@pytest.mark.parametrize("kind", ["index", "pool"])
def test_a_file_on_the_shelf_is_used_only_if_it_is_the_right_one(
    store: PackageStore, host: FakeHost, tmp_path: Path, kind: str
) -> None:
    name = "p_1_all.deb"
    host.program("apt-helper", 'printf good > "$3"')
    host.program("apt-get", f"[ $1 = download ] && printf good > {name} || exit 0")

    def fetch() -> Path:
        if kind == "pool":
            return store.fetch_pool([PoolFile(f"pool/{name}", digest("good"), 4)], "test")[0]
        return store.fetch([PackageFile("p", "1", name, 4, digest("good"))], "test")[0]

    def fetches() -> int:
        return sum("download" in call for call in host.calls())

    path = fetch()
    assert fetches() == 1
    fetch()
    assert fetches() == 1  # the right one is not fetched again
    path.write_text("EVIL")
    assert fetch().read_text() == "good"
    assert fetches() == 2
    (path.parent / "good").write_text("good")
    path.unlink()
    path.symlink_to("good")  # of the right size too, and the right content, now
    assert fetch().read_text() == "good"
    assert not path.is_symlink()


def test_what_apt_brings_is_looked_at_too(store: PackageStore, host: FakeHost) -> None:
    host.program("apt-get", "[ $1 = download ] && printf EVIL > p_1_all.deb || exit 0")
    with pytest.raises(PackageError, match="not the file that the index lists"):
        store.fetch([PackageFile("p", "1", "p_1_all.deb", 4, digest("good"))], "test")
    assert not [path for path in store.cache.path("debs").rglob("*") if path.is_file()]


class Debs:
    """Package files whose content is a folder beside them."""

    def __init__(self, folder: Path, host: FakeHost) -> None:
        self.folder = folder
        self.root = folder / "cache/root"
        self.root.parent.mkdir(parents=True, exist_ok=True)
        host.program("dpkg-deb", 'cp -a "$2.d/." "$3/"')
        self.debs: list[Path] = []

    def add(self) -> Path:
        """The folder of a new package."""
        deb = self.folder / f"p{len(self.debs)}.deb"
        self.debs.append(deb)
        content = deb.with_name(deb.name + ".d")
        content.mkdir()
        return content

    def unpack(self) -> None:
        packages.unpack(self.debs, self.root, Progress(quiet=True), "test")


@pytest.fixture
def debs(tmp_path: Path, host: FakeHost) -> Debs:
    return Debs(tmp_path, host)


@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_of_one_package_does_not_lead_the_next_out(debs: Debs, tmp_path: Path, absolute: bool) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (debs.add() / "way").symlink_to(outside if absolute else "../../outside")
    second = debs.add()
    (second / "way/deep").mkdir(parents=True)
    (second / "way/deep/x").write_text("x")
    with pytest.raises(PackageError, match="leads out of"):
        debs.unpack()
    assert not list(outside.iterdir())
    assert [path.name for path in debs.root.parent.iterdir()] == ["root"]  # no workspace is left


def test_a_link_that_stays_inside_is_followed(debs: Debs) -> None:
    (debs.add() / "lib").symlink_to("usr/lib")
    second = debs.add()
    (second / "lib/modules").mkdir(parents=True)
    (second / "lib/modules/x").write_text("x")
    debs.unpack()
    assert (debs.root / "usr/lib/modules/x").read_text() == "x"
    assert (debs.root / "lib").is_symlink()


def test_a_file_replaces_a_link_and_is_not_written_through_it(debs: Debs, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (debs.add() / "x").symlink_to(tmp_path / "victim")
    (debs.add() / "x").write_text("new")
    debs.unpack()
    assert (debs.root / "x").read_text() == "new"
    assert (tmp_path / "victim").read_text() == "precious"


def test_packages_that_do_not_fit_together_are_refused(debs: Debs) -> None:
    (debs.add() / "x").mkdir()
    (debs.add() / "x").write_text("x")
    with pytest.raises(PackageError, match=r"cannot unpack p1\.deb"):
        debs.unpack()


def test_a_circle_of_links_is_refused(debs: Debs) -> None:
    (debs.add() / "x").symlink_to("x")
    (debs.add() / "x/y").mkdir(parents=True)
    with pytest.raises(PackageError, match=r"cannot unpack p1\.deb"):
        debs.unpack()


def test_nothing_unpacked_has_rights_of_its_own(debs: Debs) -> None:
    content = debs.add()
    (content / "bin").mkdir()
    (content / "bin/su").write_text("x")
    (content / "bin/su").chmod(0o6777)
    (content / "bin/text").write_text("x")
    (content / "bin/text").chmod(0o664)
    (content / "bin").chmod(0o3577)
    debs.unpack()
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (debs.root / "bin", *(debs.root / "bin").iterdir())}
    assert modes == {"bin": 0o755, "su": 0o755, "text": 0o644}


def test_a_full_disk_is_noticed_before_anything_is_fetched(
    store: PackageStore, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "free_bytes", lambda _path: 1000)
    with pytest.raises(PackageError, match="VHCA_CACHE"):
        store.fetch_pool([PoolFile("pool/big", "0" * 64, 10**6)], "test")
    assert not any("apt-helper" in call for call in host.calls())


def test_a_damaged_package_is_named(store: PackageStore, host: FakeHost, tmp_path: Path) -> None:
    host.program("dpkg-deb", "echo broken archive >&2; exit 2")
    with pytest.raises(PackageError, match=r"x\.deb[\s\S]*broken archive"):
        packages.unpack([tmp_path / "x.deb"], tmp_path / "root", Progress(quiet=True), "test")


def test_the_recorded_checksums_are_whole() -> None:
    for release, files in pins.KERNELS.items():
        assert {f.name.split("_")[0] for f in files} == {f"linux-{p}-{release}" for p in ("binary", "base", "modules")}
        for file in files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert not file.path.startswith(("/", "http"))
