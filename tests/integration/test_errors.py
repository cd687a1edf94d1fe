"""What a user does wrong ends with one message that names it, exit code 2, and no traceback."""

import json
import shutil

import pytest

from ppo_lightning.cli import main


@pytest.fixture
def refused(capsys):
    """Return a function that runs a command line and returns what it says on stderr, after an exit code of 2."""

    def run(*arguments):
        assert main(arguments) == 2
        return capsys.readouterr().err

    return run


def test_from_a_shell_there_is_no_traceback(cli):
    done = cli("fit", "--config", "quickstart", "data.train=none.jsonl")
    assert done.returncode == 2
    assert done.stderr.startswith("error: data.train=none.jsonl: no such file")
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("actor.lrr=1", "Did you mean `actor.lr`?"),
        ("actor.lr=fast", "`actor.lr` must be float"),
        ("algorithm.kl_ctrl=adaptiv", "Did you mean `adaptive`?"),
        ("algorithm.adv_estimator=grop", "did you mean 'grpo'?"),
        ("actor.policy_loss=vanila", "did you mean 'vanilla'?"),
        ("data.prompts_per_step=0", "data.prompts_per_step=0 must be at least 1"),
        ("update.sequences_per_minibatch=7", "update.sequences_per_minibatch=7 must divide"),
        ("rollout.rollouts_per_prompt=1", "rollout.rollouts_per_prompt=1 must be at least 2"),
        ("rollout.top_p=0.9", "rollout.top_p=0.9"),
        ("update.tokens_per_microbatch=10", "update.tokens_per_microbatch=10 must hold the longest sequence"),
        ("validation.samples_per_prompt=4 validation.temperature=0", "validation.samples_per_prompt=4"),
        ("reward.on_error=ignore", "reward.on_error must be stop, drop or score:<number>"),
        ("trainer.devices=2", "trainer.strategy=single runs on one device, got trainer.devices=2 x trainer.nodes=1"),
        ("rollout=vllm model.dtype=float64", "rollout.engine=vllm has no float64: set rollout.dtype=float32"),
        ("strategy=fsdp trainer.offload=true", "trainer.offload=True needs whole weights on each rank"),
        ("rollout=vlm", "Did you mean `vllm`?"),
        ("nonsense", "not understood: nonsense"),
        ("name=${oc.env:WANDB_API_KEY}", "would copy a secret"),
    ],
)
def test_config_mistakes(refused, override, says):
    assert says in refused("config", "--config", "quickstart", *override.split())


def test_all_mistakes_are_reported_at_once(refused):
    text = refused("config", "--config", "quickstart", "actor.lrr=1", "critic.lr=x", "trainer.stepz=3")
    assert len(text.strip().splitlines()) == 3


def test_missing_recipe_lists_the_shipped_ones(refused):
    text = refused("fit", "--config", "gsm9k.yaml")
    assert "no such file" in text
    assert "quickstart" in text


@pytest.mark.parametrize(
    ("content", "override", "says"),
    [
        (None, "", "no such file"),
        ('{"question": "a", "answer": "1"}\nnot json\n', "", "row 2: not JSON"),
        ('{"question": "a", "answer": "1"}\n{"question": "", "answer": "1"}\n', "", "row 2: `question` must be text"),
        ('{"frage": "a", "antwort": "1"}\n', "", "data.question_key"),
        (
            '{"question": "a", "answer": "1"}\n',
            "data.max_prompt_tokens=5 data.long_prompts=error",
            "row 1: the prompt has",
        ),
        ('{"question": "a", "answer": "1"}\n', "data.max_prompt_tokens=5", "no prompt left"),
        ('{"question": "a", "answer": "1"}\n', "", "data.prompts_per_step=8 is more than the 1 training prompts"),
        ('{"question": "a", "answer": "1"}\n', "data.answer_pattern=xyz", "matches nothing in the answer"),
    ],
)
def test_data_mistakes(refused, tmp_path, real_model, content, override, says):
    file = tmp_path / "rows.jsonl"
    if content is not None:
        file.write_text(content)
    text = refused(
        "fit",
        "--config",
        "quickstart",
        f"data.train={file}",
        f"output_dir={tmp_path}",
        f"model.path={real_model}",
        *override.split(),
    )
    assert says in text
    assert not (tmp_path / "quickstart").exists()


def test_model_without_chat_template(refused, tmp_path, tiny_model):
    bare = tmp_path / "bare"
    shutil.copytree(tiny_model, bare)
    (bare / "chat_template.jinja").unlink()
    settings = json.loads((bare / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (bare / "tokenizer_config.json").write_text(json.dumps(settings))
    assert "has no chat template: set model.chat_template" in refused(
        "fit", "--config", "quickstart", f"model.path={bare}"
    )


def test_no_model_there(refused, tmp_path):
    text = refused("fit", "--config", "quickstart", f"model.path={tmp_path}/none")
    assert "model.path" in text
    assert "packaged model" in text
