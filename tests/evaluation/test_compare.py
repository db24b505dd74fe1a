"""Comparisons of runs, and their ELUE scores."""

from __future__ import annotations

import json

import pytest

from offramp.cli.main import main
from offramp.errors import BadInput, BadValue
from offramp.evaluation.compare import compare, curve_of
from offramp.evaluation.results import read_results
from offramp.originals.elue import elue_score, macs_per_exit, read_reference, track
from tests.calls import fails
from tests.tiny import adaptive


def point(layers, score, name="entropy:1", width=1):
    return {
        "policy": name,
        "parameter": 1.0,
        "mean_layers": layers,
        "score": score,
        "agreement": score,
        "flops": layers * 2e6 * width,
        "elue_flops": layers * 100.0,
    }


def write_run(folder, points, static=((1, 0.6), (2, 0.7), (4, 0.8)), data="a", parameters=30_000_000, width=1):
    folder.mkdir()
    results = {
        "model": {"depth": 4, "parameters": parameters},
        "data": {"name": "reviews", "rows": 9, "fingerprint": data, "metrics": ["acc"]},
        "policies": {"entropy": [point(*values, width=width) for values in points]},
        "static": [point(*values, "layer:1", width) for values in static],
        "exits": [],
    }
    (folder / "results.json").write_text(json.dumps(results))
    return folder


@pytest.fixture
def runs(tmp_path):
    low = write_run(tmp_path / "low", [(4, 0.80), (2, 0.70), (1, 0.60)])
    high = write_run(tmp_path / "high", [(4, 0.82), (2, 0.80), (1, 0.60)], parameters=60_000_000)
    return low, high


def test_score_at_equal_cost_and_cost_at_equal_score(runs):
    compared, _ = compare(runs, None, "entropy")
    assert [curve.name for curve in compared.curves] == ["low", "high"]
    shares = dict(zip((0.25, 0.4, 0.5, 0.6, 0.75, 1.0), zip(*compared.at_cost(), strict=True), strict=True))
    assert shares[0.25] == (0.60, 0.60) and shares[0.5] == (0.70, 0.80) and shares[1.0] == (0.80, 0.82)
    assert compared.at_score()[0][-1] == 4 and compared.at_score()[1][-1] == 2
    # 0.1 higher from 2 to 4 of the layers 1 to 4, at the end 0.02
    assert compared.areas() == [0.0, pytest.approx(0.1 * 2 / 3, abs=1e-3)]


def test_a_layer_of_a_wider_backbone_costs_more(runs, tmp_path, capsys):
    """If layers have different widths, cost is counted in operations."""
    low, _ = runs
    wide = write_run(tmp_path / "wide", [(4, 0.82), (2, 0.80), (1, 0.60)], width=4)
    compared, _ = compare([low, wide], None, "entropy")
    assert (compared.unit, compared.full) == ("MFLOPs", 32)
    assert compared.curves[0].at(8) == 0.80 and compared.curves[1].at(8) == 0.60  # 4 narrow layers, 1 wide one
    assert compared.at_score()[0][-1] == 8 and compared.at_score()[1][-1] == 16
    assert main(["compare", str(low), str(wide), "-o", str(tmp_path / "out")]) == 0
    assert "8.0 MFLOPs" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["unit"] == "MFLOPs"
    assert "operations per text (MFLOPs)" in (tmp_path / "out" / "curve.svg").read_text()


def test_scores_of_a_curve_never_fall(tmp_path):
    """A curve that falls with more layers counts with its best score so far."""
    folder = write_run(tmp_path / "run", [(4, 0.7), (2, 0.8)])
    curve = curve_of("run", read_results(folder), "entropy")
    assert curve.at(4) == 0.8 and curve.at(1.9) is None and curve.cost_of(0.9) is None


