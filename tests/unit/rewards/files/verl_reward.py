"""A reward file as verl users write it: rule functions, sync and async, returning a float or a dict."""

import asyncio
import re


def _answer(text):
    found = re.findall(r"-?\d+", text)
    return found[-1] if found else None


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0 if _answer(solution_str) == str(ground_truth) else 0.0


def compute_score_dict(data_source, solution_str, ground_truth, extra_info, bonus=0.0, **kwargs):
    right = _answer(solution_str) == str(ground_truth)
    result = {"score": float(right) + bonus, "acc": right, "source": data_source}
    if extra_info and "split" in extra_info:
        result["split"] = extra_info["split"]
    return result


async def compute_score_async(data_source, solution_str, ground_truth, extra_info=None):
    await asyncio.sleep(0.05)
    return float(_answer(solution_str) == str(ground_truth))


def compute_score_batch(data_sources, solution_strs, ground_truths, extra_infos, **kwargs):
    return [float(_answer(text) == str(truth)) for text, truth in zip(solution_strs, ground_truths, strict=True)]


class Judge:
    """A callable object instead of a function."""

    def __call__(self, data_source, solution_str, ground_truth, extra_info=None):
        return len(solution_str) / 10


judge = Judge()


def keyword_only(**kwargs):
    return float(sorted(kwargs) == ["data_source", "extra_info", "ground_truth", "solution_str"])


def wrong_signature(answer, truth):
    return 1.0


async def blocking(data_source, solution_str, ground_truth, extra_info=None):
    import time

    if solution_str == "block":
        time.sleep(10**6)
    if solution_str == "wait":
        await asyncio.sleep(10**6)
    return 1.0
