"""Texts by plain and by speculative decoding: one distribution, and at temperature 0 one text."""

import itertools

import pytest
import torch
from scipy.stats import chi2_contingency, chisquare

import nestling as nl
from nestling.generation.decoder import Decoder, window_start
from nestling.generation.reader import Reader

VOCABULARY, CONTEXT = 5, 12
LAYERS = ("head", "neuron", "layer")


def network(seed=0, **options):
    """A GPT whose distributions are far from even, and whose cuts differ from it."""
    torch.manual_seed(seed)
    sizes = {"vocabulary": VOCABULARY, "context": CONTEXT, "layers": 2, "stream": 16, "heads": 4}
    net = nl.models.GPT(**(sizes | options))
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if parameter.ndim > 1:
                parameter.mul_(20 if "layers" in name else 40)
    return net


def nested_network(kinds=LAYERS):
    example = torch.zeros(2, 6, dtype=torch.int64)
    return nl.nest(network(), example, weights=None, num_blocks=4, num_always=1, kinds=kinds).eval()


def joint(nested, prompt, length, cut=1.0):
    """The probability of every text of ``length`` tokens after a prompt, from whole passes without a cache."""
    texts = list(itertools.product(range(VOCABULARY), repeat=length))
    rows = torch.tensor([(*prompt, *text) for text in texts])
    with torch.no_grad(), nested.at(cut):
        log_probs = nested(rows).double().log_softmax(1)
    places = range(len(prompt) - 1, len(prompt) - 1 + length)
    steps = [log_probs[:, :, place].gather(1, rows[:, place + 1, None])[:, 0] for place in places]
    return torch.stack(steps).sum(0).exp()


def counts(decoder, prompt, length, number, seed=0):
    """How often each text of ``length`` tokens came, of ``number``."""
    generator = torch.Generator().manual_seed(seed)
    powers = VOCABULARY ** torch.arange(length - 1, -1, -1)
    found = [decoder.generate(torch.tensor(prompt), length, generator).new_tokens @ powers for _ in range(number)]
    return torch.bincount(torch.stack(found), minlength=VOCABULARY**length)


def decoder(nested, cut=1.0, draft=None, **options):
    reader = None if draft is None else Reader(nested, draft, "draft")
    return Decoder(Reader(nested, cut, "network"), reader, **options)


def p_value(found, expected):
    """Of a chi-square test; texts that are expected less than five times are one class."""
    number = found.sum()
    rare = expected * number < 5
    observed, share = (torch.cat((values[~rare], values[rare].sum()[None])) for values in (found.double(), expected))
    keep = share > 0
    assert not observed[~keep].any()
    return chisquare(observed[keep].numpy(), (share[keep] / share[keep].sum() * number).numpy()).pvalue


@pytest.mark.parametrize(("draft", "draft_length"), [(0.25, 1), (0.25, 3), ({"layers": 1}, 2)])
@pytest.mark.parametrize("prompt", [(1,), (4, 0, 2)])
def test_speculative_texts_have_the_distribution_of_the_network(draft, draft_length, prompt):
    nested = nested_network()
    speculative = decoder(nested, draft=draft, draft_length=draft_length)
    assert p_value(counts(speculative, prompt, 3, 1200), joint(nested, prompt, 3)) > 0.001


def test_the_chi_square_test_can_fail():
    """Texts of the draft alone, and a rule that keeps every token, are found out by the same test."""
    nested = nested_network()
    expected = joint(nested, (1,), 3)
    assert p_value(counts(decoder(nested, 0.25), (1,), 3, 1200), expected) < 1e-6
    assert p_value(counts(decoder(nested, temperature=0.8), (1,), 3, 1200), expected) < 1e-6


def test_plain_texts_have_the_distribution_of_the_network():
    nested = nested_network()
    for cut in (1.0, 0.5):
        assert p_value(counts(decoder(nested, cut), (3, 1), 3, 1200), joint(nested, (3, 1), 3, cut)) > 0.001


def test_texts_that_outgrow_the_context_have_the_distribution_of_plain_ones():
    """The last three tokens of texts whose window moves on while a draft proposes."""
    nested = nested_network()
    prompt = torch.tensor([1, 2, 0, 3, 1, 4, 0, 2, 1, 1])
    ends = []
    for draft in (None, 0.5):
        chosen, generator = decoder(nested, draft=draft), torch.Generator().manual_seed(1)
        texts = [chosen.generate(prompt, 6, generator).tokens[-2:] for _ in range(500)]
        ends.append(torch.bincount(torch.stack(texts) @ torch.tensor([VOCABULARY, 1]), minlength=VOCABULARY**2))
    table = torch.stack(ends)
    assert chi2_contingency(table[:, table.sum(0) > 0].numpy()).pvalue > 0.001


