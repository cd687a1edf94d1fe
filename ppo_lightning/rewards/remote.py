"""A reward model behind HTTP: vLLM's `/classify`, its `/pooling`, or an OpenAI-style `/v1/embeddings`.

Requests that fail to connect, time out or end in a 5xx answer are tried again with growing pauses; a 4xx answer
says that the request itself is wrong and is not.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlparse

from ppo_lightning.errors import RewardError
from ppo_lightning.rewards.chat import chat_of
from ppo_lightning.rewards.sample import Sample

ATTEMPTS = 5
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
DEFAULT_ROUTE = "/classify"
SCORE_KEYS = ("probs", "embedding", "data", "score")


class RefusedError(RewardError):
    """The server answered 4xx: the same request would be refused again."""


class RemoteModel:
    """A reward model on a server.

    Args:
        address: `http://host:port`, optionally with the route; the route is `/classify` by default.
        render: turns a sample into the text that the model reads; None: the server renders the chat, one per request.
        connections: requests open at the same time.
        timeout_s: seconds one sample may take; a request may take that per sample.

    Raises:
        RewardError: the address is no HTTP address, or tenacity is not installed.
    """

    def __init__(
        self, address: str, render: Callable[[Sample], str] | None, connections: int = 8, timeout_s: float = 10.0
    ) -> None:
        parsed = urlparse(address)
        if parsed.scheme not in ("http", "https") or not parsed.netloc:
            raise RewardError(f"reward.model_server must look like http://host:8000 - got {address!r}")
        self.url = address.rstrip("/") if parsed.path.strip("/") else f"{address.rstrip('/')}{DEFAULT_ROUTE}"
        self.base = f"{parsed.scheme}://{parsed.netloc}"
        self.render = render
        self.connections = connections
        self.timeout_s = timeout_s
        self._retry = _retrying()
        self._model: str | None = None

    def workers(self) -> list[Callable[[Sequence[Sample]], Sequence[float]]]:
        """Return one worker per connection."""
        return [self.score] * self.connections

    def to(self, device: Any) -> None:
        """Do nothing: the server has its own device."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Return one score per sample.

        Raises:
            RewardError: the server refused, could not be reached, or answered something else than scores.
        """
        if self.render is None:
            return [value for sample in samples for value in self._ask({"messages": chat_of(sample)}, 1)]
        return self._ask({"input": [self.render(sample) for sample in samples]}, len(samples))

    def _ask(self, what: dict[str, Any], count: int) -> list[float]:
        request = {"model": self.model(), **what}
        if "/embeddings" not in self.url:
            request["use_activation"] = False
        answer = self._retry(post_json, self.url, request, self.timeout_s * count)
        return read_scores(answer)

    def model(self) -> str:
        """Return the name under which the server serves its model, asked once."""
        if self._model is None:
            answer = self._retry(post_json, f"{self.base}/v1/models", None, self.timeout_s)
            self._model = str(answer["data"][0]["id"])
        return self._model


def _retrying() -> Any:
    try:
        import tenacity
    except ImportError as error:
        raise RewardError("reward.model_server needs tenacity: pip install 'ppo-lightning[remote]'") from error
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(OSError),
        wait=tenacity.wait_random_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S),
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        reraise=True,
    )


def post_json(url: str, body: dict[str, Any] | None, seconds: float) -> Any:
    """POST a JSON body (or GET without one) and return the JSON answer.

    Raises:
        RefusedError: 4xx.
        OSError: no connection, no answer in time, or 5xx.
        RewardError: the answer is no JSON.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as reply:
            text = reply.read()
    except urllib.error.HTTPError as error:
        if 400 <= error.code < 500:
            said = error.read(500).decode(errors="replace")
            raise RefusedError(f"{url} refused the request with {error.code}: {said}") from error
        raise
    try:
        return json.loads(text)
    except ValueError as error:
        raise RewardError(f"{url} must answer JSON - got {text[:200]!r}") from error


def read_scores(answer: Any) -> list[float]:
    """Return the scores of an answer {"data": [{"index", "probs" | "embedding" | "data" | "score"}]}, by index.

    Raises:
        RewardError: the answer has another form.
    """
    try:
        entries = sorted(answer["data"], key=lambda entry: entry.get("index", 0))
        return [_score_of(entry) for entry in entries]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, StopIteration) as error:
        wanted = "{'data': [{'probs': [score]}]}"
        raise RewardError(f"the reward server must answer {wanted} - got {str(answer)[:300]}: {error}") from error


def _score_of(entry: dict[str, Any]) -> float:
    value = next(entry[key] for key in SCORE_KEYS if key in entry)
    while isinstance(value, list):
        if len(value) != 1:
            raise ValueError(f"one score per text is needed - got {len(value)} values: the model has several outputs")
        value = value[0]
    return float(value)
