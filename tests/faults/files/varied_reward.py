"""A reward that differs between texts, so that every group has a gradient."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(sum(map(ord, solution_str)) % 11) / 10
