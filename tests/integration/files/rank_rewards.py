"""Rewards that go by the text alone and differ between the responses of a random model."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """Letters and the length; `long` is there for some rows only."""
    letters = sum(letter.isalpha() for letter in solution_str)
    found = {"score": letters / 8 + 0.1 * (len(solution_str) % 3), "acc": float(letters > 3), "letters": letters}
    return found | ({"long": len(solution_str)} if len(solution_str) > 6 else {})


def long(data_source, solution_str, ground_truth, extra_info=None):
    """The length: ranks whose responses are longer have other losses."""
    return float(len(solution_str))


def coarse(data_source, solution_str, ground_truth, extra_info=None):
    """Right or wrong, by the sum of the characters: many groups have no signal."""
    return float(sum(map(ord, solution_str)) % 3 == 0)
