from __future__ import annotations

import torch

from stratadvisor.runtime.diloco import OuterNesterov


def test_the_outer_step_is_nesterov_sgd_as_torch_has_it() -> None:
    changes = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    weights = torch.ones(8, requires_grad=True)
    reference = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=True)
    outer = OuterNesterov(torch.ones(8), 0.7, 0.9)
    for change in changes:
        weights.grad = change.clone()
        reference.step()
        assert torch.allclose(outer.step(change), weights, atol=1e-6)


def test_rate_one_without_momentum_is_the_plain_mean() -> None:
    outer = OuterNesterov(torch.tensor([2.0]), 1.0, 0.0)
    assert outer.step(torch.tensor([0.5])).item() == 1.5
