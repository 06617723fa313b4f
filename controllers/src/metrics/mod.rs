//! Metrics of the controllers, with the names of Karmada's metrics (docs/METRICS.md).
//!
//! Values that exist elsewhere are not stored again: metrics of clusters are read from the status of Clusters, and the
//! depth of the eviction queue from the queue.

pub mod autoscaling;
pub mod operations;
mod queues;
pub mod scheduling;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::keys::BindingKey;
use crowsnest_api::policy::ResourceList;
use crowsnest_members::Fleet;
use parking_lot::{Mutex, RwLock};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use self::autoscaling::AutoscalingMetrics;
use self::operations::OperationMetrics;
use self::queues::QueueCollector;
use self::scheduling::{PendingCollector, SchedulingMetrics};
use crate::runtime::workqueue::{AnyQueue, Queue};
use crate::shared::clusters::is_ready;

type Labels = Vec<(&'static str, String)>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;
/// Labels with static values.
type StaticLabels<const N: usize> = [(&'static str, &'static str); N];
type StaticLabelHistograms<const N: usize> = Family<StaticLabels<N>, Histogram, fn() -> Histogram>;

/// Counters by result.
#[derive(Clone)]
pub struct ResultCounters {
    family: Family<Labels, Counter>,
    /// Counters of errors and successes, cached to avoid lookups.
    by_result: [Counter; 2],
}

impl ResultCounters {
    fn new() -> Self {
        let family = Family::<Labels, Counter>::default();
        let by_result = [false, true].map(|is_success| family.get_or_create_owned(&vec![result_label(is_success)]));
        ResultCounters { family, by_result }
    }

    pub fn record(&self, is_success: bool) {
        self.by_result[usize::from(is_success)].inc();
    }
}

/// Histograms of durations by result.
#[derive(Clone)]
pub struct Durations {
    family: Histograms,
    by_result: [Histogram; 2],
}

impl Durations {
    /// Histograms with the buckets of Karmada's controllers.
    fn new() -> Self {
        Self::with_buckets(|| Histogram::new(exponential_buckets(0.001, 2.0, 12)))
    }

    /// Histograms for durations that are ten times longer.
    fn with_slow_buckets() -> Self {
        Self::with_buckets(|| Histogram::new(exponential_buckets(0.01, 2.0, 12)))
    }

    fn with_buckets(buckets: fn() -> Histogram) -> Self {
        let family = Histograms::new_with_constructor(buckets);
        let by_result = [false, true].map(|is_success| family.get_or_create_owned(&vec![result_label(is_success)]));
        Durations { family, by_result }
    }

    pub fn record(&self, duration: Duration, is_success: bool) {
        self.by_result[usize::from(is_success)].observe(duration.as_secs_f64());
    }
}

fn result_label(is_success: bool) -> (&'static str, String) {
    ("result", if is_success { "success" } else { "error" }.to_owned())
}

/// Metrics of evictions.
#[derive(Clone)]
struct EvictionMetrics {
    latency: Histograms,
    total: Family<Labels, Counter>,
}

/// All metrics of the controllers.
pub struct ControllerMetrics {
    registry: RwLock<Registry>,
    evictions: EvictionMetrics,
    cluster_status: Histograms,
    match_policy: Histogram,
    apply_policy: Durations,
    policy_attempts: ResultCounters,
    pub preemptions: ResultCounters,
    pub sync_work: Durations,
    pub sync_workload: Durations,
    pub federated_hpa: Durations,
    pub cron_federated_hpa: Durations,
    pub cron_rule: Durations,
    pub autoscaling: AutoscalingMetrics,
    pub operations: OperationMetrics,
    pub scheduling: SchedulingMetrics,
}

impl ControllerMetrics {
    pub fn new(fleet: Fleet) -> Self {
        let metrics = ControllerMetrics {
            registry: RwLock::default(),
            evictions: EvictionMetrics {
                latency: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 15))),
                total: Family::default(),
            },
            cluster_status: Family::new_with_constructor(|| {
                Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
            }),
            match_policy: Histogram::new(exponential_buckets(0.001, 2.0, 12)),
            apply_policy: Durations::new(),
            policy_attempts: ResultCounters::new(),
            preemptions: ResultCounters::new(),
            sync_work: Durations::new(),
            sync_workload: Durations::new(),
            federated_hpa: Durations::with_slow_buckets(),
            cron_federated_hpa: Durations::new(),
            cron_rule: Durations::new(),
            autoscaling: AutoscalingMetrics::new(),
            operations: OperationMetrics::default(),
            scheduling: SchedulingMetrics::new(),
        };
        metrics.register(ClusterCollector(fleet));
        metrics
    }

    fn register(&self, fleet: ClusterCollector) {
        let ControllerMetrics { evictions: EvictionMetrics { latency, total }, .. } = self;
        let mut registry = self.registry.write();
        registry.register_collector(Box::new(fleet));
        let mut histograms = |name: &'static str, help: &str, histograms: &Histograms| {
            registry.register(name, help, histograms.clone());
        };
        let name = "eviction_processing_latency_seconds";
        histograms(name, "Duration of processing an eviction", latency);
        let name = "cluster_sync_status_duration_seconds";
        histograms(name, "Duration of a cluster status check", &self.cluster_status);
        for (name, action, durations) in [
            ("resource_apply_policy_duration_seconds", "applying a policy to a template", &self.apply_policy),
            ("binding_sync_work_duration_seconds", "synchronizing the Works of a binding", &self.sync_work),
            ("work_sync_workload_duration_seconds", "applying a Work in its cluster", &self.sync_workload),
            ("federatedhpa_process_duration_seconds", "processing a FederatedHPA", &self.federated_hpa),
            ("cronfederatedhpa_process_duration_seconds", "processing a CronFederatedHPA", &self.cron_federated_hpa),
            ("cronfederatedhpa_rule_process_duration_seconds", "executing a CronFederatedHPA rule", &self.cron_rule),
        ] {
            histograms(name, &format!("Duration of {action}, by result"), &durations.family);
        }
        let name = "resource_match_policy_duration_seconds";
        registry.register(name, "Duration of finding the policy of a template", self.match_policy.clone());
        // The encoder appends `_total` to the name of a counter.
        registry.register("eviction_processing", "Number of processed evictions, by result", total.clone());
        let (name, help) = ("policy_apply_attempts", "Number of attempts to apply a policy to a template, by result");
        registry.register(name, help, self.policy_attempts.family.clone());
        let (name, help) = ("policy_preemption", "Number of policy preemptions, by result");
        registry.register(name, help, self.preemptions.family.clone());
        registry.register_collector(Box::new(self.operations.clone()));
        self.autoscaling.register(&mut registry);
        self.scheduling.register(&mut registry);
    }

    /// Registers the metrics of work queues.
    pub(crate) fn register_queues<'a>(&self, queues: impl Iterator<Item = &'a dyn AnyQueue>) {
        let queues = queues.map(AnyQueue::clone_handle).collect();
        self.registry.write().register_collector(Box::new(QueueCollector(queues)));
    }

    /// Registers the metric of pending bindings.
    pub fn register_pending(&self, queue: Queue<BindingKey>) {
        self.registry.write().register_collector(Box::new(PendingCollector(queue)));
    }

    /// Registers the metrics of the eviction queue.
    pub fn register_evictions(&self, queue: Queue<BindingKey>, waiting: Arc<WaitingEvictions>) {
        self.registry.write().register_collector(Box::new(EvictionQueue { queue, waiting }));
    }

    /// Records an eviction attempt.
    pub fn record_eviction(&self, key: &BindingKey, duration: Duration, is_success: bool) {
        let name = ("name", queue_name(key).to_owned());
        self.evictions.latency.get_or_create(&vec![name.clone()]).observe(duration.as_secs_f64());
        self.evictions.total.get_or_create(&vec![name, result_label(is_success)]).inc();
    }

    /// Records a status check of a cluster.
    pub fn record_status_collection(&self, cluster: &str, duration: Duration) {
        self.cluster_status.get_or_create(&cluster_labels(cluster)).observe(duration.as_secs_f64());
    }

    pub fn forget_cluster(&self, cluster: &str) {
        self.cluster_status.remove(&cluster_labels(cluster));
        self.operations.forget(cluster);
    }

    /// Records the search for a template's policy.
    pub fn record_policy_match(&self, duration: Duration) {
        self.match_policy.observe(duration.as_secs_f64());
    }

    /// Records the application of a template's policy.
    pub fn record_policy_application(&self, duration: Duration, is_success: bool) {
        self.apply_policy.record(duration, is_success);
        self.policy_attempts.record(is_success);
    }

    /// Writes all metrics as OpenMetrics text, without the end marker.
    pub fn write(&self, out: &mut impl fmt::Write) -> fmt::Result {
        encode_registry(out, &self.registry.read())
    }
}

