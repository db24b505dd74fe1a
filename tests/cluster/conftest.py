"""A tiny model and its input, a local Ray node, and a local S3 server, shared by the tests of batch jobs."""

from __future__ import annotations

import multiprocessing.util
import os
import random
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.tiny import WORDS, adaptive

LABELS = ["bad", "good", "so so"]
ROWS = 2000
NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.2"}  # a machine; Ray replaces 127.0.0.1


@pytest.fixture(scope="package")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("cluster")
    model = adaptive("bert", root / "encoder", labels=LABELS)
    model.config.policy = {"name": "entropy", "threshold": 1.05}
    model.save_pretrained(root / "model")
    rng = random.Random(0)
    texts = [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12))) for _ in range(ROWS)]
    for number in range(4):
        rows = slice(number * 500, number * 500 + 500)
        table = pa.table({"id": list(range(ROWS))[rows], "text": texts[rows], "more": ["x"] * 500})
        pa.parquet.write_table(table, root / f"{number}.parquet", row_group_size=120)
    return root


@pytest.fixture(scope="package")
def temporary():
    """The temporary folder of drivers and workers, where copies of a model must not stay."""
    multiprocessing.util.get_temp_dir()  # of tests/programs.py, which needs it longer
    path = Path(tempfile.mkdtemp(prefix="offramp-test-"))
    before = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"], tempfile.tempdir = str(path), str(path)
    yield path
    tempfile.tempdir = before[1]
    if before[0] is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before[0]
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="package")
def s3(temporary):
    """A bucket on a local S3 server, as an fsspec file system; drivers and workers find it in the environment."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    import logging

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    settings = {
        "AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()),
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    os.environ |= settings
    import s3fs

    system = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    system.mkdir("bucket")
    yield system
    server.stop()
    for name in settings:
        del os.environ[name]


@pytest.fixture(scope="package")
def cluster(s3):
    """A local Ray cluster of two machines with one core each; drivers connect to its address."""
    pytest.importorskip("ray", reason="ray is not installed (pip install '.[ray]')")
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_TMPDIR": "/tmp"}
    os.environ |= settings | {"RAY_worker_niceness": "0"}  # the default of 15 would starve it beside other tests
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    nodes.add_node(**NODE)
    ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
    yield nodes
    ray.shutdown()
    nodes.shutdown()
