"""The report page: safe as text, and correct in a real browser (Chromium, driven by selenium)."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser

import pytest

from offramp.cli.main import main
from offramp.policies import parse
from offramp.report.page import page_of as render
from tests.findings import bare, curve, findings, many_exits, regression

HOSTILE = '</script><script>window.pwned = 1</script><!-- <img src=x onerror="window.pwned = 1"> \u2028 &lt;'


# ---- the text alone


class Scripts(HTMLParser):
    """The content of every script, and every URL that would be loaded."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.loads, self.inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")
        self.loads += [value for name, value in attributes if name in ("src", "href") and value != "data:,"]

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data


def hostile():
    results = findings()
    results["model"].update(name=HOSTILE, labels=[HOSTILE, "positive"], policy=HOSTILE)
    results["data"]["name"] = results["command"] = results["machine"]["cpu"] = HOSTILE
    results["calibration"] = {"sentence": HOSTILE}
    results["policies"][HOSTILE] = curve(HOSTILE, 5, 6)
    results["chosen"]["policy"] = HOSTILE
    for examples in results["examples"].values():
        examples[0].update(text=HOSTILE, label=HOSTILE, answer=HOSTILE)
    return results


def test_the_results_come_back_from_the_page():
    embedded, _ = Scripts(render(hostile())).scripts
    assert json.loads(embedded) == hostile()


def test_no_text_ends_the_script_or_begins_a_comment():
    page = Scripts(render(hostile()))
    (embedded, code), loads = page.scripts, page.loads
    assert not re.search("[<>&\u2028\u2029]", embedded) and embedded.isascii()
    assert "innerHTML" not in code and not loads


def test_half_a_surrogate_pair_can_be_written():
    assert b"\\ud800" in render({"command": "\ud800"}).encode("utf-8")


def test_nan_and_infinity_become_null():
    results = {"exits": [{"scores": {"mcc": float("nan")}, "interval": (float("-inf"), 1)}]}
    embedded, _ = Scripts(render(results)).scripts
    assert json.loads(embedded) == {"exits": [{"scores": {"mcc": None}, "interval": [None, 1]}]}


def test_a_text_that_looks_like_the_placeholder_is_not_replaced():
    embedded, _ = Scripts(render({"command": "RESULTS_GO_HERE"})).scripts
    assert json.loads(embedded) == {"command": "RESULTS_GO_HERE"}


# ---- in the browser


@pytest.fixture
def show(browser, tmp_path):
    """Open a page from disk at this width in pixels; afterwards the console must be empty."""

    def open_page(results, width=1000, **media):
        file = tmp_path / "report.html"
        file.write_text(render(results), encoding="utf-8")
        emulate(browser, width, **media)
        browser.get(file.as_uri())
        browser.execute_async_script(FRAME)
        return browser

    yield open_page
    assert browser.get_log("browser") == []


def emulate(browser, width, scheme="light", media=""):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def text(browser, selector):
    """The text of an element with ordinary spaces; None if it is not visible."""
    element = browser.find_element("css selector", selector)
    return element.text.replace("\u00a0", " ") if element.is_displayed() else None


def hover(browser, position):
    """Move the mouse to the position that a piece of JavaScript returns."""
    x, y = browser.execute_script(position)
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})


def vertex(name, index):
    """JavaScript that returns the position of a point of a curve."""
    return f"""
        const line = document.querySelector('#plot [data-series="{name}"] .line');
        line.scrollIntoView({{block: "center"}});
        const [x, y] = line.getAttribute("d").slice(1).split("L")[{index}].split(" ").map(Number);
        const position = new DOMPoint(x, y).matrixTransform(line.getScreenCTM());
        return [position.x, position.y];
    """


def middle(selector):
    """JavaScript that returns the center of an element."""
    return f"""
        const element = document.querySelector({selector!r});
        element.scrollIntoView({{block: "center"}});
        const box = element.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
    """


