"""Prompt and response as the one chat that a reward model reads."""

from typing import Any

from ppo_lightning.errors import RewardError
from ppo_lightning.rewards.sample import Sample


def chat_of(sample: Sample) -> list[dict[str, Any]]:
    """Return prompt and response as one chat; a text prompt is a user message.

    Raises:
        RewardError: the sample has no prompt.
    """
    if sample.prompt is None:
        raise RewardError(f"row {sample.row}: a reward model needs the prompt beside the response")
    messages = [{"role": "user", "content": sample.prompt}] if isinstance(sample.prompt, str) else list(sample.prompt)
    return [*messages, {"role": "assistant", "content": sample.solution_str}]


def render(tokenizer: Any, sample: Sample) -> str:
    """Return the chat in the reward model's own template; without one, the contents joined by line breaks."""
    chat = chat_of(sample)
    if tokenizer.chat_template is None:
        return "\n".join(str(message["content"]) for message in chat)
    return str(tokenizer.apply_chat_template(chat, tokenize=False))
