import json

from crossmesh.track.mlflow.views import VIEWS, line_chart


def test_a_view_is_a_tag_that_every_server_takes_and_an_address() -> None:
    training = VIEWS[0]
    key, value = training.tag
    state = json.loads(value)
    assert key == "mlflow.sharedViewState.crossmesh-training"
    assert training.path("7") == "/#/experiments/7/runs?viewStateShareKey=crossmesh-training&compareRunsMode=CHART"
    assert state["searchFilter"] == training.filter == "tags.`crossmesh.kind` = 'train'"
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`train/final_loss`", True)
    assert "params.`mesh_shape.fsdp`" in state["selectedColumns"]
    for view in VIEWS:
        full = view.tag[1]
        assert len(full) < 5_000  # MLflow before 3.
        shown = json.loads(full)
        charts, sections = shown["compareRunCharts"], shown["compareRunSections"]
        assert len({chart["uuid"] for chart in charts}) == len(charts)
        assert {chart["metricSectionId"] for chart in charts} == {section["uuid"] for section in sections}


def test_a_curve_over_tokens_takes_its_axis_from_a_metric_and_not_from_the_page() -> None:
    chart = line_chart("Loss by tokens", "train/loss", "train/tokens")
    assert (chart["xAxisKey"], chart["selectedXAxisMetricKey"], chart["useGlobalXaxisKey"]) == ("metric", "train/tokens", False)
    assert line_chart("Loss", "train/loss")["xAxisKey"] == "step"
