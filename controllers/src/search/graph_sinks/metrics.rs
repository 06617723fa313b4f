//! Metrics of all sinks.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_component_base::metrics::Series;
use crowsnest_graph::SinkProgress;
use parking_lot::Mutex;

/// Metrics of all sinks. Cheap to clone.
#[derive(Clone, Default)]
pub struct GraphSinkMetrics(Arc<Mutex<BTreeMap<NamespacedName, SinkSample>>>);

/// State of a sink at the time of the last update.
#[derive(Debug, Clone, Default)]
pub(super) struct SinkSample {
    pub progress: SinkProgress,
    /// Age of the oldest change that the graph may lack, in seconds; `None` if it is unknown.
    pub lag_seconds: Option<u64>,
    /// Unix time of the last committed transaction, in seconds; `None` before the first.
    pub last_write: Option<u64>,
}

impl GraphSinkMetrics {
    /// Replaces the samples of all sinks.
    pub(super) fn replace(&self, samples: BTreeMap<NamespacedName, SinkSample>) {
        *self.0.lock() = samples;
    }

    /// Current values of all metrics.
    pub fn series(&self) -> Vec<Series> {
        type Value = fn(&SinkSample) -> Option<u64>;
        const METRICS: [(&str, &str, bool, Value); 11] = [
            (
                "crowsnest_graph_sink_connected",
                "Whether the database of a GraphSink is reachable (1) or not (0).",
                false,
                |sample| Some(u64::from(sample.progress.is_connected)),
            ),
            (
                "crowsnest_graph_sink_lag_changes",
                "Number of changes that are not yet written to the graph.",
                false,
                |sample| Some(sample.progress.lag()),
            ),
            (
                "crowsnest_graph_sink_lag_seconds",
                "Age of the oldest change that is not yet written to the graph.",
                false,
                |sample| sample.lag_seconds,
            ),
            (
                "crowsnest_graph_sink_undecided_clusters",
                "Number of clusters in which the permissions of the ServiceAccount are unknown.",
                false,
                |sample| Some(sample.progress.undecided_clusters.len() as u64),
            ),
            (
                "crowsnest_graph_sink_last_write_timestamp_seconds",
                "Unix time of the last transaction that was committed.",
                false,
                |sample| sample.last_write,
            ),
            ("crowsnest_graph_sink_nodes_written_total", "Nodes written.", true, |sample| {
                Some(sample.progress.counters.nodes_written)
            }),
            ("crowsnest_graph_sink_nodes_relinked_total", "Nodes whose edges were replaced.", true, |sample| {
                Some(sample.progress.counters.nodes_relinked)
            }),
            ("crowsnest_graph_sink_nodes_removed_total", "Nodes removed, by changes and by sweeps.", true, |sample| {
                Some(sample.progress.counters.nodes_removed + sample.progress.counters.nodes_swept)
            }),
            (
                "crowsnest_graph_sink_objects_skipped_total",
                "Objects that could not be read from the cache and were skipped.",
                true,
                |sample| Some(sample.progress.counters.objects_skipped),
            ),
            ("crowsnest_graph_sink_loads_total", "Complete loads of the graph.", true, |sample| {
                Some(sample.progress.counters.loads)
            }),
            ("crowsnest_graph_sink_failures_total", "Failed attempts to write.", true, |sample| {
                Some(sample.progress.counters.failures)
            }),
        ];
        let samples = self.0.lock();
        let series_of_metric = |(name, help, is_counter, value): (&'static str, &'static str, bool, Value)| {
            samples.iter().filter_map(move |(sink, sample)| {
                let labels = vec![("namespace", sink.namespace.clone()), ("sink", sink.name.clone())];
                Some(Series { name, help, is_counter, labels, value: value(sample)? })
            })
        };
        METRICS.into_iter().flat_map(series_of_metric).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_graph::SinkCounters;

    #[test]
    fn each_sink_has_its_own_series() {
        let metrics = GraphSinkMetrics::default();
        assert!(metrics.series().is_empty());
        let progress = SinkProgress {
            position: 3,
            latest: 10,
            counters: SinkCounters { nodes_removed: 1, nodes_swept: 2, objects_skipped: 4, ..SinkCounters::default() },
            undecided_clusters: vec!["m1".to_owned()],
            ..SinkProgress::default()
        };
        let sample = SinkSample { progress, lag_seconds: Some(2), last_write: Some(1_700_000_000) };
        metrics.replace(BTreeMap::from([(NamespacedName::new("team", "graph"), sample)]));
        let series = metrics.series();
        let value = |name: &str| series.iter().find(|series| series.name == name).unwrap().value;
        assert_eq!(value("crowsnest_graph_sink_lag_changes"), 7);
        assert_eq!(value("crowsnest_graph_sink_lag_seconds"), 2);
        assert_eq!(value("crowsnest_graph_sink_nodes_removed_total"), 3);
        assert_eq!(value("crowsnest_graph_sink_objects_skipped_total"), 4);
        assert_eq!(value("crowsnest_graph_sink_undecided_clusters"), 1);
        assert_eq!(value("crowsnest_graph_sink_last_write_timestamp_seconds"), 1_700_000_000);
        assert_eq!(series[0].labels, [("namespace", "team".to_owned()), ("sink", "graph".to_owned())]);
    }

    #[test]
    fn unknown_values_are_absent() {
        let metrics = GraphSinkMetrics::default();
        metrics.replace(BTreeMap::from([(NamespacedName::new("team", "graph"), SinkSample::default())]));
        let series = metrics.series();
        assert!(!series.is_empty() && series.iter().all(|series| !series.name.ends_with("_seconds")));
    }
}
