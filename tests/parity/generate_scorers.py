"""Write golden/scorers.npz: verl 0.9.1's GSM8K scores of the texts of inputs_scorers.py. Runs in the oracle."""

import sys
from pathlib import Path

import numpy as np
from verl.utils.reward_score.gsm8k import compute_score

sys.path.insert(0, str(Path(__file__).parent))
from inputs_scorers import GOLDS, digest, responses

GOLDEN = Path(__file__).parent / "golden" / "scorers.npz"


def main() -> None:
    """Score every text against every gold answer, by both rules."""
    texts = responses()
    scores = {
        method: np.packbits([[compute_score(text, gold, method) == 1.0 for gold in GOLDS] for text in texts])
        for method in ("strict", "flexible")
    }
    np.savez_compressed(GOLDEN, digest=np.array(digest()), **scores)


if __name__ == "__main__":
    main()
