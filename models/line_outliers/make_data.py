"""Write data.json: seeded data, and a reference by long NUTS runs and importance sampling.

Run from the root of the repository: python -m models.line_outliers.make_data
"""

import json
from pathlib import Path

import numpy as np

SEED = 7


def make_data():
    """Forty points: a line with scatter 0.4, and eight outliers of scale 6 around zero."""
    rng = np.random.default_rng(SEED)
    x = np.sort(rng.uniform(-4.0, 4.0, 40))
    y = 0.5 + 1.2 * x + 0.4 * rng.standard_normal(40)
    outliers = rng.permutation(40)[:8]
    y[outliers] = 6.0 * rng.standard_normal(8)
    return np.round(x, 3), np.round(y, 3)


def main():
    import jax

    from models.line_outliers.numpyro_model import model
    from models.make_reference import nuts_reference

    jax.config.update("jax_enable_x64", True)
    x, y = make_data()
    content = {
        "source": f"models/line_outliers/make_data.py, seed {SEED}",
        "inputs": ["x", "y"],
        "data": {"x": x.tolist(), "y": y.tolist()},
        "reference": nuts_reference(model, {"x": x, "y": y}, num_samples=20_000),
    }
    Path(__file__).with_name("data.json").write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
