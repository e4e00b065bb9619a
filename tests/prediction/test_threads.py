"""Threads and asyncio tasks that share a network, each at its own cut: every answer is the one it would get alone."""

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import nestling as nl
from effort import PATIENCE, tries

CUTS = (0.25, 0.5, 0.75, 1.0)
THREADS, TASKS = 16, 64
CALLS = tries(10_000, usual=400)


class Grouped(nn.Module):
    """Norms with statistics, and groups whose number a cut changes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        return self.last(self.depthwise(x).relu().mean((2, 3)))


class Attention(nn.Module):
    """Sizes in its own code, so that the graph runs."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.out, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = x.flatten(2).transpose(1, 2)
        q, k, v = (own(x).view(x.shape[0], -1, 4, 2).transpose(1, 2) for own in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return self.head((x + self.out(mixed)).mean(1))


class InTurn(nn.Module):
    """Some object of its own leads back to its layers, so that it has no twin."""

    class Engine:
        def __init__(self, layer):
            self.layer = layer

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
        self.engine = self.Engine(self.first)

    def forward(self, x):
        return self.last(self.engine.layer(x).relu().mean((2, 3)))


NETWORKS = {
    "grouped": (Grouped, (3, 6, 6), "gaussian"),
    "attention": (Attention, (8, 3, 3), "gaussian"),
    "in_turn": (InTurn, (3, 6, 6), None),
}


def network(name):
    torch.manual_seed(0)
    make, shape, weights = NETWORKS[name]
    module = make()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean), nn.init.uniform_(part.running_var, 0.5, 2)
    return nl.nest(module, torch.randn(2, *shape), weights=weights, num_blocks=4, num_always=1).eval(), torch.randn(
        3, *shape
    )


def mean_at(nested, x, cut, _):
    """At the current cut, if ``cut`` is None."""
    with torch.no_grad(), nested.at(nested.cut if cut is None else cut):
        return nested(x)


def mean_by_gradient(nested, x, cut, _):
    with nested.at(nested.cut if cut is None else cut):
        return nested(x).detach()


def mean(small, x, *_):
    with torch.no_grad():
        return small(x)


def draws(nested, x, cut, seed):
    return nl.predict(nested, x, cut=cut, samples=3, seed=seed, keep_samples=True).samples


def fast_draws(nested, x, cut, seed):
    return nl.predict(nested, x, cut=cut, samples=3, seed=seed, by="fast_draws", keep_samples=True).samples


def moments(nested, x, cut, seed):
    return nl.predict(nested, x, cut=cut, samples=3, seed=seed, by="moments", keep_samples=True).samples


def evaluated(nested, x, cut, seed):
    loader = [(x, torch.arange(len(x)) % 4)]
    return torch.tensor(nl.evaluate(nested, loader, cut=cut, samples=2, seed=seed).nll)


WAYS = (mean_at, mean_by_gradient, draws, fast_draws, moments, evaluated)


def asked(rng):
    return [(rng.choice(WAYS), rng.choice(CUTS), rng.randrange(3)) for _ in range(CALLS)]


@pytest.mark.parametrize("name", NETWORKS)
def test_threads_get_the_answers_that_one_would_get_alone(name):
    nested, x = network(name)
    questions = asked(random.Random(0))
    alone = {question: question[0](nested, x, *question[1:]) for question in dict.fromkeys(questions)}
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda question: question[0](nested, x, *question[1:]), questions))
    wrong = [q for q, answer in zip(questions, found, strict=True) if not torch.equal(answer, alone[q])]
    assert not wrong, f"{len(wrong)} of {CALLS} answers are another's, first {wrong[0][0].__name__} at {wrong[0][1]}"


def test_tasks_stay_at_their_cuts_while_they_wait():
    """Every second one asks from another thread, which takes the task's cut along."""
    nested, x = network("grouped")
    questions = [asked(random.Random(number))[: CALLS // TASKS] for number in range(TASKS)]
    alone = {q: q[0](nested, x, *q[1:]) for q in dict.fromkeys(question for own in questions for question in own)}

    async def ask(number):
        answers = []
        for way, cut, seed in questions[number]:
            with nested.at(cut):
                await asyncio.sleep(random.random() / 100)
                if number % 2:
                    answers.append(await asyncio.to_thread(way, nested, x, None, seed))
                else:
                    answers.append(way(nested, x, None, seed))
        return answers

    async def all_of_them():
        return await asyncio.gather(*map(ask, range(TASKS)))

    for own, answers in zip(questions, asyncio.run(all_of_them()), strict=True):
        assert all(torch.equal(answer, alone[q]) for q, answer in zip(own, answers, strict=True))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", ["grouped", "attention"])
def test_threads_share_an_extracted_network_with_uncertainty(name):
    nested, x = network(name)
    small = nl.extract(nested, 0.5, uncertainty=True)
    questions = [(way, seed) for way in (mean, draws, moments, fast_draws) for seed in range(4)]
    questions *= CALLS // len(questions)
    alone = {question: question[0](small, x, None, question[1]) for question in dict.fromkeys(questions)}
    random.Random(1).shuffle(questions)
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda question: question[0](small, x, None, question[1]), questions))
    assert all(torch.equal(answer, alone[q]) for q, answer in zip(questions, found, strict=True))


