"""A reward model behind HTTP, against a real server on the loopback: request, answer, retries, refusals."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

import pytest

from ppo_lightning.errors import RewardError
from ppo_lightning.rewards.remote import RefusedError, RemoteModel, read_scores
from ppo_lightning.rewards.reward_model import score_batch
from ppo_lightning.rewards.sample import Sample

pytest.importorskip("tenacity")
SAMPLES = [Sample(row, "x", "y" * row, None, None, [{"role": "user", "content": "q"}]) for row in range(5)]


class Server:
    """Scores a text by its length; answers with the given statuses first."""

    def __init__(self):
        self.requests, self.statuses, self.lock = [], [], Lock()
        self.answer = lambda texts: {"data": [{"index": i, "probs": [float(len(t))]} for i, t in enumerate(texts)]}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.reply(200, {"data": [{"id": "the-model"}]})

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    outer.requests.append((self.path, request))
                    status = outer.statuses.pop(0) if outer.statuses else 200
                texts = request["input"] if "input" in request else [request["messages"][-1]["content"]]
                self.reply(status, outer.answer(texts) if status == 200 else {"error": "as asked"})

            def reply(self, status, answer):
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server():
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def text_of(sample):
    return sample.solution_str


def test_classify_gets_rendered_texts_and_raw_scores_are_asked_for(server):
    assert RemoteModel(server.url, text_of).score(SAMPLES) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert server.requests == [
        ("/classify", {"model": "the-model", "input": ["", "y", "yy", "yyy", "yyyy"], "use_activation": False})
    ]


def test_five_samples_on_three_connections_equal_one_by_one(server):
    model = RemoteModel(server.url, text_of, connections=3)
    scored = score_batch(SAMPLES, model.workers())
    assert [item.score for item in scored] == [model.score([one])[0] for one in SAMPLES]


def test_openai_style_embeddings_are_chosen_by_the_address(server):
    server.answer = lambda texts: {"data": [{"index": i, "embedding": [float(len(t))]} for i, t in enumerate(texts)]}
    assert RemoteModel(f"{server.url}/v1/embeddings", text_of).score(SAMPLES[:2]) == [0.0, 1.0]
    assert server.requests == [("/v1/embeddings", {"model": "the-model", "input": ["", "y"]})]


def test_without_a_tokenizer_the_server_renders_the_chat(server):
    assert RemoteModel(server.url, None).score(SAMPLES[1:3]) == [1.0, 2.0]
    assert server.requests[0][1]["messages"] == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "y"},
    ]


def test_server_errors_are_tried_again(server):
    server.statuses = [503, 500]
    assert RemoteModel(server.url, text_of).score(SAMPLES[:2]) == [0.0, 1.0]
    assert len(server.requests) == 3


def test_a_refusal_is_not_tried_again(server):
    server.statuses = [400]
    with pytest.raises(RefusedError, match=r"refused the request with 400: .*as asked"):
        RemoteModel(server.url, text_of).score(SAMPLES[:2])
    assert len(server.requests) == 1


def test_a_server_that_stays_broken_becomes_a_fault_of_the_samples(server):
    server.statuses = [500] * 50
    scored = score_batch(SAMPLES[:2], [RemoteModel(server.url, text_of).score])
    assert [item.fault for item in scored] == ["exception", "exception"]
    assert len(server.requests) == 5


def test_too_few_scores_are_noticed(server):
    server.answer = lambda texts: {"data": [{"index": 0, "probs": [1.0]}]}
    scored = score_batch(SAMPLES[:3], [RemoteModel(server.url, text_of).score])
    assert [item.fault for item in scored] == ["too_few"] * 3


def test_answers_are_put_in_order_and_read_in_every_known_form():
    entries = [{"index": 1, "probs": [2.0]}, {"index": 0, "probs": [1.0]}]
    assert read_scores({"data": entries}) == [1.0, 2.0]
    assert read_scores({"data": [{"data": [[0.5]]}]}) == [0.5]
    assert read_scores({"data": [{"score": 0}]}) == [0.0]


@pytest.mark.parametrize(
    "answer", [{}, [], {"data": [{}]}, {"data": [{"probs": [0.1, 0.9]}]}, {"data": [{"probs": ["x"]}]}]
)
def test_other_answers_are_errors(answer):
    with pytest.raises(RewardError, match="the reward server must answer"):
        read_scores(answer)


@pytest.mark.parametrize("address", ["localhost:8000", "ftp://a", "", "http://"])
def test_addresses_are_checked(address):
    with pytest.raises(RewardError, match=r"reward\.model_server must look like http://host:8000"):
        RemoteModel(address, None)
