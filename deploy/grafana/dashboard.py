"""The dashboard as Grafana's JSON. What it shows is `panels.py`; `python -m tests.monitoring` writes it."""

import json
from itertools import count

from grafana_foundation_sdk.builders import common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models

from deploy.grafana.panels import ROWS, Kind, Panel

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24
STAT_HEIGHT, HEIGHT = 4, 8


def dashboard() -> str:
    built = (
        builders.Dashboard("pd-sidecar")
        .uid("pd-sidecar")
        .description("Is SGLang's decode told what prefill gave up? Generated: see deploy/grafana/dashboard.py.")
        .tags(["sglang", "pd-sidecar"])
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_instances())
    )
    numbers = count(1)
    for row in ROWS:
        built.with_row(builders.Row(row.title).id(next(numbers)))
        for panel in row.panels:
            built.with_panel(_panel(panel, len(row.panels)).id(next(numbers)))
    return json.dumps(built.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _instances() -> builders.QueryVariable:
    return (
        builders.QueryVariable("instance")
        .label("Sidecar")
        .datasource(SOURCE)
        .query("label_values(pd_sidecar_build_info, instance)")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(text="All", value="$__all"))
    )


def _panel(panel: Panel, beside: int) -> stat.Panel | timeseries.Panel:
    built = _stat(panel, WIDTH // beside) if panel.kind is Kind.STAT else _lines(panel)
    built.title(panel.title).description(panel.text).datasource(SOURCE).unit(panel.unit)
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        built.with_target(
            prometheus.Dataquery().ref_id(letter).expr(query.expression).legend_format(query.legend).datasource(SOURCE)
        )
    return built


def _stat(panel: Panel, width: int) -> stat.Panel:
    steps = [models.Threshold(color="green", value=None)]
    if panel.warn_from is not None:
        steps.append(models.Threshold(color="red", value=panel.warn_from))
    thresholds = builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
    last = common.ReduceDataOptions().calcs(["lastNotNull"])
    return stat.Panel().span(width).height(STAT_HEIGHT).thresholds(thresholds).reduce_options(last).no_value("-")


def _lines(panel: Panel) -> timeseries.Panel:
    legend = (
        common.VizLegendOptions()
        .display_mode(options.LegendDisplayMode.LIST)
        .placement(options.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    tooltip = common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI)
    built = timeseries.Panel().span(WIDTH // 4).height(HEIGHT).min(0).legend(legend).tooltip(tooltip)
    if panel.kind is Kind.STACK:
        built.stacking(common.StackingConfig().mode(options.StackingMode.NORMAL)).fill_opacity(30)
    return built
