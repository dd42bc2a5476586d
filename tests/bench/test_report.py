"""Records, tables, Markdown and pictures of a comparison."""

from __future__ import annotations

import json

import pytest

from kokoro_tvm.bench import report
from kokoro_tvm.errors import InputError


def test_medians_spread_and_ratios(found):
    ours, peer = found.timings[:2]
    assert ours.median == 0.2
    assert ours.rtf == pytest.approx(0.2)
    assert ours.spread == pytest.approx(0.1 / 0.2)
    assert found.ratio(peer) == pytest.approx(2.5)
    assert found.ratio(found.timings[3]) == pytest.approx(0.5)
    alone = report.Comparison({}, [peer])
    assert alone.ratio(peer) is None


def test_json_and_back(found, tmp_path):
    report.write_json(tmp_path / "a.json", found)
    assert report.read_json(tmp_path / "a.json") == found


_OTHERS = ["", "{}", "[]", '{"schema": 1}', '{"schema": 99}', '{"schema": 1, "header": {}, "timings": [{}]}']


@pytest.mark.parametrize("content", _OTHERS)
def test_json_of_something_else(content, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"a\.json"):
        report.read_json(path)


def test_tables(found):
    shown = {title: (columns, rows) for title, columns, rows in report.tables(found)}
    whole = next(v for k, v in shown.items() if k.startswith("Whole model"))
    assert whole == (["", "1.0 s"], [["kokoro-tvm", "0.200 ±25 %"], ["onnxruntime", "0.500 ±10 %, 2.50 ×"]])
    decoder = next(v for k, v in shown.items() if k.startswith("Decoder"))
    assert decoder[0] == ["", "1.0 s", "3.0 s"]
    assert decoder[1][1] == ["openvino", "0.100 ±0 %, 0.50 ×", "–"]
    spoken = next(v for k, v in shown.items() if k.startswith("A text"))
    assert spoken[1][1] == ["onnxruntime", "Hello world", "2", "500 ms", "2.50 ×"]
    cold = next(v for k, v in shown.items() if k.startswith("A fresh"))
    assert cold[1] == [["kokoro-tvm", "whole", "1.0 s", "0.25 s", "0.50 s", "0.75 s", "321 MiB", "61 s"]]


def test_markdown_has_every_table_and_problem(found):
    lines = report.markdown(found).splitlines()
    tables = report.tables(found)
    assert sum(line.startswith("**") for line in lines) == len(tables) == 5
    for _, columns, rows in tables:
        for row in [columns, *rows]:
            assert f"| {' | '.join(row)} |" in lines
    assert lines[-1] == "- openvino, whole: cannot | import"
    assert "- cpu: made up" in lines


def test_readme_gets_the_short_table(found, tmp_path):
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n")
    report.write_summary(path, found)
    lines = path.read_text().splitlines()
    assert lines[:2] == ["before", "<!-- bench -->"]
    assert lines[-2:] == ["<!-- /bench -->", "after"]
    assert "| real-time factor (lower is faster) | kokoro-tvm | onnxruntime | openvino |" in lines
    assert "| Whole model, token ids to samples, 1.0 s | 0.200 | 0.500 | – |" in lines
    assert "| “Hello world” to samples, warm | 200 ms | 500 ms | – |" in lines
    assert "| A fresh process: load, speak 1.0 s | 0.75 s | – | – |" in lines
    assert "| its peak memory | 321 MiB | – | – |" in lines
    assert "old" not in lines
    assert "2 threads; made up; synthetic weights." in lines
    once = path.read_text()
    report.write_summary(path, found)
    assert path.read_text() == once


@pytest.mark.parametrize(
    "text", ["", "<!-- bench -->\n", "<!-- /bench -->\n<!-- bench -->\n", 2 * "<!-- bench -->\n<!-- /bench -->\n"]
)
def test_readme_without_its_lines(text, found, tmp_path):
    path = tmp_path / "README.md"
    path.write_text(text)
    with pytest.raises(InputError, match="no single pair of lines"):
        report.write_summary(path, found)
    assert path.read_text() == text
    with pytest.raises(InputError, match="cannot read"):
        report.write_summary(tmp_path / "none.md", found)


def test_picture(found, tmp_path):
    figure = report.picture(found)
    visible = [a for a in figure.axes if a.get_visible()]
    assert [len(a.patches) for a in visible] == [2, 3]
    heights = [p.get_height() for p in visible[0].patches]
    assert heights == pytest.approx([0.2, 0.5])
    report.write_picture(tmp_path / "a.svg", figure)
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_nothing_measured_can_be_shown(tmp_path):
    empty = report.Comparison({"cpu": "x"})
    assert report.tables(empty) == []
    assert json.loads(json.dumps(report.markdown(empty))) == "- cpu: x\n"
    report.picture(empty)
