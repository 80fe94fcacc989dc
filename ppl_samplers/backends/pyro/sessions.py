"""Contexts in which a user's code is run: operations that batches survive, no validation, a number type it can take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from pyro import poutine
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode

_CHOLESKY = (torch.linalg.cholesky, torch.cholesky, torch.Tensor.cholesky)


class ModelMode(TorchFunctionMode):
    """Two operations done in a way that batches survive.

    Cholesky factors of matrices that are not positive definite become NaN in place of an exception: one bad point must
    not lose the whole batch, and NaN turns into a log density of ``-inf``. And ``x[mask] = number``, which ``vmap``
    refuses and which stands in ``Multinomial.log_prob``, is done by ``masked_fill_``.
    """

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__setitem__:
            target, mask, value = args
            if _is_mask(mask, target) and isinstance(value, (int, float)):
                self.seen = True
                target.masked_fill_(mask, value)
                return None
        if func not in _CHOLESKY or kwargs.get("upper") or len(args) != 1:
            return func(*args, **kwargs)
        self.seen = True
        factor, info = torch.linalg.cholesky_ex(args[0])
        return torch.where((info > 0)[..., None, None], torch.full_like(factor, torch.nan), factor)


class DrawMode(TorchFunctionMode):
    """In-place random numbers as new tensors, so that a fresh buffer gets its own numbers on every row under ``vmap``.

    Samplers write ``buffer.cauchy_()`` and use the result; the buffer itself is dropped.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func is torch.Tensor.cauchy_ and len(args) == 1 and not options:
            return torch.tan(torch.pi * (torch.rand_like(args[0]) - 0.5))
        if func is torch.Tensor.exponential_ and len(args) == 1 and not options:
            return -torch.log1p(-torch.rand_like(args[0]))
        if func is torch.Tensor.uniform_ and len(args) == 3:
            return args[1] + (args[2] - args[1]) * torch.rand_like(args[0])
        return func(*args, **options)


def _is_mask(index: Any, target: torch.Tensor) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool and index.shape == target.shape


@contextmanager
def quiet(dtype: torch.dtype, with_mode: bool = False) -> Iterator[ModelMode]:
    """Run a model unseen by the caller's handlers, without validation, in ``dtype``; everything is put back after."""
    validate, default = Distribution._validate_args, torch.get_default_dtype()
    mode = ModelMode()
    try:
        with pyro.validation_enabled(False), poutine.block():
            torch.set_default_dtype(dtype)
            if with_mode:
                with mode:
                    yield mode
            else:
                yield mode
    finally:
        torch.set_default_dtype(default)
        Distribution.set_default_validate_args(validate)


@contextmanager
def model_session() -> Iterator[None]:
    """Context in which a model may be run under ``vmap``: no validation, batched Cholesky factors."""
    validate = Distribution._validate_args
    try:
        with pyro.validation_enabled(False), ModelMode():
            yield
    finally:
        # Pyro's own switch does not put back a setting of torch that differs from it.
        Distribution.set_default_validate_args(validate)


def is_dtype_error(error: Exception) -> bool:
    """Whether an exception of torch complains about mixed number types."""
    text = str(error)
    return any(word in text for word in ("dtype", "same type", "scalar type", "Float and Double", "Double and Float"))


def first_working_dtype(candidates: list[torch.dtype], trial: Callable[[torch.dtype], None]) -> torch.dtype:
    """The first type for which ``trial`` does not complain of mixed number types."""
    for candidate in candidates:
        try:
            with torch.no_grad():
                trial(candidate)
            return candidate
        except Exception as error:
            if not is_dtype_error(error):  # whatever else is wrong at that point is not a matter of types
                return candidate
    return candidates[0]


class PlainSession:
    """Session for a plain function of points, which needs no handlers; finds the number type it can be called with."""

    def __init__(self, fn: Callable[[torch.Tensor], torch.Tensor], example_shape: tuple[int, ...]) -> None:
        self.fn, self.example_shape = fn, example_shape
        self._dtypes: dict[torch.dtype, torch.dtype] = {}

    @contextmanager
    def __call__(self, dtype: torch.dtype) -> Iterator[torch.dtype]:
        """Context in which the function may be called; yields the computing type."""
        if dtype not in self._dtypes:
            candidates = list(dict.fromkeys([dtype, torch.get_default_dtype(), torch.float64, torch.float32]))
            self._dtypes[dtype] = first_working_dtype(
                candidates, lambda candidate: self.fn(torch.full(self.example_shape, 0.1, dtype=candidate))
            )
        yield self._dtypes[dtype]


def host_function(fn: Callable) -> Callable[[torch.Tensor], torch.Tensor]:
    """A NumPy function on tensors."""

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(fn(x.detach().cpu().double().numpy()), dtype=x.dtype, device=x.device)

    return call