PAGES = {
    "complete": findings,
    "no labels": lambda: findings(metrics=[]),
    "nothing chosen": lambda: findings(chosen=False),
    "no seconds": lambda: findings(live=False),
    "two metrics": lambda: findings(metrics=["acc_and_f1", "acc", "f1"]),
    "regression": regression,
    "bare": bare,
    "many exits": many_exits,
    "hostile": hostile,
    "empty": dict,
}


FITS = "return document.documentElement.scrollWidth <= innerWidth"
FRAME = "requestAnimationFrame(() => requestAnimationFrame(() => arguments[0]()))"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_every_width_and_loads_nothing(show, name):
    page = show(PAGES[name](), 360)
    assert page.execute_script(FITS)
    emulate(page, 1600)
    assert page.execute_async_script(FRAME) is None and page.execute_script(FITS)
    assert page.execute_script("return performance.getEntriesByType('resource')") == []
    assert not re.search(r"undefined|NaN|null|\[object", text(page, "main"))
    assert text(page, "h1") and text(page, "#lead")


def test_real_results_can_be_shown(show, trained, tmp_path):
    """The page of a run of `offramp evaluate`."""
    assert main(["evaluate", str(trained), "--output", str(tmp_path / "out")]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert render(results) == (tmp_path / "out" / "report.html").read_text("utf-8")
    page = show(results)
    assert parse(results["chosen"]["policy"]).describe() in text(page, "main") and page.execute_script(FITS)
    assert len(page.find_elements("css selector", "#exits tbody tr")) == len(results["exits"])
    assert len(page.find_elements("css selector", "#live tbody tr")) == 1 + len(results["live"])


def test_the_headline(show):
    page = show(findings())
    assert text(page, "h1") == "minilm-sst2 on sst-2, dev"
    assert text(page, "#lead") == (
        "With entropy, threshold 0.63, the model runs 2.9 of 6 layers on average (2.09 × fewer). "
        "Accuracy is 87.3 % (full model 88.3 %); 98.1 % of predictions are the same as the full model's. "
        "Measured 1.9 × faster than the plain model."
    )


@pytest.mark.parametrize(
    ("ratio", "sentence"),
    [
        (None, "Speed was not measured."),
        (1.0, "Measured about as fast as the plain model."),
        (0.8, "Measured slower than the plain model: 0.80 × its speed."),
    ],
)
def test_nothing_is_called_faster_unless_measured(show, ratio, sentence):
    results = findings(live=ratio is not None)
    if ratio is not None:
        results["live"][0]["measured_speedup"] = ratio
    page = show(results)
    assert text(page, "#lead").endswith(sentence)
    assert "faster" not in text(page, "main")


def test_unknown_values_are_omitted(show):
    page = show(findings(metrics=[], chosen=False, live=False))
    assert text(page, "#curve h2") == "Agreement with the full model against layers run"
    assert "No policy was chosen" in text(page, "#lead")
    assert "accuracy" not in text(page, "main") and "interval" not in text(page, "main")
    assert text(page, "#exiting") is None and text(page, "#live") is None


@pytest.mark.parametrize(("name", "index"), [("entropy", 20), ("entropy", 50), ("patience", 3), ("learned", 35)])
def test_pointing_at_the_curve_shows_the_nearest_point(show, name, index):
    results = findings()
    page = show(results)
    hover(page, vertex(name, index))
    point = results["policies"][name][index]
    mega = point["flops"] / 1e6
    assert text(page, "#tip").split("\n") == [
        "patience 0.6" if name == "patience" else parse(point["policy"]).describe(),
        "accuracy", f"{100 * point['score']:.1f} %",
        "agreement", f"{100 * point['agreement']:.1f} %",
        "mean layers", f"{point['mean_layers']:.2f}",
        "speedup in layers", f"{point['speedup']:.2f} ×",
        "FLOPs per text", f"{mega:.0f} MFLOPs" if mega >= 100 else f"{mega:.1f} MFLOPs",
        *(["measured time", "2.00 s"] if (name, index) == ("patience", 3) else []),
    ]  # fmt: skip
    hover(page, "return [1, 1]")
    assert text(page, "#tip") is None


def test_a_tap_shows_it_too(show):
    page = show(findings(), 360)
    x, y = page.execute_script(vertex("entropy", 50))
    for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchEnd", [])):
        page.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    assert text(page, "#tip").startswith("entropy, threshold 0.85")
    assert page.execute_script(FITS)


def test_lines_that_coincide_are_named_together(show):
    results = findings()
    results["policies"]["confidence"] = curve("confidence", 60, 5)
    page = show(results)
    hover(page, vertex("entropy", 45))
    assert {"entropy, threshold 0.76", "also confidence, threshold 0.76"} <= set(text(page, "#tip").split("\n"))


def test_arrow_keys_go_along_a_line_and_over_to_the_next(show):
    page = show(findings())
    plot = page.find_element("id", "plot")
    page.execute_script("arguments[0].focus()", plot)
    seen = []
    for key in ("\ue013", "\ue013", "\ue012", "\ue012", "\ue014"):  # up, up, left, left, right
        plot.send_keys(key)
        seen.append(text(page, "#tip").split("\n")[0])
    assert seen[0].startswith("all texts exit at layer 3")  # from the chosen point to the fixed exits
    assert seen[1:] == [f"learned, threshold {threshold}" for threshold in (0.59, 0.62, 0.64, 0.62)]
    assert "learned, threshold 0.62 accuracy" in page.find_element("id", "spoken").get_attribute("textContent")
    plot.send_keys("\ue00c")
    assert text(page, "#tip") is None


def test_pointing_at_a_bar_shows_how_many_texts_exit(show):
    page = show(findings())
    assert text(page, ".bars tbody tr:nth-child(2)").split() == ["layer", "2", "301", "34.5", "%"]
    hover(page, middle(".bars tbody tr:nth-child(2) .bar"))
    assert text(page, "#tip").split("\n") == [
        "Layer 2",
        "exit here", "301 (34.5 %)",
        "exited so far", "58.8 %",
        "accuracy of this exit", "81.3 %",
        "FLOPs per text", "56.8 MFLOPs",
    ]  # fmt: skip


def test_the_legend_hides_and_shows_a_line(show):
    page = show(findings())
    lines = {name: f'#plot [data-series="{name}"]' for name in ("entropy", "patience", "oracle", "fixed exits")}
    assert all(page.find_element("css selector", line).is_displayed() for line in lines.values())
    position = vertex("entropy", 20)
    hover(page, position)
    assert text(page, "#tip").startswith("entropy")
    button = page.find_element("css selector", '.keys [data-series="entropy"]')
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not page.find_element("css selector", lines["entropy"]).is_displayed()
    assert page.find_element("css selector", lines["patience"]).is_displayed()
    hover(page, position)
    assert not text(page, "#tip").startswith("entropy")
    button.click()
    assert page.find_element("css selector", lines["entropy"]).is_displayed()


def test_the_tables_carry_the_numbers(show):
    page = show(findings(), 1600)
    assert text(page, "#exits tbody tr:nth-child(3)") == "3 86.9 % 84.3–89.3 % 91.0 % 85.2 MFLOPs"
    assert text(page, "#live tbody tr:nth-child(1)") == "plain model 6.00 1.00 × 3.20 s 1.00 ×"
    assert text(page, "#live tbody tr:nth-child(2)") == "entropy, threshold 0.63 2.86 2.09 × 1.68 s 1.90 ×"
    assert "512 texts" in text(page, "#live")
    assert "872 rows" in text(page, "#reproduce") and "22,713,216 parameters" in text(page, "#reproduce")
    assert "16 November 2026, 06:00 UTC" in text(page, "#reproduce")


def test_an_example_shows_its_layers_and_whether_it_is_right(show):
    page = show(findings())
    hard = "#examples .examples > div:nth-child(2) li"
    assert (
        text(page, f"{hard}:nth-child(1) .prediction") == "●●●●●● prediction negative (61.0 %), label positive – wrong"
    )
    assert text(page, f"{hard}:nth-child(2) .prediction") == "●●●●●· prediction negative (55.0 %)"
    assert page.find_element("css selector", f"{hard}:nth-child(2) .dots").accessible_name == "5 of 6 layers"
    assert len(text(page, f"{hard}:nth-child(3) .start")) < 300
    page.find_element("css selector", f"{hard}:nth-child(3) summary").click()
    assert text(page, f"{hard}:nth-child(3) .start") is None
    assert text(page, f"{hard}:nth-child(3) details").count("it goes on and on") == 40
    page = show(regression())
    assert text(page, "#examples .prediction") == "●····· prediction 4.42, label 4.50"


def test_changed_predictions_come_first(show):
    results = findings()
    changed = {"text": "a fine mess", "answer": "positive", "score": 0.7, "exit_layer": 1, "expected": "negative"}
    page = show(results | {"examples": results["examples"] | {"different": [changed]}})
    tops = [
        page.find_element("css selector", selector).location["y"]
        for selector in ("header", "#different", "#curve", "#exits", "#examples")
    ]
    assert tops == sorted(tops) and "Predictions that differ" in text(page, "#different h2")
    assert text(page, "#different .prediction b") and "Predictions that differ" not in text(page, "#examples")


def test_hostile_texts_stay_texts(show):
    page = show(hostile())
    assert page.execute_script("return window.pwned") is None
    assert page.execute_script("return document.querySelectorAll('img, script').length") == 2
    for selector in ("h1", "#reproduce code", "#calibration .lead", "#examples .text", "#examples .prediction b"):
        assert HOSTILE in page.find_element("css selector", selector).get_attribute("textContent"), selector


def channels(colour):
    """Red, green and blue of #rrggbb, 0 to 1."""
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def contrast(first, second):
    """WCAG's contrast of two colours."""
    light = [
        sum(w * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4) for w, c in zip(LUMA, rgb, strict=True))
        for rgb in (channels(first), channels(second))
    ]
    return (max(light) + 0.05) / (min(light) + 0.05)


