"""Cuts that are drawn in train mode, and the gradient they give the orders."""

import itertools

import torch
from torch import nn

import nestling as nl
from nestling.distributions import leave_one_out


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    nested = nl.nest(net, x, weights=None, num_always=1).train()
    for order in nested.orders.values():
        order.double()
    return nested, x


def all_cuts(nested):
    ranges = [[(g.name, width) for width in range(g.num_always, g.num_blocks + 1)] for g in nested.groups.free]
    return [nl.Cut(widths) for widths in itertools.product(*ranges)]


def test_probabilities_of_all_cuts_add_up_to_one():
    nested, _ = network()
    total = sum(nested.log_prob(cut).exp() for cut in all_cuts(nested))
    torch.testing.assert_close(total, torch.ones((), dtype=torch.float64))


def test_widths_are_drawn_from_their_orders():
    nested, x = network()
    counts = dict.fromkeys(all_cuts(nested), 0)
    for _ in range(3000):
        nested(x)
        counts[nested.drawn] += 1
    for cut, count in counts.items():
        probability = float(nested.log_prob(cut).detach().exp())
        assert abs(count / 3000 - probability) < 4 * (probability * (1 - probability) / 3000) ** 0.5


def test_leave_one_out_over_drawn_cuts_is_the_exact_gradient_on_average():
    nested, x = network()
    logits = [order.logits for order in nested.orders.values()]
    cuts = all_cuts(nested)

    def loss(cut):
        with nested.at(cut):
            return nested(x).square().mean()

    losses = torch.stack([loss(cut) for cut in cuts]).detach()
    log_probs = torch.stack([nested.log_prob(cut) for cut in cuts])
    exact = torch.autograd.grad(log_probs.exp() @ losses, logits, retain_graph=True)
    mean = [torch.zeros_like(gradient) for gradient in exact]
    for i, j in itertools.product(range(len(cuts)), repeat=2):
        pair = torch.tensor([i, j])
        surrogate = leave_one_out(log_probs[pair], losses[pair])
        weight = log_probs[pair].sum().exp().detach()
        for total, gradient in zip(mean, torch.autograd.grad(surrogate, logits, retain_graph=True), strict=True):
            total += weight * gradient
    for total, gradient in zip(mean, exact, strict=True):
        torch.testing.assert_close(total, gradient)