def test_recalibration_and_extraction_do_not_disturb_other_threads():
    nested, x = network("grouped")
    alone = {cut: mean_at(nested, x, cut, 0) for cut in (0.5, 1.0)}
    batches = [torch.randn(8, 3, 6, 6) for _ in range(4)]

    def other(number):
        if number % 2:
            nl.recalibrate(nested, batches, 0.25)
        else:
            nl.extract(nested, 0.75)

    with ThreadPoolExecutor(THREADS) as pool:
        work = [pool.submit(other, number) for number in range(20)]
        found = list(pool.map(lambda cut: (cut, mean_at(nested, x, cut, 0)), [0.5, 1.0] * 100))
    assert all(own.result() is None for own in work)
    assert all(torch.equal(answer, alone[cut]) for cut, answer in found)


def test_a_cut_and_drawing_belong_to_the_thread_that_asked_for_them():
    nested, x = network("grouped")
    whole = mean_at(nested, x, 1.0, 0)
    with torch.no_grad(), nested.at(0.25), nested.drawing(), ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(torch.no_grad()(nested), x).result(), whole)
        assert not torch.equal(nested(x), nested(x))
    with torch.no_grad():
        assert torch.equal(nested(x), whole)


def test_divergences_and_cuts_that_are_forgotten_do_not_disturb_other_threads():
    """More cuts than are kept, nothing worked out in advance, and tensors of cuts forgotten all the while."""
    nested, x = network("grouped")
    names = [group.name for group in nested.groups.free]
    cuts = [dict.fromkeys(names, width) for width in (1, 2, 3, 4)] + [{names[0]: width} for width in (1, 2, 3)]
    expected = {}
    for number, cut in enumerate(cuts):
        with torch.no_grad():
            expected[number] = nl.extract(nested, cut)(x)

    def ask(number):
        if number % 3 == 0:
            nested.forget()
        if number % 3 == 1:
            nested.log_alphas(nl.Cut(tuple((name, 1) for name in names)))
        cut = number % len(cuts)
        return cut, mean_at(nested, x, cuts[cut], 0)

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(ask, range(CALLS)))
    for cut, answer in found:
        torch.testing.assert_close(answer, expected[cut])


class Waiting(InTurn):
    """Waits in the middle of a call, with the tensors of a cut in its hands, until it is told to go on."""

    there, go_on = threading.Event(), threading.Event()

    def forward(self, x):
        self.there.set()
        self.go_on.wait(PATIENCE)
        return super().forward(x)


def saved(nested, folder):
    nl.save(nested, folder)
    return load_file(folder / "model.safetensors")["network.module.first.weight"]


def loaded(nested, _):
    nested.load_state_dict({name: tensor + 1 for name, tensor in nested.state_dict().items()})
    return nested.module.first.weight


USES = {
    "state_dict": (lambda nested, _: nested.state_dict()["module.first.weight"], 0),
    "save": (saved, 0),
    "load_state_dict": (loaded, 1),
    "to": (lambda nested, _: nested.double().module.first.weight.float(), 0),
}


@pytest.mark.parametrize("name", USES)
def test_whoever_reads_a_network_that_runs_in_turn_finds_it_whole(name, tmp_path):
    torch.manual_seed(0)
    Waiting.go_on.set()
    nested = nl.nest(Waiting(), torch.randn(2, 3, 6, 6), weights=None, num_blocks=4, num_always=1).eval()
    use, added = USES[name]
    whole = nested.module.first.weight.detach().clone()
    Waiting.go_on.clear(), Waiting.there.clear()
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(mean_at, nested, torch.randn(3, 3, 6, 6), 0.25, 0)
        assert Waiting.there.wait(PATIENCE)
        found = pool.submit(use, nested, tmp_path)
        wait([found], timeout=0.5)
        Waiting.go_on.set()
        assert running.result().shape == (3, 4)
        torch.testing.assert_close(found.result(), whole + added)
        assert nested.module.first.weight.shape == whole.shape
