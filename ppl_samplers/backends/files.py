"""Files of trained engines: arrays and a header in one ``.npz``; no code, no pickle."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

_FORMAT = 1


def write(path: str | os.PathLike, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write the file in one step: an interrupted call leaves the old one."""
    path = os.fspath(path)
    draft = f"{path}.part"
    with open(draft, "wb") as file:
        np.savez(file, header=np.array(json.dumps({"format": _FORMAT, **header})), **arrays)
    os.replace(draft, path)


def read(path: str | os.PathLike, engine: Any, framework: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a file that :func:`write` made for this engine.

    Args:
        path: The file.
        engine: The kernel that is to take the arrays.
        framework: ``"numpyro"`` or ``"pyro"``.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is of another kind, engine, framework, or flow; the message says which.
    """
    path = os.fspath(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            arrays = {name: file[name] for name in file.files if name != "header"}
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no file {path!r}; trained.save({path!r}) or engine.fit(..., checkpoint={path!r}) writes one"
        ) from None
    except (ValueError, KeyError, EOFError, AttributeError, TypeError, zipfile.BadZipFile):
        raise ValueError(f"{path!r} does not hold trained engines: give a file that Trained.save wrote") from None
    if header.get("format") != _FORMAT or header["engine"] != engine.name:
        raise ValueError(
            f"{path!r} holds {header.get('engine')} (format {header.get('format')}); it cannot be loaded as "
            f"{engine.name}"
        )
    if header["framework"] != framework:
        raise ValueError(
            f"{path!r} was trained in {header['framework']}: load it with ppl_samplers.{header['framework']}, the "
            "networks of the two frameworks differ"
        )
    flow = flow_of(engine)
    if header["flow"] != flow:
        raise ValueError(
            f"{path!r} was trained with other settings: write the engine as it was, "
            f"{engine.name}(model, flow={header['flow']}), not flow={flow}"
        )
    return header, arrays


def flow_of(engine: Any) -> str:
    """The engine's flow in words, for the header."""
    return repr(getattr(engine.transport, "flow", None))


def check_guide(model: Any, transport: Any, engine: int, num_engines: int) -> None:
    """Refuse to make a guide of what has no model or no flow.

    Raises:
        ValueError: Always then; the message says what to write.
    """
    if model is None:
        raise ValueError("the density is a function, and a guide belongs to a model: take draws from .propose(n)")
    if not hasattr(transport, "flow"):
        raise ValueError("only an engine with a flow can be a guide: take draws from .propose(n)")
    if not 0 <= engine < num_engines:
        raise ValueError(f"guide(engine={engine}): there are {num_engines} engines, write 0 to {num_engines - 1}")


def check_space(guide: Any, density: Any) -> None:
    """Refuse a guide whose flat space is another one than the density's.

    Raises:
        ValueError: Always then.
    """
    own, other = ([(s.name, s.slice, tuple(s.unconstrained_shape)) for s in x.space] for x in (guide, density))
    if own != other:
        raise ValueError(
            f"the guide's flat space is {own}, that of the model {other}: no guide can be made of this model"
        )
