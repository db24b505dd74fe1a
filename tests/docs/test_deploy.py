"""The files in examples/deploy: real linters check them, and their command lines are parsed by the real parser."""

from __future__ import annotations

import argparse
import configparser
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from offramp.cli.serve import add_arguments
from tests.pages import DOCS, blocks, read

DEPLOY = DOCS.parent / "examples" / "deploy"
UNIT = DEPLOY / "offramp@.service"
LOOPBACK = "127.0.0.1"
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")  # folders of nginx


def linter(name: str) -> str:
    """Return the path of a linter, in this environment or on the system, or skip the test."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def check(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# -- linters ---------------------------------------------------------------------------------------


def test_hadolint_accepts_the_dockerfile():
    check(linter("hadolint"), "--failure-threshold", "info", DEPLOY / "Dockerfile")


def test_kubernetes_accepts_the_manifest():
    """Against the schemas of the newest Kubernetes, which come with the linter; unknown fields are errors."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for resource in manifest().values():
        validate.validate(resource, validate.latest_version(), strict=True)


def test_systemd_accepts_the_unit_and_calls_it_safe(tmp_path):
    analyze = linter("systemd-analyze")
    unit = tmp_path / "offramp@8001.service"
    unit.write_text(UNIT.read_text().replace("/opt/offramp/bin/offramp", shutil.which("true")))
    assert check(analyze, "verify", "--man=no", unit) == ""
    check(analyze, "security", "--offline=true", "--no-pager", "--threshold=20", unit)  # 0 is safe, 100 is not


def test_nginx_accepts_the_example_of_the_page(tmp_path):
    nginx = linter("nginx")
    (example,) = [block for language, block in blocks(read("how-to/deploy.md")) if "server_name" in block]
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    check(*make, "-keyout", key, "-out", cert)
    with socket.create_server((LOOPBACK, 0)) as free:
        listen = f"listen {LOOPBACK}:{free.getsockname()[1]}"
    for old, new in {"/etc/ssl/models.key": key, "/etc/ssl/models.pem": cert, "listen 443": listen}.items():
        assert old in example
        example = example.replace(old, str(new))
    folders = " ".join(f"{name}_temp_path {tmp_path}/{name};" for name in TEMPORARY)
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ access_log off; {folders} {example} }}"
    )
    assert "test is successful" in check(nginx, "-t", "-p", tmp_path, "-c", tmp_path / "nginx.conf")


# -- command lines ---------------------------------------------------------------------------------


def manifest() -> dict:
    """Return the resources of the Kubernetes manifest by kind."""
    resources = {entry["kind"]: entry for entry in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
    assert set(resources) == {"StatefulSet", "Service", "PodDisruptionBudget"}
    return resources


def pod() -> dict:
    return manifest()["StatefulSet"]["spec"]["template"]["spec"]


def dockerfile(instruction: str) -> list[str]:
    """Return what follows every instruction of this name in the Dockerfile, with continued lines joined."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return re.findall(rf"^{instruction} (.*)$", text, re.MULTILINE)


def unit() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False, comment_prefixes=("#",), inline_comment_prefixes=None)
    parser.optionxform = str
    parser.read_string(UNIT.read_text().replace("\\\n", " "))
    return parser["Service"]


def command_lines() -> dict[str, list[str]]:
    """Return the arguments of `offramp serve` in every file."""
    (entry,), (default,) = ([json.loads(line) for line in dockerfile(name)] for name in ("ENTRYPOINT", "CMD"))
    (container,) = pod()["containers"]
    start = shlex.split(unit()["ExecStart"].replace("%i", "8001").replace("%S", "/var/lib"))
    lines = {"Dockerfile": entry + default, "kubernetes.yaml": entry + container["args"], UNIT.name: start}
    assert {Path(line[0]).name for line in lines.values()} == {"offramp"}
    assert {line[1] for line in lines.values()} == {"serve"}
    return {name: line[2:] for name, line in lines.items()}


@pytest.fixture(params=["Dockerfile", "kubernetes.yaml", UNIT.name])
def options(request) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    return parser.parse_args(command_lines()[request.param])


def test_every_file_is_checked():
    assert {file.name for file in DEPLOY.iterdir() if file.is_file()} == {*command_lines(), "ray_serve.py"}


def test_commands_parse_and_servers_that_others_can_reach_need_a_key(options):
    assert options.audit > 0 and options.state.endswith(".json")
    assert options.host == LOOPBACK or options.api_key_file is not None


def test_servers_have_time_to_answer_pending_requests():
    grace = 30
    assert f"--grace-seconds={grace}" in command_lines()["kubernetes.yaml"]
    (container,) = pod()["containers"]
    sleep, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep" and pod()["terminationGracePeriodSeconds"] > int(seconds) + grace
    assert f"--grace-seconds {grace}" in unit()["ExecStart"] and int(unit()["TimeoutStopSec"]) > grace


def test_containers_do_not_run_as_root_and_write_only_into_volumes():
    (user,) = dockerfile("USER")
    (container,) = pod()["containers"]
    assert int(user) == pod()["securityContext"]["runAsUser"] == pod()["securityContext"]["fsGroup"] > 0
    assert container["securityContext"]["readOnlyRootFilesystem"] and pod()["securityContext"]["runAsNonRoot"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    claims = manifest()["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert set(mounts.values()) == {entry["name"] for entry in pod()["volumes"]} | {
        claim["metadata"]["name"] for claim in claims
    }
    arguments = dict(argument.split("=", 1) for argument in container["args"])
    assert {str(Path(arguments[name]).parent) for name in ("--state", "--api-key-file")} <= set(mounts)


def test_probes_and_the_service_use_the_ports_and_routes_of_the_server():
    (container,) = pod()["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    paths = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    assert [probe["path"] for probe in paths] == ["/ready", "/ready", "/health"]
    (service_port,) = manifest()["Service"]["spec"]["ports"]
    assert {probe["port"] for probe in paths} | {service_port["targetPort"]} == set(ports)
    assert [str(ports["http"])] == dockerfile("EXPOSE")
    labels = manifest()["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert all(resource["spec"]["selector"].items() <= labels.items() for resource in [manifest()["Service"]])
