"""The client of a vLLM server, against a small server of the standard library that answers as vLLM does."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ppo_lightning.engines.base import Request, Sampling
from ppo_lightning.engines.vllm_client import ServerError, VllmServer
from ppo_lightning.errors import EngineError

INFO = {
    "model_config": {"logprobs_mode": "processed_logprobs"},
    "device_config": {"device_type": "cuda"},
    "scheduler_config": {"enable_chunked_prefill": True},
}
CHOICE = {"token_ids": [5, 7], "logprobs": {"token_logprobs": [-0.5, -0.25]}, "finish_reason": "stop"}


@pytest.fixture
def server():
    """Return (client, answers by route, bodies received)."""
    answers = {
        "/health": {},
        "/v1/models": {"data": [{"id": "m", "max_model_len": 10}]},
        "/server_info?config_format=json": {"vllm_config": INFO},
        "/v1/completions": {"choices": [CHOICE]},
    }
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.do_POST()

        def do_POST(self):
            size = int(self.headers.get("Content-Length") or 0)
            bodies.append((self.path, json.loads(self.rfile.read(size)) if size else None, self.headers))
            status = 200 if self.path in answers else 404
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answers.get(self.path, {})).encode())

        def log_message(self, *args):
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield VllmServer(f"http://127.0.0.1:{running.server_port}/", 10.0), answers, bodies
    running.shutdown()
    running.server_close()


def test_a_completion(server):
    client, _, bodies = server
    client.greet()
    done = client.complete(Request(3, (1, 2, 3), (1,)), Sampling(0.7, 20, stop_ids=(7,)), seed=11)
    assert (done.row, done.token_ids, done.log_probs, done.finish_reason) == (3, [5, 7], [-0.5, -0.25], "stop")
    sent = bodies[-1][1]
    assert sent["prompt"] == [1, 2, 3]
    assert sent["max_tokens"] == 7  # the room left of 10, not the budget of 20
    assert (sent["seed"], sent["temperature"], sent["stop_token_ids"], sent["ignore_eos"]) == (11, 0.7, [7], True)


def test_the_key_is_sent_only_if_there_is_one(server, monkeypatch):
    client, _, bodies = server
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    client.greet()
    assert bodies[-1][2]["Authorization"] is None
    monkeypatch.setenv("VLLM_API_KEY", "k")
    client.greet()
    assert bodies[-1][2]["Authorization"] == "Bearer k"


def test_raw_log_probs_are_refused(server):
    client, answers, _ = server
    answers["/server_info?config_format=json"] = {
        "vllm_config": INFO | {"model_config": {"logprobs_mode": "raw_logprobs"}}
    }
    with pytest.raises(EngineError, match="--logprobs-mode raw_logprobs: start it with"):
        client.greet()


def test_cut_prompts_are_refused_on_a_cpu(server):
    client, answers, _ = server
    answers["/server_info?config_format=json"] = {"vllm_config": INFO | {"device_config": {"device_type": "cpu"}}}
    with pytest.raises(EngineError, match="--no-enable-chunked-prefill"):
        client.greet()


def test_a_server_without_development_mode_is_told_apart(server):
    client, _, _ = server
    with pytest.raises(ServerError, match=r"does not know /collective_rpc: start it with `VLLM_SERVER_DEV_MODE=1"):
        client.take_weights("/folder", 1)


def test_tokens_without_log_probs_are_refused(server):
    client, answers, _ = server
    answers["/v1/completions"] = {"choices": [CHOICE | {"token_ids": [5]}]}
    with pytest.raises(ServerError, match="1 tokens came with 2 log-probs"):
        client.complete(Request(0, (1,), (1,)), Sampling(1.0, 4), 1)


def test_nobody_there():
    assert not VllmServer("http://127.0.0.1:9", 1.0).alive()


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "ftp://host", "http://"])
def test_addresses(address):
    with pytest.raises(EngineError, match=r"rollout\.servers must hold addresses such as"):
        VllmServer(address, 1.0)
