"""The state file of an audit: restarts, kill -9, other models, damaged files, two servers, and `offramp audit`."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

import offramp
from offramp.cli.main import main
from offramp.errors import BadInput, BadValue, CannotWrite
from offramp.serving.audit import Audit
from offramp.serving.audit_state import AuditCounts, AuditedModel, AuditState, AuditStateFile, read_state
from tests.calls import fails
from tests.guaranteed import LOOSE, TEXTS, save_guaranteed
from tests.pages import codes, read, sections
from tests.server import run_server

pytestmark = pytest.mark.usefixtures("one_thread")
MODEL = AuditedModel("abc", "entropy:0.3", {"risk": 0.02, "limits": [["good", 0.1], ["bad", 0.1]]})
EMPTY = Audit.of(0.02, [("good", 0.1), ("bad", 0.1)])


def audited(same: int, different: int, audit: Audit = EMPTY) -> Audit:
    """Return an audit after rows of the first class, the different ones evenly spread."""
    rows = [(number * different) // (same + different) for number in range(same + different + 1)]
    for before, after in itertools.pairwise(rows):
        audit = audit.after(after > before, [after > before, None])
    return audit


def state_of(audit: Audit, skipped: int = 0, model: AuditedModel = MODEL) -> AuditState:
    return AuditState(model, AuditCounts(audit, audit.audited + skipped, skipped))


def write(file: Path, state: AuditState) -> Path:
    file.write_text(state.to_json())
    return file


def call(url: str, body: object = None) -> tuple[dict[str, str], object]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as reply:
        return dict(reply.headers), json.loads(reply.read())


# -- real servers ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loose(tmp_path_factory):
    """A model whose guarantee is violated."""
    return save_guaranteed(tmp_path_factory.mktemp("state") / "model", LOOSE)


def test_an_alarm_survives_a_killed_server_and_disables_early_exits(loose, tmp_path, capsys):
    options = (loose, "--audit", "1", "--state", tmp_path / "state.json", "--on-alarm")
    with run_server(*options, "warn") as server:
        while not call(f"{server.url}/info")[1]["audit"]["violated"]:
            call(server.url, {"inputs": TEXTS})
        while not read_state(tmp_path / "state.json").counts.audit.violated:
            time.sleep(0.01)
        assert "is writing" in fails(capsys, "serve", loose, "--port", 0, "--state", tmp_path / "state.json")
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    kept = read_state(tmp_path / "state.json").counts
    with run_server(*options, "never") as server:
        headers, _ = call(server.url, {"inputs": TEXTS})
        assert headers["x-offramp-exit-layers"] == "4,4,4,4" and "x-offramp-outside-guarantee" not in headers
        audit = call(f"{server.url}/info")[1]["audit"]
        assert audit["violated"] and audit["audited"] == kept.audit.audited and audit["sampled"] == kept.sampled
        metrics = urllib.request.urlopen(f"{server.url}/metrics").read().decode()
        assert "offramp_audited_total 0.0" in metrics and "offramp_alarm_violated 1.0" in metrics
        assert server.stop() == 128 + signal.SIGTERM
        log = server.process.stderr.read()
        assert f"{tmp_path / 'state.json'} contains an alarm; all texts run through the full model." in log
        assert "Requests: 1 accepted, 1 answered, 0 disconnected, 0 failed." in log
    assert read_state(tmp_path / "state.json").counts == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.json"]
    assert main(["audit", str(tmp_path / "state.json")]) == 1


def test_a_state_of_another_model_or_policy_is_refused_and_kept(loose, tmp_path, capsys):
    state = tmp_path / "state.json"
    before = write(state, state_of(audited(5, 0))).read_text()
    line = fails(capsys, "serve", loose, "--audit", 1, "--port", 0, "--state", state)
    assert "is the audit of another model (weights, " in line and "Use another --state file, or delete it" in line
    assert state.read_text() == before
    fingerprint = offramp.load(loose).fingerprint
    write(state, state_of(audited(5, 0), model=replace(MODEL, fingerprint=fingerprint)))
    assert "another exit policy" in fails(capsys, "serve", loose, "--audit", 1, "--port", 0, "--state", state)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', "null", "[" * 10_000])
def test_a_damaged_state_is_refused_and_kept(loose, tmp_path, capsys, content):
    state = tmp_path / "state.json"
    state.write_text(content)
    line = fails(capsys, "serve", loose, "--audit", 1, "--port", 0, "--state", state)
    assert "is not an audit state" in line and "delete it to start over" in line
    assert state.read_text() == content


def test_a_state_needs_a_guarantee_and_a_folder(model, loose, tmp_path, capsys):
    line = fails(capsys, "serve", model, "--port", 0, "--state", tmp_path / "state.json")
    assert "no guarantee on its predictions to monitor; calibrate it, or remove --state" in line
    assert "does not exist" in fails(capsys, "serve", loose, "--port", 0, "--state", tmp_path / "no" / "state.json")
    assert "--audit-share must be" in fails(capsys, "serve", loose, "--audit", 1, "--audit-share", 1)
    assert list(tmp_path.iterdir()) == []


# -- the file --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"audited": -1},
        {"different": 99},
        {"risk": 0.0},
        {"drift": -1.0},
        {"drift": float("inf")},
        {"audited": 10**30},
        {"violated": "no"},
        {"audited": 50},
    ],
)
def test_impossible_counts_are_refused(tmp_path, change):
    content = json.loads(state_of(audited(20, 2)).to_json())
    content["counts"]["audit"] |= change
    (tmp_path / "state.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match="is not an audit state"):
        read_state(tmp_path / "state.json")


def test_a_state_is_read_as_it_was_written(tmp_path):
    state = state_of(audited(300, 30), skipped=7)
    assert read_state(write(tmp_path / "state.json", state)) == state
    endless = audited(0, 3000)  # the drift statistic doubles at every row
    assert read_state(write(tmp_path / "state.json", state_of(endless))).counts.audit == endless


def test_an_alarm_is_written_at_once_and_other_changes_at_the_end(tmp_path):
    file = tmp_path / "state.json"
    states = [state_of(EMPTY)]
    with AuditStateFile.opened(file) as state_file:
        assert state_file.kept is None
        state_file.start(lambda: states[-1])
        assert read_state(file) == states[0]
        states.append(state_of(audited(0, 20)))
        state_file.changed(is_alarm=True)
        while read_state(file) != states[1]:
            time.sleep(0.001)
        states.append(state_of(audited(5, 20)))
        state_file.changed(is_alarm=False)
    assert read_state(file) == states[2]
    with AuditStateFile.opened(file) as state_file:
        assert state_file.counts_for(MODEL) == states[2].counts


def test_readers_never_see_half_a_state(tmp_path):
    file, states = tmp_path / "state.json", [state_of(audited(number, 1)) for number in range(50)]
    over, current = threading.Event(), [states[0]]

    def change() -> None:
        while not over.is_set():
            current[0] = states[(states.index(current[0]) + 1) % 50]
            state_file.changed(is_alarm=True)

    with AuditStateFile.opened(file) as state_file:
        state_file.start(lambda: current[0])
        thread = threading.Thread(target=change)
        thread.start()
        seen = set()
        while len(seen) < 5:
            seen.add(read_state(file).counts.audit.audited)
        over.set()
        thread.join()


def test_a_state_that_cannot_be_written_stops_the_start_but_not_a_server(tmp_path, caplog):
    file = tmp_path / "folder" / "state.json"
    file.parent.mkdir()
    with AuditStateFile.opened(file) as state_file:
        state_file.start(lambda: state_of(EMPTY))
        (file.parent / ".state.json.part").mkdir()  # as if another program were in the way
        for _ in range(3):
            state_file.changed(is_alarm=True)
    assert caplog.text.count("The state of the audit is not saved") == 1
    with pytest.raises(CannotWrite), AuditStateFile.opened(file) as state_file:
        state_file.start(lambda: state_of(EMPTY))


# -- several servers -------------------------------------------------------------------------------


def test_the_sum_raises_an_alarm_that_no_server_raises(tmp_path, capsys):
    """At three times the risk: each server has too few rows."""
    files = [write(tmp_path / f"{name}.json", state_of(audited(94, 6), skipped=100)) for name in "abcde"]
    assert not read_state(files[0]).counts.audit.violated
    one, five = offramp.audit(files[0]), offramp.audit(files)
    assert not one.alarm and five.alarm and five.counts.audit.violated
    assert (five.audited, five.different, five.rate, five.counts.sampled) == (500, 30, 0.06, 1000)
    assert five.interval[0] < 0.06 < five.interval[1] and five.counts.audit.limits[0].audited == 500
    assert main(["audit", *map(str, files)]) == 1
    printed = capsys.readouterr().out
    assert "Audited: 500 of 1,000 sampled predictions (5 state files)" in printed
    assert "Different from the full model: 30 (6 %; 95 % confidence interval" in printed
    assert "good: 30 of 500 changed (the guarantee allows 10 %)" in printed
    assert "Alarm: The guarantee is violated." in printed


def test_no_alarm_is_exit_code_0_and_json_has_every_count(tmp_path, capsys):
    files = [write(tmp_path / f"{name}.json", state_of(audited(99, 1))) for name in "ab"]
    assert main(["audit", *map(str, files)]) == 0
    assert capsys.readouterr().out.endswith("No alarm.\n")
    assert main(["audit", *map(str, files), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["audited"], result["different"], result["alarm"], result["rate"]) == (200, 2, False, 0.01)
    assert [replica["state"] for replica in result["replicas"]] == [str(file) for file in files]


def test_drift_of_one_server_is_an_alarm(tmp_path, capsys):
    drifting = audited(0, 12, audited(5000, 20))
    assert drifting.drifted and not drifting.violated
    files = [write(tmp_path / "a.json", state_of(audited(900, 9))), write(tmp_path / "b.json", state_of(drifting))]
    assert main(["audit", *map(str, files)]) == 1
    printed = capsys.readouterr().out
    assert f"Alarm: {files[1]}: this server has detected drift." in printed and str(files[0]) not in printed


def test_a_class_is_tested_on_the_sum(tmp_path):
    lost = EMPTY
    for _ in range(2):
        lost = lost.after(False, [None, True])
    lost = audited(300, 0, lost)
    assert not lost.alarm
    files = [write(tmp_path / f"{name}.json", state_of(lost)) for name in "abcd"]
    result = offramp.audit(files)
    assert [limit.name for limit in result.counts.audit.violated_limits] == ["bad"] and result.alarm
    assert "Alarm: The guarantee for bad is violated." in str(result)


def test_audits_that_do_not_belong_together_are_refused(tmp_path, capsys):
    file = write(tmp_path / "a.json", state_of(audited(9, 1)))
    other = write(tmp_path / "b.json", state_of(audited(9, 1), model=replace(MODEL, policy="entropy:0.5")))
    assert "their exit policy differs" in fails(capsys, "audit", file, other)
    assert "listed twice" in fails(capsys, "audit", file, tmp_path / "." / "a.json")
    assert "No such file" in fails(capsys, "audit", tmp_path / "nowhere.json")
    with pytest.raises(BadValue, match="is empty"):
        offramp.audit([])


def keys(value: object) -> set[str]:
    """Return the keys of an object and of all objects in it."""
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


def test_the_documentation_names_every_field(tmp_path):
    file, parts = write(tmp_path / "a.json", state_of(audited(9, 1))), sections(read("reference/output-files.md"))
    content = json.loads(file.read_text())
    content["model"]["guarantee"] = {}
    assert keys(content) <= set(codes(parts["serve"]))
    result = offramp.audit([file]).to_dict() | {"limits": []}
    assert keys(result["replicas"]) - keys(content["counts"]["audit"]["limits"]) <= set(codes(parts["audit"]))
    assert set(result) <= set(codes(parts["audit"]))
