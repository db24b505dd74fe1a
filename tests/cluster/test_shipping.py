"""Copies of a model in the temporary folder: shared while they are used, removed afterwards, also after a kill."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from offramp.cluster.shipping import local_model, remove_unused_copies
from offramp.errors import BadModel
from tests.cluster.test_object_storage import upload

HOLD = """
import sys, time
from offramp.cluster.shipping import local_model
with local_model("s3://bucket/shipped") as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


def test_a_model_on_s3_is_copied_without_its_checkpoints_and_removed(folder, s3, temporary):
    upload(s3, folder / "model", "bucket/shipped")
    s3.pipe_file("bucket/shipped/checkpoints/1/model.safetensors", b"not needed")
    with local_model("s3://bucket/shipped") as name:
        names = {path.name for path in (folder / "model").iterdir()}
        assert {path.name for path in Path(name).iterdir()} == names
        remove_unused_copies()
        assert Path(name).is_dir()  # in use
    assert not list(temporary.glob(".offramp-model-*"))
    with pytest.raises(BadModel, match="s3://bucket/no-model contains no model"), local_model("s3://bucket/no-model"):
        pass


def test_the_copy_of_a_killed_process_is_removed_by_the_next_job(folder, s3, temporary):
    upload(s3, folder / "model", "bucket/shipped")
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    copy = Path(process.stdout.readline().strip())
    remove_unused_copies()
    assert copy.is_relative_to(temporary) and (copy / "config.json").is_file()
    process.kill()
    process.wait()
    process.stdout.close()
    remove_unused_copies()
    assert not list(temporary.glob(".offramp-model-*"))


@pytest.mark.parametrize(
    "name",
    [
        "offramp-model-notes/thesis.txt",
        f"offramp-model-{'0a' * 16}/model/thesis.txt",
        ".offramp-model-mine/model/thesis.txt",
        f".offramp-model-{'0a' * 16}/thesis.txt",
        f".offramp-model-{'0a' * 16}",
    ],
)
def test_files_of_others_in_the_temporary_folder_are_kept(tmp_path, monkeypatch, name):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("mine")
    (tmp_path / f".offramp-model-{'1b' * 16}").symlink_to(path.parent)
    remove_unused_copies()
    assert path.read_text() == "mine"