def test_the_command_prints_tables_and_writes_a_figure(runs, capsys, tmp_path):
    assert main(["compare", *map(str, runs), "--names", "DeeBERT,RomeBERT", "-o", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "RomeBERT" in printed and "mean difference to DeeBERT" in printed
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"comparison.json", "curve.png", "curve.svg"}
    comparison = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert comparison["runs"] == ["DeeBERT", "RomeBERT"] and comparison["track"]["RomeBERT"] == "< 70 M"


def test_the_score_of_the_published_example():
    curve = [(100.0, 0.80), (200.0, 0.90)]
    assert elue_score([(150.0, 0.86), (200.0, 0.89)], curve) == pytest.approx(0)
    assert elue_score(curve, curve) == pytest.approx(0)
    with pytest.raises(BadInput, match=r"covers 0\.0001 to 0\.0002 MFLOPs, but a point is at 0\.00025"):
        elue_score([(250.0, 0.9)], curve)
    assert elue_score([(250.0, 0.95)], curve, clamp=True) == pytest.approx(0.05)
    with pytest.raises(BadInput, match="at least two points"):
        elue_score([(1, 1)], curve[:1])
    with pytest.raises(BadInput, match="not percent"):
        elue_score([(150.0, 0.8)], [(100.0, 80.0), (200.0, 90.0)])
    assert elue_score([(201.0, 0.90)], curve) == pytest.approx(0)  # heads on the way


def test_a_reference_from_a_file_or_from_static_runs(runs, tmp_path, capsys):
    (tmp_path / "curve.csv").write_text("flops,score\n100,0.6\n400,0.8\n")
    compared, _ = compare(runs, None, "entropy", reference=[tmp_path / "curve.csv"])
    expected = (0.0 + (0.70 - (0.6 + 0.2 / 3)) + 0.0) / 3
    assert compared.elue["low"] == pytest.approx(expected)
    statics = [write_run(tmp_path / f"s{k}", [(k, 0.5)], static=[(k, 0.5 + k / 10)]) for k in (1, 2, 4)]
    assert main(["compare", *map(str, runs), "--elue-reference", *map(str, statics)]) == 0
    assert "ELUE score" in capsys.readouterr().out
    assert main(["compare", str(runs[0]), "--elue-reference", *map(str, statics)]) == 0  # one run is enough here
    assert "ELUE score" in capsys.readouterr().out
    short = [str(folder) for folder in statics[:2]]
    assert "covers 0.0001 to 0.0002 MFLOPs" in fails(capsys, "compare", *runs, "--elue-reference", *short)


def test_operations_need_a_family_that_elue_counts(tmp_path):
    with pytest.raises(BadValue, match="does not support modernbert"):
        macs_per_exit(adaptive("modernbert", tmp_path / "m", num_labels=2).config)
    assert len(macs_per_exit(adaptive("mpnet", tmp_path / "n", num_labels=2).config)) == 4
    assert [track(size * 10**6) for size in (39, 40, 69, 110)] == ["< 40 M", "< 55 M", "< 70 M", "≥ 110 M"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cost,score\n1,2\n", "needs flops and score"),
        ("flops,score\n1,much\n", "line 2: flops and score must be numbers"),
    ],
)
def test_a_reference_that_cannot_be_read(text, message, tmp_path):
    (tmp_path / "curve.csv").write_text(text)
    with pytest.raises(BadInput, match=message):
        read_reference(tmp_path / "curve.csv")


def test_mistakes_are_one_line(runs, tmp_path, capsys):
    other = write_run(tmp_path / "other", [(4, 0.8)], data="b")
    low, high = runs
    assert "at least two runs, or one with --elue-reference" in fails(capsys, "compare", low)
    assert "on other rows" in fails(capsys, "compare", low, other)
    assert "has no curve of policy 'vote'. Available: entropy, layer" in fails(
        capsys, "compare", low, high, "--policy", "vote"
    )
    assert "not a run of `offramp evaluate`" in fails(capsys, "compare", low, tmp_path)
    assert "2 different names" in fails(capsys, "compare", low, high, "--names", "a,a")
    for text in ("{", "[]", '{"model": {}}'):
        (high / "results.json").write_text(text)
        assert "is not a valid results file" in fails(capsys, "compare", low, high)
    (tmp_path / "latin.csv").write_bytes("flops,score\n1,é\n".encode("latin-1"))
    reference = ["--elue-reference", tmp_path / "latin.csv"]
    assert "is not UTF-8" in fails(capsys, "compare", low, low, "--names", "a,b", *reference)
