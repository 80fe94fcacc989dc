# %% [markdown]
# # A Bayesian workflow in NumPyro: the eight schools
#
# Eight schools ran coaching programmes; each reports an effect and its standard error (Rubin 1981). Do the programmes differ? We
# compare partial pooling with complete pooling, through all the usual steps, and end with two different answers to "which
# model": predictive (LOO) and evidential (Bayes factor).

# %%
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import Predictive

from models.load import load
from ppl_samplers.diagnostics import arviz as az_layer
from ppl_samplers.diagnostics import (
    compare_evidence,
    cross_engine_check,
    efficiency,
    plot_calibration,
    power_scaling,
    simulation_based_calibration,
)
from ppl_samplers.numpyro import MCMC, Affine, BoltzmannGenerator, log_evidence, mcmc_report, record, to_arviz

OUT = Path(os.environ.get("PPL_SAMPLERS_OUT", "out/tutorials"))
OUT.mkdir(parents=True, exist_ok=True)
data = load("eight_schools_noncentered").data
y, sigma = jnp.asarray(data["y"], float), jnp.asarray(data["sigma"], float)

# %% [markdown]
# ## 1. The models


# %%
def partial_pooling(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", len(sigma)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def complete_pooling(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    with numpyro.plate("school", len(sigma)):
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)


# %% [markdown]
# ## 2. Prior predictive
#
# Before any data: does the prior allow what could have been seen, and not much else?

# %%
prior = Predictive(partial_pooling, num_samples=500)(jax.random.key(1), sigma)
print("prior predictive, 5 % and 95 % of |y|:", np.quantile(np.abs(np.asarray(prior["y"])), [0.05, 0.95]))

# %% [markdown]
# ## 3. Fit


# %%
def fit(model, seed):
    mcmc = MCMC(BoltzmannGenerator(model), num_warmup=40, num_samples=1000, num_chains=4)
    mcmc.run(jax.random.key(seed), sigma, y=y)
    return mcmc


pooled_apart, pooled = fit(partial_pooling, 0), fit(complete_pooling, 2)

# %% [markdown]
# ## 4. Diagnose across engines
#
# The report first; then the checks one by one. `cross_engine_check` weighs the draws of each engine under the other: the only cheap
# way in which a missed mode can show. `efficiency` counts density evaluations, training included.

# %%
report = mcmc_report(pooled_apart)
run = record(pooled_apart)
check = cross_engine_check(run)
print(check)
print(efficiency(run))

# %% [markdown]
# ## 5. Posterior predictive

# %%
draws = pooled_apart.get_samples()
predicted = Predictive(partial_pooling, draws)(jax.random.key(3), sigma)["y"]
low, high = np.quantile(np.asarray(predicted), [0.05, 0.95], axis=0)
print("schools inside their 90 % predictive interval:", int(np.sum((y >= low) & (y <= high))), "of 8")
figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
axis.vlines(np.arange(8), low, high, color="C0", alpha=0.5, lw=6, label="90 % predictive")
axis.plot(np.arange(8), y, "ko", label="observed")
axis.set(xlabel="school", ylabel="effect")
axis.legend()
figure.savefig(OUT / "workflow_numpyro_predictive.png", dpi=100)

# %% [markdown]
# ## 6. LOO and evidence
#
# LOO asks which model predicts a school that was left out; the evidence asks which model, its prior included, gave more
# probability to all the data. They may differ: a vague prior costs evidence and hardly any predictive accuracy.

# %%
idata = {"partial": to_arviz(pooled_apart, log_prior=True), "complete": to_arviz(pooled)}
print(az_layer.compare(idata))
evidence = {"partial": log_evidence(pooled_apart), "complete": log_evidence(pooled)}
print(compare_evidence(evidence))

# %% [markdown]
# Complete pooling is conjugate, so its evidence is known exactly; the tests hold the run to it.

# %%
covariance = np.diag(np.asarray(sigma, float) ** 2) + 25.0
exact = -0.5 * (8 * np.log(2 * np.pi) + np.linalg.slogdet(covariance)[1] + y @ np.linalg.solve(covariance, y))
print("exact:", float(exact))
assert abs(evidence["complete"].log_z - exact) < max(4 * evidence["complete"].standard_error, 0.01)
az_layer.save(idata["partial"], OUT / "eight_schools_numpyro.nc")

# %% [markdown]
# ## 7. Sensitivity
#
# How far does the posterior move if the priors of `mu` and `tau`, or the likelihood, count a little more? (The schools'
# distribution around `mu` belongs to the model.) Eight noisy effects say little about their own spread.

# %%
sensitivity = power_scaling(idata["partial"], ["mu", "tau", "theta"], prior_sites=["mu", "tau"])
print(sensitivity.round(3))

# %% [markdown]
# ## 8. Calibration
#
# Would this engine have said so if the truth had been something else? Draw parameters from the prior, data from the
# parameters, fit, and see where the truth lies among the draws: its rank must be uniform. One `MCMC` object serves all
# replications, so that only the first one compiles anything; an affine flow is enough for this posterior.

# %%
simulator = jax.jit(lambda key: Predictive(partial_pooling, num_samples=1)(key, sigma))
quick = MCMC(BoltzmannGenerator(partial_pooling, flow=Affine()), num_warmup=5, num_samples=250, progress_bar=False)


def simulate(seed):
    draw = {name: np.asarray(value[0]) for name, value in simulator(jax.random.key(seed)).items()}
    return {name: draw[name] for name in ("mu", "tau", "theta")}, jnp.asarray(draw["y"])


def refit(seed, effects):
    quick.run(jax.random.key(1_000_000 + seed), sigma, y=effects)
    return quick.get_samples(group_by_chain=True)


calibration = simulation_based_calibration(simulate, refit, 100)
print(calibration.message)
axes = plot_calibration(calibration)
axes.figure.savefig(OUT / "workflow_numpyro_calibration.png", dpi=100)
