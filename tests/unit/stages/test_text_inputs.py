"""Every STRING tensor and every id that a client may send: text, or refused by its name."""

import json
from pathlib import Path

import pytest
from preprocess_served import SMALL, Jobs, Served

from minimax_h3.control.job_table import JobTable
from minimax_h3.control.registry import Limits
from minimax_h3.control.result_store import ResultStore
from minimax_h3.core.config import StageConfig
from minimax_h3.core.contracts import REQUEST_INPUTS
from minimax_h3.core.errors import InvalidRequestError
from minimax_h3.core.fields import FIELDS
from minimax_h3.stages.base import StageRequest, text_tensor
from minimax_h3.stages.jobs import JobsStage
from minimax_h3.stages.results import ResultsStage
from minimax_h3.stages.stream import read_stream

TEXTS = [
    spec.name
    for spec in REQUEST_INPUTS
    if spec.dtype == "STRING" and (spec.name == "OPTIONS" or FIELDS[spec.name.lower()].kind is str)
]
TWISTED = {
    "NUL": b"a\0b",
    "escape": b"a\x1b[2Jb",
    "C1": "a\x9bb".encode(),
    "no UTF-8": b"a\xffb",
}


@pytest.fixture(scope="module")
def served(tiny_checkpoint: Path) -> Served:
    return Served(tiny_checkpoint)


def test_every_string_input_is_known_here() -> None:
    assert {"PROMPT", "TASK", "ASPECT_RATIO", "AUDIO_MODE", "OPTIONS"} == set(TEXTS)


@pytest.mark.parametrize("twist", TWISTED)
@pytest.mark.parametrize("name", TEXTS)
def test_a_tensor_is_refused_by_its_name(served: Served, name: str, twist: str) -> None:
    tensors = {"PROMPT": text_tensor("a fox"), **SMALL, name: text_tensor(TWISTED[twist])}
    if name == "ASPECT_RATIO":
        tensors = {key: tensors[key] for key in ("PROMPT", name)}
    for read in (served.stage.run, lambda request: read_stream(request, None, StageConfig())):
        with pytest.raises(InvalidRequestError, match=rf"^{name.lower()}: .*legal: ") as refused:
            read(StageRequest(tensors))
        assert str(refused.value).isprintable()
    assert not served.jobs.active()


@pytest.mark.parametrize("text", ['{"client": "a\\u0000b"}', '{"client": "a\\nb"}'])
def test_options_may_not_spell_them_either(served: Served, text: str) -> None:
    tensors = {"PROMPT": text_tensor("a fox"), **SMALL, "OPTIONS": text_tensor(text)}
    with pytest.raises(InvalidRequestError, match=r"^client: 'a\\.*b' is not legal; legal: 1\.\."):
        served.stage.run(StageRequest(tensors))


@pytest.mark.parametrize("request_id", ["a\0b", "a\nb", "\x1b[2J"])
def test_a_request_id_is_refused(served: Served, request_id: str) -> None:
    request = StageRequest({"PROMPT": text_tensor("a fox"), **SMALL}, request_id)
    for read in (served.stage.run, lambda given: read_stream(given, None, StageConfig())):
        with pytest.raises(InvalidRequestError, match=r"^request_id: '.*no control characters"):
            read(request)
    assert not served.jobs.active()


@pytest.mark.parametrize("twist", TWISTED)
def test_the_form_of_a_stream_is_refused(twist: str) -> None:
    tensors = {"PROMPT": text_tensor("a fox"), "RESULT_AS": text_tensor(TWISTED[twist])}
    with pytest.raises(InvalidRequestError, match=r"^RESULT_AS: .*legal: "):
        read_stream(StageRequest(tensors), None, StageConfig())


@pytest.mark.parametrize("twist", TWISTED)
def test_the_id_of_a_result_is_refused(tmp_path: Path, twist: str) -> None:
    stage = ResultsStage(ResultStore(tmp_path, 1000))
    with pytest.raises(InvalidRequestError, match=r"^JOB: .*legal: "):
        stage.run(StageRequest({"JOB": text_tensor(TWISTED[twist])}))


@pytest.mark.parametrize("operation", ["get", "cancel", "timeline"])
@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "x" * 129, 7])
def test_an_id_in_an_operation_is_refused(operation: str, name: object) -> None:
    stage = JobsStage(JobTable(Limits(1, 8, 8, 60.0)))
    text = json.dumps({"op": operation, "id": name})
    with pytest.raises(InvalidRequestError, match=r"^id: .* is not legal; legal: a text of 1\.\."):
        stage.run(StageRequest({"OP": text_tensor(text)}))


@pytest.mark.parametrize("twist", TWISTED)
def test_an_operation_that_is_no_text_is_refused(twist: str) -> None:
    stage = JobsStage(JobTable(Limits(1, 8, 8, 60.0)))
    with pytest.raises(InvalidRequestError, match=r"^OP: .*legal: "):
        stage.run(StageRequest({"OP": text_tensor(TWISTED[twist])}))


def test_jobs_keeps_no_such_name() -> None:
    jobs = Jobs()
    operation = {"op": "register", "job_id": "1", "task": "t2va", "client": "a\0b"}
    with pytest.raises(InvalidRequestError, match=r"^client: "):
        jobs.table.handle(operation, trusted=True)
