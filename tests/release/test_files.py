"""Output files are written completely or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from discreet.errors import InputError
from discreet.release.files import write_atomically

from .builders import release_of

WRITES = {
    "json": lambda release, path: release.to_json(path),
    "csv": lambda release, path: release.to_csv(path),
    "parquet": lambda release, path: release.to_parquet(path),
    "png": lambda release, path: release.plot(path),
}
on_every_format = pytest.mark.parametrize("end", WRITES)


def _tree(folder):
    return {path.relative_to(folder).as_posix(): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@on_every_format
@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["text", "path"])
def test_a_file_is_written_and_nothing_beside_it(tmp_path, end, kind):
    """The path is text or a Path, and an existing file is replaced."""
    for _ in range(2):
        WRITES[end](release_of(["é", "b"]), kind(tmp_path / f"r.{end}"))
        assert list(_tree(tmp_path)) == [f"r.{end}"]
        (tmp_path / f"r.{end}").write_bytes((tmp_path / f"r.{end}").read_bytes()[:7])


def test_written_text_is_the_returned_text_in_utf_8(tmp_path):
    """Bytes and line ends are the same on every system."""
    release = release_of(["é\n", "日本"])
    assert (release.to_json(tmp_path / "r.json").encode(), release.to_csv(tmp_path / "r.csv").encode()) == (
        (tmp_path / "r.json").read_bytes(),
        (tmp_path / "r.csv").read_bytes(),
    )


@on_every_format
@pytest.mark.parametrize("where", ["folder", "file/r", "missing/r", "n" * 300])
def test_an_output_that_cannot_be_written_is_refused_and_changes_nothing(tmp_path, end, where):
    """A folder, a path below a file, a missing folder, a name that is too long."""
    (tmp_path / f"folder.{end}").mkdir()
    (tmp_path / f"folder.{end}" / "inside").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = _tree(tmp_path)
    with pytest.raises(InputError, match="cannot be written: ") as error:
        WRITES[end](release_of(["a"]), tmp_path / f"{where}.{end}")
    assert f"{where}.{end}" in str(error.value)
    assert "\n" not in str(error.value)
    assert _tree(tmp_path) == before


@pytest.mark.parametrize(
    "fault", [OSError(28, "No space left on device"), KeyboardInterrupt(), RuntimeError("bug")], ids=repr
)
def test_a_write_that_fails_half_way_leaves_the_old_file(tmp_path, fault):
    """No temporary file is left."""
    (tmp_path / "r.csv").write_text("old")

    def fails(part):
        part.write_text("half")
        raise fault

    with pytest.raises(InputError if isinstance(fault, OSError) else type(fault)) as raised:
        write_atomically(tmp_path / "r.csv", fails)
    assert not isinstance(fault, OSError) or "no space left on device" in str(raised.value)
    assert _tree(tmp_path) == {"r.csv": b"old"}


def test_a_file_is_replaced_only_when_it_is_complete(tmp_path):
    """While a file is written, the old one stays."""
    (tmp_path / "r.csv").write_text("old")
    seen = []

    def write(part):
        part.write_text("n")
        seen.append((tmp_path / "r.csv").read_text())
        part.write_text("new")
        seen.append((part.parent, part.suffix))

    write_atomically(tmp_path / "r.csv", write)
    assert seen == ["old", (tmp_path, ".csv")]
    assert _tree(tmp_path) == {"r.csv": b"new"}


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_permissions_follow_the_umask(tmp_path, umask):
    """Permissions are those of any new file of the process."""
    before = os.umask(umask)
    try:
        release_of(["a"]).to_csv(tmp_path / "r.csv")
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "r.csv").stat().st_mode) == 0o666 & ~umask


def test_a_name_of_255_characters_can_be_written(tmp_path):
    """The longest name that file systems allow is written."""
    name = "n" * 251 + ".csv"
    release_of(["a"]).to_csv(tmp_path / name)
    assert list(_tree(tmp_path)) == [name]
