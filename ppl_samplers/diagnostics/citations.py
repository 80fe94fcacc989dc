"""What to cite for an engine, and for the diagnostics that come with every run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """One publication."""

    authors: str
    title: str
    year: int
    venue: str

    def __str__(self) -> str:
        return f"{self.authors} ({self.year}). {self.title}. {self.venue}."


REFERENCES: dict[str, Reference] = {
    "boltzmann": Reference(
        "Frank Noé, Simon Olsson, Jonas Köhler, Hao Wu",
        "Boltzmann generators: Sampling equilibrium states of many-body systems with deep learning",
        2019,
        "Science 365, eaaw1147",
    ),
    "snf": Reference(
        "Hao Wu, Jonas Köhler, Frank Noé",
        "Stochastic Normalizing Flows",
        2020,
        "Advances in Neural Information Processing Systems 33",
    ),
    "sbg": Reference(
        "Charlie B. Tan, Avishek Joey Bose, Chen Lin, Leon Klein, Michael M. Bronstein, Alexander Tong",
        "Scalable Equilibrium Sampling with Sequential Boltzmann Generators",
        2025,
        "International Conference on Machine Learning",
    ),
    "fab": Reference(
        "Laurence Illing Midgley, Vincent Stimper, Gregor N. C. Simm, Bernhard Schölkopf, José Miguel Hernández-Lobato",
        "Flow Annealed Importance Sampling Bootstrap",
        2023,
        "International Conference on Learning Representations",
    ),
    "tabg": Reference(
        "Henrik Schopmans, Pascal Friederich",
        "Temperature-Annealed Boltzmann Generators",
        2025,
        "International Conference on Machine Learning",
    ),
    "cmt": Reference(
        "Christopher von Klitzing, Denis Blessing, Henrik Schopmans, Pascal Friederich, Gerhard Neumann",
        "Learning Boltzmann Generators via Constrained Mass Transport",
        2026,
        "International Conference on Learning Representations",
    ),
    "neutra": Reference(
        "Matthew Hoffman, Pavel Sountsov, Joshua V. Dillon, Ian Langmore, Dustin Tran, Srinivas Vasudevan",
        "NeuTra-lizing Bad Geometry in Hamiltonian Monte Carlo Using Neural Transport",
        2019,
        "arXiv:1903.03704",
    ),
    "isir": Reference(
        "Sergey Samsonov, Evgeny Lagutin, Marylou Gabrié, Alain Durmus, Alexey Naumov, Eric Moulines",
        "Local-Global MCMC kernels: the best of both worlds",
        2022,
        "Advances in Neural Information Processing Systems 35",
    ),
    "imh": Reference(
        "Luke Tierney",
        "Markov Chains for Exploring Posterior Distributions",
        1994,
        "The Annals of Statistics 22, 1701-1728",
    ),
    "spline": Reference(
        "Conor Durkan, Artur Bekasov, Iain Murray, George Papamakarios",
        "Neural Spline Flows",
        2019,
        "Advances in Neural Information Processing Systems 32",
    ),
    "psis": Reference(
        "Aki Vehtari, Daniel Simpson, Andrew Gelman, Yuling Yao, Jonah Gabry",
        "Pareto Smoothed Importance Sampling",
        2024,
        "Journal of Machine Learning Research 25, 1-58",
    ),
    "rhat": Reference(
        "Aki Vehtari, Andrew Gelman, Daniel Simpson, Bob Carpenter, Paul-Christian Bürkner",
        "Rank-Normalization, Folding, and Localization: An Improved R-hat for Assessing Convergence of MCMC",
        2021,
        "Bayesian Analysis 16, 667-718",
    ),
    "loo": Reference(
        "Aki Vehtari, Andrew Gelman, Jonah Gabry",
        "Practical Bayesian model evaluation using leave-one-out cross-validation and WAIC",
        2017,
        "Statistics and Computing 27, 1413-1432",
    ),
    "ridge": Reference(
        "Surajit Ray, Bruce G. Lindsay",
        "The topography of multivariate normal mixtures",
        2005,
        "The Annals of Statistics 33, 2042-2065",
    ),
}

_FLOW = ("spline", "imh", "isir", "psis", "rhat")
CITATIONS: dict[str, tuple[str, ...]] = {
    "BoltzmannGenerator": ("boltzmann", *_FLOW),
    "StochasticNormalizingFlow": ("snf", *_FLOW),
    "SequentialBoltzmannGenerator": ("sbg", "boltzmann", *_FLOW),
    "FAB": ("fab", *_FLOW),
    "TemperatureAnnealedBoltzmannGenerator": ("tabg", "boltzmann", *_FLOW),
    "NeuTra": ("neutra", "spline", "rhat"),
    "AutoFlow": ("boltzmann", "spline", "psis"),
    "diagnostics": ("psis", "rhat", "loo", "ridge"),
}


def cite(engine: str) -> str:
    """Publications behind an engine, one a line.

    Args:
        engine: Name of an engine, ``"diagnostics"``, or a key of :data:`REFERENCES` such as ``"psis"``.

    Raises:
        ValueError: The name is unknown; the message lists the known ones.

    Example:
        >>> cite("imh").startswith("Luke Tierney (1994). Markov Chains for Exploring Posterior Distributions.")
        True
    """
    keys = CITATIONS.get(engine, (engine,) if engine in REFERENCES else ())
    if not keys:
        known = ", ".join(sorted([*CITATIONS, *REFERENCES]))
        raise ValueError(f"There is no citation for '{engine}'. Known names: {known}.")
    return "\n".join(str(REFERENCES[key]) for key in keys)
