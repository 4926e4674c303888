"""Probes are answered by the adapter alone."""

from fakes.pb_utils import InferenceRequest

from minimax_h3.core.contracts import PROBE_PARAMETER
from minimax_h3.triton_io.probe import answer_probes, is_probe


def test_probes_and_work_keep_their_order() -> None:
    probe = InferenceRequest(parameters={PROBE_PARAMETER: True})
    one, two = InferenceRequest("one"), InferenceRequest("two", parameters={"x-a": "b"})
    assert is_probe(probe)
    assert not is_probe(one)
    assert not is_probe(InferenceRequest(parameters={"seed": PROBE_PARAMETER}))
    served: list[object] = []

    def serve(requests: list) -> list:
        served.extend(requests)
        return [request.model_name for request in requests]

    answers = answer_probes([one, probe, two], serve)
    assert served == [one, two]
    assert (answers[0], answers[2]) == ("one", "two")
    assert not answers[1].has_error()
    assert answers[1].output_tensors() == []


def test_no_stage_hears_of_a_probe() -> None:
    probe = InferenceRequest(parameters={PROBE_PARAMETER: True})
    answers = answer_probes([probe], lambda requests: 1 / 0)
    assert len(answers) == 1