LUMA = (0.2126, 0.7152, 0.0722)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_can_be_read(show, scheme):
    page = show(findings(), scheme=scheme)
    names = ["paper", "ink", "muted", "wrong", *(f"c{slot}" for slot in range(8))]
    style = "const style = getComputedStyle(document.documentElement);"
    look = f"{style} return arguments[0].map(name => style.getPropertyValue('--' + name))"
    paper, *others = page.execute_script(look, names)
    background = page.execute_script(f"{style} return style.backgroundColor")
    assert background == f"rgb({', '.join(str(round(255 * channel)) for channel in channels(paper))})"
    assert (sum(channels(paper)) < 1) == (scheme == "dark")
    assert all(contrast(paper, colour) >= 4.5 for colour in others[:3])  # letters
    assert all(contrast(paper, colour) >= 3 for colour in others[3:])  # lines


def test_it_prints_on_white_with_complete_tables(show):
    page = show(findings(metrics=["acc_and_f1", "acc", "f1"]), 680, scheme="dark", media="print")
    look = "const style = getComputedStyle(document.documentElement); return [style.backgroundColor, style.color]"
    assert page.execute_script(look) == ["rgb(255, 255, 255)", "rgb(28, 28, 26)"]
    cut = "return [...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).length"
    assert page.execute_script(cut) == 0
    emulate(page, 1600, scheme="dark")
    printed = page.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
    pdf = base64.b64decode(printed["data"])
    assert pdf.startswith(b"%PDF-")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 4