fn cluster_labels(name: &str) -> Labels {
    vec![("member_cluster", name.to_owned())]
}

/// Karmada has one queue per scope of bindings.
fn queue_name(key: &BindingKey) -> &'static str {
    if key.is_cluster_scoped() { "cluster-binding-eviction" } else { "binding-eviction" }
}

/// Bindings whose eviction waits because of the rate limit or because evictions are halted, with the clusters to evict
/// them from.
#[derive(Default)]
pub struct WaitingEvictions(Mutex<BTreeMap<BindingKey, BTreeSet<String>>>);

impl WaitingEvictions {
    pub fn put(&self, key: &BindingKey, clusters: BTreeSet<String>) {
        match clusters.is_empty() {
            true => self.remove(key),
            false => drop(self.0.lock().insert(key.clone(), clusters)),
        }
    }

    pub fn remove(&self, key: &BindingKey) {
        self.0.lock().remove(key);
    }
}

struct EvictionQueue {
    queue: Queue<BindingKey>,
    waiting: Arc<WaitingEvictions>,
}

impl fmt::Debug for EvictionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EvictionQueue")
    }
}

impl Collector for EvictionQueue {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut depth = BTreeMap::from([("binding-eviction", 0_i64), ("cluster-binding-eviction", 0)]);
        let mut kinds: BTreeMap<(String, &'static str), i64> = BTreeMap::new();
        let mut count = |key: &BindingKey| *depth.entry(queue_name(key)).or_default() += 1;
        {
            let waiting = self.waiting.0.lock();
            for (key, clusters) in waiting.iter() {
                count(key);
                let kind = key.kind();
                clusters.iter().for_each(|cluster| *kinds.entry((cluster.clone(), kind)).or_default() += 1);
            }
            self.queue.for_each_ready_or_running(|key| {
                if !waiting.contains_key(key) {
                    count(key);
                }
            });
        }
        let help = "Number of bindings queued or waiting for eviction";
        let mut metric = encoder.encode_descriptor("eviction_queue_depth", help, None, MetricType::Gauge)?;
        for (name, depth) in depth {
            metric.encode_family(&[("name", name)])?.encode_gauge(&depth)?;
        }
        let help = "Number of bindings waiting for eviction, by cluster and kind";
        let mut metric = encoder.encode_descriptor("eviction_kind_total", help, None, MetricType::Gauge)?;
        for ((cluster, kind), waiting) in &kinds {
            let labels = [("member_cluster", cluster.as_str()), ("resource_kind", *kind)];
            metric.encode_family(&labels)?.encode_gauge(waiting)?;
        }
        Ok(())
    }
}

