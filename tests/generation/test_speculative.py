"""The rule of speculative decoding: by enumeration it gives the target's distribution, whatever the draft's is."""

import itertools

import pytest
import torch

from nestling.generation.speculative import acceptance, next_distribution, residual, verified

VOCABULARY = 3


def distributions(seed, length):
    """A distribution (V,) after each text of up to ``length`` tokens, by the text."""
    generator = torch.Generator().manual_seed(seed)
    texts = [text for n in range(length + 1) for text in itertools.product(range(VOCABULARY), repeat=n)]
    drawn = torch.rand(len(texts), VOCABULARY, generator=generator, dtype=torch.float64) ** 3
    return dict(zip(texts, drawn / drawn.sum(1, keepdim=True), strict=True))


def texts_of_a_round(target, draft, number):
    """The probability of every text that a round with ``number`` proposals may add, by enumeration.

    The proposals have the draft's probabilities; each is kept with the probability of the rule, and the text ends with
    a token of the rule's last distribution.
    """
    texts = {}
    for proposed in itertools.product(range(VOCABULARY), repeat=number):
        p = torch.stack([target[proposed[:n]] for n in range(number + 1)])
        q = torch.stack([draft[proposed[:n]] for n in range(number)])
        index = torch.tensor(proposed)
        keeps = acceptance(p[:-1], q, index)
        probability = float(q.gather(1, index[:, None]).prod())
        for kept in range(number + 1):
            stops = float(keeps[:kept].prod() * (1 - keeps[kept] if kept < number else 1))
            after = p[kept] if kept == number else residual(p[kept], q[kept])
            for token in range(VOCABULARY):
                text = (*proposed[:kept], token)
                texts[text] = texts.get(text, 0.0) + probability * stops * float(after[token])
    return texts


def continued(texts, target, length):
    """The probability of each text of ``length`` tokens, if shorter ones go on with the target's own distribution."""
    complete = {}
    for text, probability in texts.items():
        for rest in itertools.product(range(VOCABULARY), repeat=max(length - len(text), 0)):
            whole, share = text[:length], probability
            for token in rest:
                share, whole = share * float(target[whole][token]), (*whole, token)
            complete[whole] = complete.get(whole, 0.0) + share
    return complete


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_round_has_the_distribution_of_the_target(seed, number):
    target, draft = distributions(seed, number + 1), distributions(seed + 100, number + 1)
    texts = texts_of_a_round(target, draft, number)
    assert sum(texts.values()) == pytest.approx(1, abs=1e-12)
    length = number + 1
    found = continued(texts, target, length)
    for text in itertools.product(range(VOCABULARY), repeat=length):
        expected = 1.0
        for place, token in enumerate(text):
            expected *= float(target[text[:place]][token])
        assert found[text] == pytest.approx(expected, abs=1e-12), text


def test_the_share_of_kept_tokens_is_what_the_distributions_have_in_common():
    """Leviathan et al. 2023, theorem 3.5: the expected acceptance is the sum of min(p, q)."""
    p, q = (distributions(seed, 0)[()][None] for seed in (1, 2))
    tokens = torch.arange(VOCABULARY)
    keeps = acceptance(p.expand(3, -1), q.expand(3, -1), tokens)
    assert float((q[0] * keeps).sum()) == pytest.approx(float(torch.minimum(p, q).sum()))


def test_verified_follows_the_uniform_numbers():
    p = torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.3, 0.7]], dtype=torch.float64)
    q = torch.tensor([[0.5, 0.5], [0.8, 0.2]], dtype=torch.float64)
    proposed = torch.tensor([1, 0])  # kept with probability 1 and 1/8
    for second, kept, after in ((0.124, 2, [0.3, 0.7]), (0.126, 1, [0.0, 1.0])):
        found, distribution = verified(p, q, proposed, torch.tensor([0.999, second], dtype=torch.float64))
        assert (found, distribution.tolist()) == (kept, pytest.approx(after))


def test_equal_distributions_keep_everything():
    p = torch.tensor([[0.2, 0.8]], dtype=torch.float64)
    assert acceptance(p, p, torch.tensor([0])).tolist() == [1.0]
    assert residual(p[0], p[0]).tolist() == p[0].tolist()


def test_temperature():
    logits = torch.tensor([[0.0, 1.0, 0.5]])
    assert next_distribution(logits, 0).tolist() == [[0.0, 1.0, 0.0]]
    expected = torch.tensor([[0.0, 2.0, 1.0]], dtype=torch.float64).softmax(1)
    torch.testing.assert_close(next_distribution(logits, 0.5), expected)
