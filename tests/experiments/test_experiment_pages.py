"""The tables of the pages are what their commands print today, and every table of a row file stands on a page."""

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "experiments"))
import pages
import papers

WITH_TABLES = [page for page in pages.PAGES if pages.MADE.search(page.read_text())]


@pytest.mark.parametrize("page", WITH_TABLES, ids=lambda page: str(page.relative_to(pages.ROOT)))
def test_tables_are_current(page):
    assert pages.written(page.read_text()) == page.read_text(), "python experiments/pages.py write makes them again"


def test_every_file_of_rows_of_a_paper_has_a_table():
    named = {own for page in WITH_TABLES for own in re.findall(r"experiments/\w+/\w+\.jsonl", page.read_text())}
    needed = {
        f"experiments/{asked.rows}" for paper in papers.PAPERS.values() for asked in paper() if asked.path.exists()
    }
    assert needed <= named


def test_a_page_whose_rows_changed_is_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    script = "import json, pathlib, sys\nprint('| seed |\\n| --- |')\n"
    script += (
        "for line in pathlib.Path(sys.argv[2]).read_text().splitlines():\n    print('|', json.loads(line)['seed'], '|')"
    )
    (tmp_path / "show.py").write_text(script)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"seed": 7}))
    before = "A\n\n<!-- made by: show.py table rows.jsonl -->\nold\n<!-- end -->\nZ\n"
    current = pages.written(before)
    assert "| 7 |" in current
    assert "old" not in current
    assert current.startswith("A\n\n<!-- made by")
    assert current.endswith("<!-- end -->\nZ\n")
    assert pages.written(current) == current
    (tmp_path / "rows.jsonl").write_text(json.dumps({"seed": 8}))
    assert "| 8 |" in pages.written(current)
    picked = pages.written(current.replace("rows.jsonl -->", "rows.jsonl | grep 9 -->"))
    assert "| --- |\n\n<!-- end" in picked


@pytest.mark.parametrize("paper", papers.PAPERS)
def test_runs_of_a_paper_name_scripts_that_exist_and_none_twice(paper):
    asked = list(papers.PAPERS[paper]())
    assert len({own.command for own in asked}) == len(asked) > 5
    assert all((papers.HERE / own.command.split()[0]).exists() for own in asked)
    assert any(own.is_made for own in asked)


def test_only_what_is_missing_is_run(tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"seed": 0}) + "\n")
    (tmp_path / "work.py").write_text(
        "import json, pathlib, sys\npath = pathlib.Path(sys.argv[-1])\n"
        "path.write_text(path.read_text() + json.dumps({'seed': int(sys.argv[1])}) + '\\n')"
    )
    monkeypatch.setattr(papers, "HERE", tmp_path)
    runs = [papers.Asked(f"work.py {seed}", "rows.jsonl", {"seed": seed}) for seed in (0, 1)]
    monkeypatch.setattr(papers, "PAPERS", {"one": lambda: iter(runs)})
    monkeypatch.setattr(sys, "argv", ["papers.py", "run", "one"])
    for _ in range(2):
        papers.main()
        assert (tmp_path / "rows.jsonl").read_text() == '{"seed": 0}\n{"seed": 1}\n'
