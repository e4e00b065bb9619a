"""Rows of experiments: written, found again, and made into tables."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "experiments"))
import rows


def test_rows_come_back_and_are_found_by_some_of_their_values(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    assert rows.read(path) == []
    assert not rows.made(path, seed=0)
    rows.add(path, {"method": "a", "seed": 0, "changes": {"cuts": (0.5, 1.0)}})
    rows.add(path, {"method": "b", "seed": 0, "changes": {}})
    assert capsys.readouterr().out.count("\n") == 2
    assert [row["method"] for row in rows.read(path)] == ["a", "b"]
    assert rows.made(path, method="a", seed=0)
    assert rows.made(path, changes={"cuts": (0.5, 1.0)})
    assert not rows.made(path, method="a", seed=1)
    assert not rows.made(path, method="a", width=1.0)


def test_changes_are_names_with_json():
    assert rows.changes(["epochs=1", 'schedule="step"', "cuts=[0.5, 1]"]) == {
        "epochs": 1,
        "schedule": "step",
        "cuts": [0.5, 1],
    }


def test_groups_keep_their_order_and_take_dictionaries():
    found = [{"a": 2, "d": {"x": 1}}, {"a": 1, "d": {}}, {"a": 2, "d": {"x": 1}}]
    groups = rows.grouped(found, "a", "d")
    assert list(groups) == [(2, '{"x": 1}'), (1, "{}")]
    assert [len(own) for own in groups.values()] == [2, 1]


def test_spread_is_the_standard_deviation_of_a_sample():
    assert rows.spread([1.0, 2.0, 4.5], 2) == "2.50 ±1.80"  # variance (2.25 + 0.25 + 4) / 2
    assert rows.spread([3.14159], 1) == "3.1"
    assert rows.each([1.0, 2.345], 1) == "1.0, 2.3"
    assert (rows.num_seeds([{"seed": 1}]), rows.num_seeds([{"seed": 1}, {"seed": 2}])) == ("1 seed", "2 seeds")


def test_a_table_has_a_line_per_row():
    assert rows.markdown(["a", "b"], [["1", "2"], ["3", "4"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |"


def test_the_command_line_has_run_and_table(tmp_path, monkeypatch, capsys):
    rows.add(tmp_path / "rows.jsonl", {"seed": 3})
    commands = rows.Commands("About.", lambda found: f"seeds {[row['seed'] for row in found]}")
    commands.run.add_argument("method")
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["script", "table", str(tmp_path / "rows.jsonl")])
    assert commands.asked() is None
    assert capsys.readouterr().out == "seeds [3]\n"
    monkeypatch.setattr(sys, "argv", ["script", "run", "bn3", "--out", "rows.jsonl"])
    asked = commands.asked()
    assert (asked.method, asked.out) == ("bn3", Path("rows.jsonl"))
