"""Checks of a single-point density at set-up: is it a function, can it be vmapped, does its gradient hold."""

from __future__ import annotations

import warnings

import torch

from ppl_samplers.backends.pyro import graphs
from ppl_samplers.backends.pyro.evaluate import Evaluator, reason_of
from ppl_samplers.backends.pyro.sites import Site


def check_points(dim: int, count: int = 3) -> torch.Tensor:
    """A few points of the flat space, ``(count, dim)`` float64, from the global generator."""
    return torch.empty(count, dim, dtype=torch.float64).uniform_(-1.5, 1.5)


def refuse_random(evaluator: Evaluator, points: torch.Tensor) -> None:
    """Raise ``ValueError`` if two calls at one point differ."""
    with evaluator.session(points.dtype) as dtype:
        for point in points.to(dtype):
            first, second = (evaluator.one(point, grad=False)[0] for _ in range(2))
            if not graphs.close(first[None], second[None], 1e-6):
                raise ValueError(
                    f"The log density is random: two calls at one point gave {float(first):.6g} and "
                    f"{float(second):.6g}. Random numbers (torch.randn, a new nn.Linear) are drawn in the body of the "
                    "model: make them before and pass them in, or declare them with pyro.sample."
                )


def choose(evaluator: Evaluator, points: torch.Tensor) -> None:
    """Set ``evaluator.how`` to ``loop`` with one warning if the density cannot be vmapped.

    Raises:
        ValueError: If another way than ``auto`` or ``loop`` was asked for and ``vmap`` does not give the same values.
    """
    if evaluator.how in ("loop", "black box"):
        return
    reason = None
    with evaluator.session(points.dtype) as dtype:
        z = points.to(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's hints at .item(), which are reported below
            expected = evaluator.loop(z, grad=True)
        try:
            with torch.no_grad():
                found = evaluator.value_and_grad_fn(z)
            if not graphs.close(expected, found, 1e-4):
                reason = "the vectorised values differ from those of single calls"
        except torch.linalg.LinAlgError:
            return
        except Exception as error:  # user code under vmap may raise anything; each has the same remedy
            reason = reason_of(error)
    if reason is None:
        return
    if evaluator.how != "auto":
        raise ValueError(
            f"how={evaluator.how!r} cannot be used for this model: {reason}. Use how='auto' or how='loop'."
        )
    evaluator.how = "loop"
    warnings.warn(
        f"The density falls back to a Python loop over points (about 100 times slower): {reason}.",
        UserWarning,
        stacklevel=4,
    )


def lost_gradients(evaluator: Evaluator, points: torch.Tensor, space: tuple[Site, ...]) -> list[str]:
    """Names of the sites whose gradient disagrees with finite differences (two calls a site and point)."""
    suspects = {site.name for site in space}
    with evaluator.session(points.dtype) as dtype, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own hint at the same thing
        step = 1e-4 if dtype == torch.float64 else 1e-2
        for point in points.to(dtype)[:2]:
            value, grad = evaluator.one(point, grad=True)
            for site in space:
                direction = torch.zeros_like(point)
                direction[site.slice] = 1.0
                slopes = [
                    (evaluator.one(point + h * direction, False)[0] - evaluator.one(point - h * direction, False)[0])
                    / (2 * h)
                    for h in (step, step / 2)
                ]
                size = 1 + slopes[0].abs() + (0.0 if dtype == torch.float64 else 1e-3 * value.abs())
                smooth = (slopes[0] - slopes[1]).abs() < 0.01 * size
                agrees = (slopes[1] - grad @ direction).abs() < 0.05 * size
                if agrees or not smooth or not torch.isfinite(value):
                    suspects.discard(site.name)
    return [site.name for site in space if site.name in suspects]


def warn_lost(names: list[str]) -> None:
    """Say that the gradient through these sites does not exist for autograd."""
    warnings.warn(
        f"The gradient through site(s) {names} is lost: the model takes their value out of torch (.item(), float(...), "
        "torch.tensor([a, b])). Gradients are wrong there; keep tensors, for example torch.stack([a, b]).",
        UserWarning,
        stacklevel=4,
    )
