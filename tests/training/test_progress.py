"""What a run shows where there is no terminal: lines, and nothing when asked to be quiet."""

import pytest
from small_networks import QUICK, examples, nested_mlp

from nestling.training import train
from nestling.training.loop import Loop
from nestling.training.progress import Progress


def run(**options):
    return train(nested_mlp(), (examples(), examples(seed=3)), QUICK, **options)


def test_lines_where_there_is_no_terminal(capsys):
    log = run().log
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert all(character.isprintable() for line in lines for character in line)
    assert "\r" not in shown.err
    for line, own in zip(lines, log, strict=True):
        assert f"{own['validation']['1.0']['accuracy']:.2%}" in line
        assert line.endswith("kept") == own["kept"]


def test_quiet(capsys):
    run(quiet=True)
    assert capsys.readouterr() == ("", "")


def test_a_run_that_goes_on_says_so(capsys, tmp_path, monkeypatch):
    real = Loop._step

    def step(self, batch):
        if self.state.step == 4:
            raise KeyboardInterrupt
        return real(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", step)
        with pytest.raises(KeyboardInterrupt):
            run(out=tmp_path)
    capsys.readouterr()
    run(out=tmp_path)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "going on from epoch 2, step 3"
    assert second.startswith("epoch 2/2")


@pytest.mark.parametrize("shown", [True, False])
def test_lines_of_a_progress_without_a_terminal(capsys, shown):
    with Progress(10, "train", shown=shown) as progress:
        progress.step(loss="0.5")
        progress.say("a line")
    assert capsys.readouterr() == ("", "a line\n" if shown else "")
