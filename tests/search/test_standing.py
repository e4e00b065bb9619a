"""What a search says while it goes on."""

import re

import pytest
from test_search import data, make

from nestling.search import search
from nestling.search.standing import SHARES


@pytest.mark.parametrize("strategy", ["beam", "greedy"])
def test_the_best_at_each_share_of_the_cost(strategy, capsys):
    nested = make()
    curve = search(nested, data(), strategy=strategy, quiet=False)
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 10
    counts = [re.match(r"search  (\d+) of at most (\d+) cuts  best by macs  ", line) for line in lines]
    noted, most = [int(own[1]) for own in counts], int(counts[0][2])
    assert noted == sorted(noted)
    assert most >= noted[-1]
    number = noted[-1]
    tried = curve.tried[:number]
    whole = max(row.cost for row in tried)
    for share in SHARES:
        scores = [row.quality.score for row in tried if row.cost <= share * whole]
        said = re.search(rf"  {share:.0%}: ([\d.]+)%", lines[-1])
        assert (said is None) == (not scores)
        if said is not None:
            assert float(said[1]) == pytest.approx(100 * max(scores), abs=0.005)


def test_quiet(capsys):
    search(make(), data(), strategy="uniform")
    assert capsys.readouterr() == ("", "")
