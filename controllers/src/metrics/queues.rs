//! Metrics of the work queues, with the names of client-go's work queues and of controller-runtime's controllers. The
//! label is the name of the controller.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;

use crate::runtime::workqueue::{AnyQueue, QueueMetrics, RESULTS};

/// Collector of work queue metrics.
pub(super) struct QueueCollector(pub(super) Vec<Box<dyn AnyQueue + Send + Sync>>);

impl fmt::Debug for QueueCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueCollector")
    }
}

type NamedQueues = [(&'static str, QueueMetrics)];

const GAUGES: [(&str, &str, fn(&QueueMetrics) -> f64); 3] = [
    ("workqueue_depth", "Number of keys waiting for a worker", |queue| to_f64(queue.depth)),
    (
        "workqueue_unfinished_work_seconds",
        "Total time that workers have spent on the keys in progress, in seconds",
        |queue| queue.unfinished.as_secs_f64(),
    ),
    (
        "workqueue_longest_running_processor_seconds",
        "Longest time that a worker has spent on a key in progress, in seconds",
        |queue| queue.longest.as_secs_f64(),
    ),
];

const COUNTERS: [(&str, &str, fn(&QueueMetrics) -> u64); 2] = [
    ("workqueue_adds", "Number of keys added", |queue| queue.counts.adds),
    ("workqueue_retries", "Number of keys requeued with a delay", |queue| queue.counts.retries),
];

const HISTOGRAMS: [(&str, &str, fn(&QueueMetrics) -> &Histogram); 2] = [
    ("workqueue_queue_duration_seconds", "Time that a key waits for a worker, in seconds", |queue| {
        &queue.counts.queue_duration
    }),
    ("workqueue_work_duration_seconds", "Time that a worker spends on a key, in seconds", |queue| {
        &queue.counts.work_duration
    }),
];

const WORKERS: [(&str, &str, fn(&QueueMetrics) -> usize); 2] = [
    ("controller_runtime_active_workers", "Number of keys being reconciled", |queue| queue.active),
    ("controller_runtime_max_concurrent_reconciles", "Maximum number of concurrent reconciliations", |queue| {
        queue.workers
    }),
];

#[expect(clippy::cast_precision_loss, reason = "a queue has fewer keys than 2^53")]
fn to_f64(keys: usize) -> f64 {
    keys as f64
}

impl Collector for QueueCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = self.0.iter().filter_map(|queue| Some((queue.name(), queue.metrics()?)));
        let mut queues: Vec<(&str, QueueMetrics)> = metrics.collect();
        queues.sort_by_key(|(name, _)| *name);
        encode_queues(&queues, &mut encoder)?;
        encode_controllers(&queues, &mut encoder)
    }
}

fn encode_queues(queues: &NamedQueues, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    // Queue and controller have the same name in controller-runtime, too.
    let labels = |name: &'static str| [("name", name), ("controller", name)];
    for (name, help, value_of) in GAUGES {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (name, queue) in queues {
            metric.encode_family(&labels(name))?.encode_gauge(&value_of(queue))?;
        }
    }
    for (name, help, value_of) in COUNTERS {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (name, queue) in queues {
            metric.encode_family(&labels(name))?.encode_counter::<NoLabelSet, _, f64>(&value_of(queue), None)?;
        }
    }
    for (name, help, histogram_of) in HISTOGRAMS {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (name, queue) in queues {
            histogram_of(queue).encode(metric.encode_family(&labels(name))?)?;
        }
    }
    Ok(())
}

fn encode_controllers(queues: &NamedQueues, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let label = |name: &'static str| [("controller", name)];
    for (name, help, value_of) in WORKERS {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (name, queue) in queues {
            metric.encode_family(&label(name))?.encode_gauge(&value_of(queue))?;
        }
    }
    let (name, help) = ("controller_runtime_reconcile", "Number of reconciliations, by result");
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (name, queue) in queues {
        for (result, count) in RESULTS.into_iter().zip(queue.counts.results) {
            let labels = [("controller", *name), ("result", result)];
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
        }
    }
    let (name, help) = ("controller_runtime_reconcile_errors", "Number of failed reconciliations");
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (name, queue) in queues {
        let errors = queue.counts.errors();
        metric.encode_family(&label(name))?.encode_counter::<NoLabelSet, _, f64>(&errors, None)?;
    }
    let (name, help) = ("controller_runtime_reconcile_time_seconds", "Duration of a reconciliation, in seconds");
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (name, queue) in queues {
        queue.counts.reconcile_duration.encode(metric.encode_family(&label(name))?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::metrics::tests::text;
    use crate::runtime::workqueue::{Outcome, Queue};
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn queue_metrics_count_keys_and_reconciliations() {
        let (queue, closed): (Queue<u8>, Queue<u8>) =
            (Queue::new("execution-controller"), Queue::new("remedy-controller"));
        closed.close();
        [1, 2, 3, 4].into_iter().for_each(|key| queue.add(key));
        // A key that is added twice is queued once.
        queue.add(1);
        let stop = CancellationToken::new();
        let (end, again) = (stop.clone(), queue.clone());
        let reconcile = move |key: u8| {
            let (end, again) = (end.clone(), again.clone());
            async move {
                match key {
                    1 => Ok(Outcome::Done),
                    2 => Err(Error::Waiting("not yet".to_owned())),
                    3 => Ok(Outcome::Requeue),
                    _ => {
                        end.cancel();
                        again.add(9);
                        Ok(Outcome::RequeueAfter(std::time::Duration::from_secs(9)))
                    }
                }
            }
        };
        queue.clone().run(4, stop, reconcile).await.expect("no worker fails");
        let text = text(QueueCollector(vec![queue.clone_handle(), closed.clone_handle()]));
        let values_of = |name: &str| -> Vec<&str> {
            text.lines().filter_map(|line| line.strip_prefix(name)).filter(|line| line.starts_with('{')).collect()
        };
        let queued = "{name=\"execution-controller\",controller=\"execution-controller\"}";
        let controller = "{controller=\"execution-controller\"}";
        for (name, labels, value) in [
            ("workqueue_depth", queued, "1.0"),
            ("workqueue_adds_total", queued, "5"),
            ("workqueue_retries_total", queued, "3"),
            ("workqueue_unfinished_work_seconds", queued, "0.0"),
            ("workqueue_longest_running_processor_seconds", queued, "0.0"),
            ("workqueue_queue_duration_seconds_count", queued, "4"),
            ("workqueue_work_duration_seconds_count", queued, "4"),
            ("controller_runtime_active_workers", controller, "0"),
            ("controller_runtime_max_concurrent_reconciles", controller, "4"),
            ("controller_runtime_reconcile_errors_total", controller, "1"),
            ("controller_runtime_reconcile_time_seconds_count", controller, "4"),
        ] {
            assert_eq!(values_of(name), [format!("{labels} {value}")], "{name} in\n{text}");
        }
        let results = ["success", "error", "requeue", "requeue_after"];
        let expected = results.map(|result| format!("{{controller=\"execution-controller\",result=\"{result}\"}} 1"));
        assert_eq!(values_of("controller_runtime_reconcile_total"), expected);
        assert!(text.contains("workqueue_work_duration_seconds_bucket{le=\"1e-8\",name="), "{text}");
        assert!(text.contains("controller_runtime_reconcile_time_seconds_bucket{le=\"0.35\","), "{text}");
    }
}
