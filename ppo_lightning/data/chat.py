"""Chats as token ids: the template's special tokens are special, the same characters in a message are text."""

import functools
import re
from typing import Any

from ppo_lightning.errors import DataError

Chat = list[dict[str, str]]
KEPT_WHOLE = ("system", "user", "tool", "developer")
"""Roles whose content no template may change; of an assistant's turn some leave out the reasoning."""


def render(
    tokenizer: Any, chat: Chat, add_generation_prompt: bool = True, whole: tuple[str, ...] = KEPT_WHOLE
) -> list[int]:
    """Render a chat with the tokenizer's template and return its ids.

    A message may hold the characters of a special token, such as `<|im_end|>`. They neither end the turn nor open
    another: they become the tokens of their letters.

    Args:
        tokenizer: with a chat template.
        chat: messages of role and content.
        add_generation_prompt: open the assistant's turn.
        whole: roles whose messages the template must not leave out.

    Raises:
        DataError: the template refuses the chat or leaves a message out, or nothing is left of it.
    """
    pattern = _any_special_token(tokenizer, len(tokenizer))
    hidden: list[str] = []

    def hide(match: re.Match[str]) -> str:
        hidden.append(match[0])
        return f"\0{len(hidden) - 1}\0"

    masked = [{**message, "content": pattern.sub(hide, str(message["content"]).replace("\0", ""))} for message in chat]
    text = _render(tokenizer, masked, add_generation_prompt)
    for message in masked:
        if message["role"] in whole and message["content"].strip() not in text:
            raise DataError(f"the chat template leaves out a message of role {message['role']!r}")
    ids: list[int] = []
    for place, piece in enumerate(text.split("\0")):
        if place % 2:
            ids += _as_text(tokenizer, hidden[int(piece)])
        elif piece:
            ids += tokenizer(piece, add_special_tokens=False)["input_ids"]
    if not ids:
        raise DataError("the prompt has no tokens")
    return ids


def special_tokens(tokenizer: Any) -> list[str]:
    """Return the texts that a tokenizer reads as one special token."""
    added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return [token for token in dict.fromkeys([*map(str, tokenizer.all_special_tokens), *added]) if token]


@functools.lru_cache(maxsize=8)
def _any_special_token(tokenizer: Any, size: int) -> re.Pattern[str]:
    """Return what matches a special token; `size` tells a tokenizer from itself with further tokens."""
    special = sorted(special_tokens(tokenizer), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, special)) or r"(?!)")


def _render(tokenizer: Any, chat: Chat, add_generation_prompt: bool) -> str:
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=add_generation_prompt)
    except Exception as error:  # noqa: BLE001 - templates raise what their authors chose
        raise DataError(f"the chat template refuses the prompt: {error}") from None
    return str(text)


def _as_text(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a special token's letters.

    Raises:
        DataError: this tokenizer can only read it as the token.
    """
    ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    if set(ids) & {tokenizer.convert_tokens_to_ids(text)}:
        raise DataError(f"a message holds {text!r}, which this tokenizer can only read as a special token")
    return ids
