"""Files appear complete or not at all, and nothing but a regular file is ever replaced."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from salience.core.files import append, complete, complete_folder, remove
from salience.errors import SalienceError


def test_a_file_appears_once_it_is_complete(tmp_path: Path):
    path = tmp_path / "out.txt"
    path.write_text("old")
    with complete(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["out.txt"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_planted_link_is_not_followed(tmp_path: Path):
    """The temporary name is beside the file, where others may be able to write."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".out.txt.tmp").symlink_to(victim)
    with complete(tmp_path / "out.txt") as file:
        file.write(b"new")
    assert victim.read_text() == "precious"
    assert (tmp_path / "out.txt").read_text() == "new"


def test_two_writers_do_not_mix(tmp_path: Path):
    path = tmp_path / "out.txt"
    with complete(path) as one:
        one.write(b"one")
        with complete(path) as other:
            other.write(b"other, and longer")
    assert path.read_bytes() == b"one"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path):
    """As root, a device such as /dev/null would otherwise be replaced by a regular file."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    with complete(path) as file:
        file.write(b"through")
    reader.join()
    assert read == [b"through"]
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_device_behind_a_link_is_written_to(tmp_path: Path):
    path = tmp_path / "null"
    path.symlink_to("/dev/null")
    with complete(path) as file:
        file.write(b"gone")
    assert os.readlink(path) == "/dev/null"
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_link_to_a_file_stays_a_link(tmp_path: Path):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "page.html", tmp_path / "page.html"
    target.write_text("old")
    link.symlink_to(target)
    with complete(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert os.listdir(tmp_path / "real") == ["page.html"]


def test_a_full_device_is_a_clear_error(tmp_path: Path):
    path = tmp_path / "full"
    path.symlink_to("/dev/full")
    with pytest.raises(SalienceError, match=r"full could not be written: No space left on device"), complete(path) as f:
        f.write(b"x" * 100_000)


def test_a_folder_that_cannot_be_written_to_is_a_clear_error():
    for write in (complete, complete_folder):
        with pytest.raises(SalienceError, match="/proc/x could not be written"), write(Path("/proc/x")):
            pass
    with pytest.raises(SalienceError, match="could not be written"):
        append(Path("/proc/x"), b"x")


def test_a_file_that_is_missing_elsewhere_is_not_taken_for_a_failure_to_write(tmp_path: Path):
    with pytest.raises(FileNotFoundError), complete(tmp_path / "page.html"):
        Path("/no/such/model").read_bytes()
    assert os.listdir(tmp_path) == []


FULL = """
import resource, signal, sys, torch
from pathlib import Path
from safetensors.torch import save_file
from salience.core.files import complete_folder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with complete_folder(Path(sys.argv[1])) as part:
    save_file({"x": torch.zeros(10000)}, part / "model.safetensors")
"""


def test_weights_that_do_not_fit_on_the_disk_are_a_clear_error(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path / "m"], capture_output=True, text=True, check=False)
    assert "salience.errors.SalienceError" in done.stderr.splitlines()[-1]
    assert "m could not be written: File too large" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_folder_appears_once_it_is_complete(tmp_path: Path):
    place = tmp_path / "deep" / "model"
    (tmp_path / "deep" / ".model.0123456789ab.tmp").mkdir(parents=True)  # left by a process that was killed
    with complete_folder(place) as part:
        save_file({"x": torch.zeros(2)}, part / "a.safetensors")
        assert not place.exists()
    assert os.listdir(place) == ["a.safetensors"]
    with pytest.raises(KeyError), complete_folder(place) as part:
        raise KeyError
    assert os.listdir(tmp_path / "deep") == ["model"]


def test_what_cannot_be_deleted_is_named(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    remove(tmp_path / "folder")
    assert os.listdir(tmp_path) == []
    with pytest.raises(SalienceError, match="/proc/version cannot be deleted"):
        remove(Path("/proc/version"))