@pytest.mark.parametrize("kinds", [None, LAYERS])
@pytest.mark.parametrize("draft_length", [1, 2, 4, 7, 30])
def test_greedy_texts_are_the_same_with_every_draft(kinds, draft_length):
    nested = nested_network(kinds)
    for cut, draft in itertools.product((1.0, 0.5), (0.25, 0.5, 1.0)):
        for prompt in (b"\x01", b"\x02\x00\x04" * 6):
            options = {"length": 40, "cut": cut, "temperature": 0}
            plain = nl.generate(nested, prompt, **options)
            fast = nl.generate(nested, prompt, **options, draft=draft, draft_length=draft_length)
            assert torch.equal(plain.tokens, fast.tokens)
            assert plain.passes == 40
            assert fast.passes + fast.accepted == 40


def test_a_greedy_text_is_what_whole_passes_give():
    nested, tokens = nested_network(), torch.tensor([2, 1])
    found = nl.generate(nested, tokens, length=30, temperature=0, cut=0.5).tokens
    for stop in range(2, 32):
        start = window_start(stop, CONTEXT)
        with nested.at(0.5), torch.no_grad():
            assert int(nested(found[None, start:stop])[0, :, -1].argmax()) == int(found[stop])


def test_the_window_holds_the_context_and_moves_by_half_of_it():
    assert [window_start(stop, 12) for stop in (1, 12, 13, 18, 19, 24, 25)] == [0, 0, 6, 6, 12, 12, 18]
    assert [window_start(stop, 1) for stop in (1, 2, 3)] == [0, 1, 2]
    for context in range(1, 9):
        assert all(0 < stop - window_start(stop, context) <= context for stop in range(1, 50))


def test_a_draft_that_is_the_network_is_always_right():
    text = nl.generate(nested_network(), b"\x01", length=11, draft=1.0, draft_length=4)
    assert (text.acceptance, text.passes, text.proposed) == (1.0, 3, 8)


def test_another_network_may_be_the_draft_and_a_plain_one_the_target():
    other = network(seed=3, layers=1, context=CONTEXT + 1)
    for target in (nested_network(), network()):
        plain = nl.generate(target, b"\x01", length=30, temperature=0)
        fast = nl.generate(target, b"\x01", length=30, temperature=0, draft=other)
        assert torch.equal(plain.tokens, fast.tokens)
        assert fast.proposed > 0


def test_a_seed_repeats_a_text_and_the_mode_stays():
    nested = nested_network().train()
    first, again, other = (nl.generate(nested, b"\x01", length=30, draft=0.5, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)
    assert nested.training


def test_what_is_generated_as_text():
    net = nl.models.GPT(context=16, layers=1, stream=8, heads=2)
    text = nl.generate(net, "é", length=3)
    assert text.prompt_length == 2
    assert text.text.startswith("é")
    assert len(text.new_tokens) == 3
    assert bytes(text.new_tokens.tolist()).decode(errors="replace") == text.new_text
    assert repr(text) == "Generated(3 tokens in 3 passes)"
    drafted = nl.Generated(torch.tensor([300]), 0, 1, 4, 1)
    assert repr(drafted) == "Generated(1 tokens in 1 passes, 25% of 4 proposed tokens accepted)"
    with pytest.raises(nl.RangeError, match="with your tokenizer"):
        _ = drafted.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": ""}, r"prompt: got shape \(0,\), but it must be one text of at least one token"),
        ({"prompt": torch.zeros(2, 2, dtype=torch.int64)}, "one text"),
        ({"prompt": torch.zeros(2)}, "prompt: got a tensor of torch.float32"),
        ({"prompt": "a"}, "tokens from 97 to 97, but it must be tokens from 0 to 4"),
        ({"length": 0}, "length"),
        ({"draft_length": 0}, "draft_length"),
        ({"temperature": -1.0}, "temperature: got -1.0, but it must be at least 0"),
        ({"temperature": float("nan")}, "temperature"),
        ({"cut": 1.5}, "cut"),
        ({"draft": 2.0}, "cut: got 2.0"),
        ({"draft": torch.nn.Linear(2, 2)}, "draft: got a Linear, but it must be one that predicts tokens"),
        ({"draft": nl.models.GPT(vocabulary=VOCABULARY, context=4)}, "context of at least 12"),
        ({"draft": nl.models.GPT(context=CONTEXT)}, "draft: got a network of 256 tokens"),
        ({"network": torch.nn.Linear(2, 2)}, "network: got a Linear"),
        ({"network": network(), "cut": 0.5}, "1.0 for a network that is not nested"),
    ],
)
def test_bad_input_gets_one_clear_error(options, message):
    given = {"network": nested_network(), "prompt": b"\x01", "length": 3} | options
    with pytest.raises(nl.ArgumentError, match=message):
        nl.generate(**given)
