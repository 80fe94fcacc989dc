"""Reference moments by long NUTS runs and log evidence by importance sampling, both with NumPyro in float64.

python -m models.make_reference      # prints how each posteriordb model meets its reference, and log evidences
"""

from __future__ import annotations

import json
import math
import sys

import numpy as np

from models.load import POSTERIORDB, load

CHAINS = 4


def run_nuts(model, data, num_samples, seed=0, num_warmup=1000, target_accept=0.9):
    """Draws by site, each (CHAINS, num_samples, ...), with deterministic sites, and the number of divergences."""
    import jax
    from numpyro.infer import MCMC, NUTS

    kernel = NUTS(model, target_accept_prob=target_accept, dense_mass=True)
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(seed), extra_fields=("diverging",), **data)
    draws = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
    return draws, int(np.asarray(mcmc.get_extra_fields()["diverging"]).sum())


def moments(scalars):
    """Mean, sd, quantiles, effective sample size and split R-hat of scalar draws (CHAINS, S)."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    out = {}
    for name, value in scalars.items():
        q = np.quantile(value, [0.05, 0.5, 0.95])
        out[name] = {"mean": float(value.mean()), "sd": float(value.std()), "q05": q[0], "q50": q[1], "q95": q[2]}
        out[name] |= {"ess": float(effective_sample_size(value)), "rhat": float(split_gelman_rubin(value))}
    return out


def importance_evidence(model, data, draws, num=100_000, seed=1, df=5.0, defensive=2.0):
    """Log evidence, its standard error and the effective sample size, from a Student t at the moments of the draws.

    The proposal lives on the unconstrained space: t with ``df`` degrees of freedom, location and covariance of the
    draws, the latter times ``defensive``. Importance sampling of the normalising constant: Geweke, Bayesian
    inference in econometric models using Monte Carlo integration, Econometrica (1989).
    """
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree
    from numpyro.infer.util import initialize_model, unconstrain_fn
    from scipy.stats import multivariate_t

    info = initialize_model(jax.random.key(0), model, model_kwargs=data)
    _, unravel = ravel_pytree(info.param_info.z)
    latent = {name: value.reshape(-1, *value.shape[2:])[::10] for name, value in draws.items()}
    latent = {name: latent[name] for name in info.param_info.z}
    flat = jax.vmap(lambda d: ravel_pytree(unconstrain_fn(model, (), data, d))[0])(latent)
    flat = np.asarray(flat)
    q = multivariate_t(flat.mean(0), np.cov(flat.T) * defensive * (df - 2.0) / df, df=df, seed=seed)
    x = q.rvs(num).reshape(num, -1)
    potential = jax.jit(lambda rows: jax.lax.map(lambda r: info.potential_fn(unravel(r)), rows, batch_size=2000))
    log_w = -np.asarray(potential(jnp.asarray(x))) - q.logpdf(x)
    log_w = np.where(np.isfinite(log_w), log_w, -np.inf)
    w = np.exp(log_w - log_w.max())
    ess = w.sum() ** 2 / (w**2).sum()
    return float(log_w.max() + math.log(w.mean())), math.sqrt(1.0 / ess - 1.0 / num), float(ess)


def nuts_reference(model, data, num_samples):
    """The ``reference`` of a model whose sites are all scalars and whose priors are all proper."""
    draws, divergences = run_nuts(model, data, num_samples)
    log_z, se, _ = importance_evidence(model, data, draws)
    return {
        "method": f"NumPyro NUTS, {CHAINS} chains of {num_samples} draws, {divergences} divergences; "
        "log evidence by importance sampling from a Student t",
        "parameters": moments(draws),
        "log_evidence": log_z,
        "log_evidence_se": se,
    }


def compare(name, scalars):
    """Worst error of a mean in sd of the reference, and worst ratio of sds."""
    worst, ratio = (0.0, ""), (1.0, "")
    for key, ref in load(name).reference["parameters"].items():
        z = abs(scalars[key].mean() - ref["mean"]) / ref["sd"]
        r = scalars[key].std() / ref["sd"]
        worst = max(worst, (float(z), key))
        ratio = max(ratio, (float(r), key), key=lambda pair: abs(math.log(pair[0])))
    return worst, ratio


def main(chosen):
    import time

    import jax

    jax.config.update("jax_enable_x64", True)
    for name in chosen:
        entry = load(name)
        start = time.process_time()
        draws, divergences = run_nuts(entry.numpyro_model, entry.data, 2500)
        scalars = entry.scalars(draws)
        worst, ratio = compare(name, scalars)
        diag = moments(scalars).values()
        row = {
            "model": name,
            "mean error (sd)": worst,
            "sd ratio": ratio,
            "min ess": round(min(m["ess"] for m in diag)),
            "max rhat": round(max(m["rhat"] for m in diag), 4),
            "divergences": divergences,
        }
        row["log evidence, se, ess"] = importance_evidence(entry.numpyro_model, entry.data, draws)
        row["cpu s"] = round(time.process_time() - start)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or POSTERIORDB)
