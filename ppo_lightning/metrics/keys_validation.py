"""Declared metrics of validation. Torch-free.

The core variable is `acc` where the scorer returns it, else `reward`; val-core holds its mean, maj and best at the
largest N, val-aux everything else.
"""

from ppo_lightning.metrics.spec import Absent, MetricSpec, either, no_repeats, no_validation

PROMPTS = "prompts"
REPEATED = either(no_validation, no_repeats)


def _key(name: str, reduction: str, numerator: str, unit: str, absent: Absent = REPEATED) -> tuple[MetricSpec, ...]:
    """Declare a metric that is core for the core variable at the largest N, else auxiliary."""
    return tuple(
        MetricSpec(
            f"{section}/<data_source>/<variable>/{name}", reduction, numerator, PROMPTS, unit, "validation", absent
        )
        for section in ("val-core", "val-aux")
    )


def _aux(name: str, numerator: str, unit: str, absent: Absent = REPEATED, over: str = PROMPTS) -> MetricSpec:
    return MetricSpec(f"val-aux/<data_source>/{name}", "MEAN", numerator, over, unit, "validation", absent)


DRAWS = "over 1000 draws of k of the N samples with replacement (seed 42)"

VALIDATION = (
    *_key("mean@<N>", "MEAN", "mean of the prompt's N samples", "-", no_validation),
    *_key("best@<k>/mean", "MEAN", f"mean of the largest value, {DRAWS}; biased low", "-"),
    *_key("best@<k>/std", "MEAN", f"deviation of the largest value, {DRAWS}", "-"),
    *_key("maj@<k>/mean", "MEAN", f"mean of the value of the most frequent `pred` as written, {DRAWS}", "-"),
    *_key("maj@<k>/std", "MEAN", f"deviation of the value of the most frequent `pred`, {DRAWS}", "-"),
    _aux("<variable>/std@<N>", "population deviation (ddof = 0) of the prompt's N samples", "-"),
    _aux("<variable>/worst@<k>/mean", f"mean of the smallest value, {DRAWS}", "-"),
    _aux("<variable>/worst@<k>/std", f"deviation of the smallest value, {DRAWS}", "-"),
    _aux("<variable>/maj_norm@<k>/mean", "as maj@k, votes on normalised answers (5 = 5.0 = $5)", "-"),
    _aux("<variable>/maj_norm@<k>/std", "as maj@k, votes on normalised answers", "-"),
    _aux("<variable>/pass@<k>", "1 - C(N - c, k) / C(N, k), c of N right: unbiased; only if all are 0 or 1", "share"),
    _aux("<variable>/ci95@<N>", "1.96 x sample deviation of the prompts' means", "-", no_validation,
         "square root of the number of prompts; mean@N plus or minus this"),
    MetricSpec("val-aux/<data_source>/num_prompts", "SUM", PROMPTS, "-", PROMPTS, "validation", no_validation),
    MetricSpec("val-aux/<data_source>/num_samples", "SUM", "samples", "-", "samples", "validation", no_validation),
)  # fmt: skip
