"""``chain_method="parallel"`` over several host devices: each in a process of its own, as the devices are set once."""

import subprocess
import sys

import pytest

CODE = """
import numpyro

numpyro.set_host_device_count(2)
import numpy as np, numpyro.distributions as dist
from jax import random
from numpyro.infer import MCMC
from ppl_samplers.numpyro import CMT, Affine, BoltzmannGenerator, log_evidence


def model(y):
    shift = numpyro.sample("shift", dist.Normal(0.0, 3.0))
    numpyro.sample("y", dist.Normal(shift, 0.5), obs=y)


mcmc = MCMC(ENGINE, num_warmup=10, num_samples=200, num_chains=2, chain_method="parallel", progress_bar=False)
mcmc.run(random.key(0), np.array([1.9, 2.1]))
print(mcmc.get_samples(group_by_chain=True)["shift"].shape, log_evidence(mcmc, force=True).num_proposals > 0)
"""


def _run(engine):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE.replace("ENGINE", engine)],
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_parallel_chains_have_a_record():
    done = _run("BoltzmannGenerator(model, flow=Affine())")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "(2, 200) True"


@pytest.mark.slow
def test_cmt_refuses_several_cpu_devices_instead_of_waiting_for_ever():
    done = _run("CMT(model)")
    assert done.returncode != 0 and 'chain_method="vectorized"' in done.stderr