/// Metrics from the status of Clusters.
struct ClusterCollector(Fleet);

impl fmt::Debug for ClusterCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterCollector")
    }
}

type ClusterMetric = fn(&Cluster) -> Option<f64>;

const CLUSTER_METRICS: [(&str, &str, ClusterMetric); 9] = [
    ("cluster_ready_state", "1 if the cluster is ready, 0 otherwise.", |cluster| {
        Some(f64::from(u8::from(is_ready(cluster))))
    }),
    ("cluster_node_number", "Number of nodes of the cluster.", |cluster| {
        cluster.status.node_summary.as_ref().map(|nodes| f64::from(nodes.total_num))
    }),
    ("cluster_ready_node_number", "Number of ready nodes of the cluster.", |cluster| {
        cluster.status.node_summary.as_ref().map(|nodes| f64::from(nodes.ready_num))
    }),
    ("cluster_memory_allocatable_bytes", "Allocatable memory of the cluster.", |cluster| {
        allocatable(cluster, "memory")
    }),
    ("cluster_cpu_allocatable_number", "Allocatable CPUs of the cluster.", |cluster| allocatable(cluster, "cpu")),
    ("cluster_pod_allocatable_number", "Allocatable pods of the cluster.", |cluster| allocatable(cluster, "pods")),
    ("cluster_memory_allocated_bytes", "Memory requested by pods of the cluster.", |cluster| {
        allocated_quantity(cluster, "memory")
    }),
    ("cluster_cpu_allocated_number", "CPUs requested by pods of the cluster.", |cluster| {
        allocated_quantity(cluster, "cpu")
    }),
    ("cluster_pod_allocated_number", "Number of scheduled pods of the cluster.", |cluster| {
        allocated_quantity(cluster, "pods")
    }),
];

