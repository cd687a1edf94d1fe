"""An engine that samples on one rank and gives several ranks those responses: what differs then comes from training."""

import json
from pathlib import Path

from ppo_lightning.engines.base import Completion
from ppo_lightning.engines.transformers import build_transformers


def sampled_once(config, module):
    """Build it; responses of a run are beside the folders of runs, in files by step."""
    engine = build_transformers(config, module)
    sample, alone = engine.generate, module.ranks.size == 1
    folder = Path(config.output_dir).parent / "responses" / config.name
    folder.mkdir(parents=True, exist_ok=True)

    def generate(requests, sampling, on_finish=None):
        file = folder / f"{module.step}.json"
        if alone:
            done = sample(requests, sampling, on_finish)
            pairs = zip(requests, done, strict=True)
            kept = {str(request.key): (one.token_ids, one.log_probs, one.finish_reason) for request, one in pairs}
            file.write_text(json.dumps(kept))
            return done
        kept = json.loads(file.read_text())
        done = [Completion(request.row, *kept[str(request.key)]) for request in requests]
        for completion in done if on_finish else ():
            on_finish(completion)
        return done

    engine.generate = generate
    return engine