fn allocatable(cluster: &Cluster, resource: &str) -> Option<f64> {
    quantity_of(&cluster.status.resource_summary.as_ref()?.allocatable, resource)
}

fn allocated_quantity(cluster: &Cluster, resource: &str) -> Option<f64> {
    quantity_of(&cluster.status.resource_summary.as_ref()?.allocated, resource)
}

/// Amount of a resource. `None` if the list is empty; zero if only this resource is missing.
fn quantity_of(list: &ResourceList, resource: &str) -> Option<f64> {
    let text = |quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| {
        crowsnest_apimachinery::quantity::Quantity::parse(&quantity.0).map_or(0.0, |quantity| quantity.as_f64())
    };
    (!list.is_empty()).then(|| list.get(resource).map_or(0.0, text))
}

impl Collector for ClusterCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let members = self.0.members();
        for (name, help, value_of) in CLUSTER_METRICS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for member in &members {
                if let Some(value) = value_of(member.cluster()) {
                    let labels = [("member_cluster", member.name().as_str())];
                    metric.encode_family(&labels)?.encode_gauge(&value)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    fn key(namespace: &str, name: &str) -> BindingKey {
        BindingKey::new(namespace, name)
    }

    fn clusters(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Text of a collector's metrics, without help lines.
    pub(crate) fn text(collector: impl Collector) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(collector));
        let mut text = String::new();
        encode_registry(&mut text, &registry).expect("text");
        text.lines().filter(|line| !line.starts_with("# HELP")).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn eviction_queue_is_counted_by_cluster() {
        let (queue, waiting) = (Queue::new("evictions"), Arc::new(WaitingEvictions::default()));
        for (namespace, name) in [("shop", "web"), ("shop", "db"), ("", "crd")] {
            queue.add(key(namespace, name));
        }
        // Waits for its eviction and is queued as well; it is counted once.
        waiting.put(&key("shop", "web"), clusters(&["member1", "member2"]));
        waiting.put(&key("shop", "cache"), clusters(&["member1"]));
        waiting.put(&key("", "evicted"), clusters(&["member1"]));
        waiting.put(&key("", "evicted"), clusters(&[]));
        let expected = "# TYPE eviction_queue_depth gauge\neviction_queue_depth{name=\"binding-eviction\"} 3\n\
            eviction_queue_depth{name=\"cluster-binding-eviction\"} 1\n# TYPE eviction_kind_total gauge\n\
            eviction_kind_total{member_cluster=\"member1\",resource_kind=\"ResourceBinding\"} 2\n\
            eviction_kind_total{member_cluster=\"member2\",resource_kind=\"ResourceBinding\"} 1\n";
        assert_eq!(text(EvictionQueue { queue, waiting }), expected);
    }

    #[test]
    fn cluster_metrics_reflect_the_status() {
        let cluster = |status: serde_json::Value| -> Cluster {
            let object = json!({"metadata": {"name": "m"}, "spec": {"syncMode": "Push"}, "status": status});
            serde_json::from_value(object).expect("a cluster")
        };
        let values = |cluster: &Cluster| CLUSTER_METRICS.map(|(_, _, value_of)| value_of(cluster));
        let unreported = cluster(json!({}));
        assert_eq!(values(&unreported), [Some(0.0), None, None, None, None, None, None, None, None]);
        let ready = json!([{"type": "Ready", "status": "True", "reason": "ClusterReady", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let complete = cluster(json!({
            "conditions": ready, "nodeSummary": {"totalNum": 3, "readyNum": 2},
            "resourceSummary": {"allocatable": {"cpu": "1500m", "memory": "1Ki", "pods": "110"}, "allocated": {"cpu": "1"}},
        }));
        let expected = [1.0, 3.0, 2.0, 1024.0, 1.5, 110.0, 0.0, 1.0, 0.0].map(Some);
        assert_eq!(values(&complete), expected);
    }
}
