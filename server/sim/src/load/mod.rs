//! Synthetic load: workloads written to a member's storage as if they had been running for some time, followed by
//! churn.
//!
//! Objects are complete (owners, statuses, nodes), so the member's controllers have nothing to do until churn
//! changes something. Replacements are created by the ReplicaSet controller, scheduler and kubelet. Equal seeds
//! yield equal workloads, so a repeated load only adds missing objects.

mod bulk;
pub mod catalog;
mod churn;
mod objects;

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_registry::Registry;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::bulk::{BulkWriter, PlacedWorkload, TargetNode};
use self::catalog::{PodHealth, Workload};
use self::churn::{Churn, LoadWorkload};
use crate::error::{Error, Result};
use crate::member::context::MemberContext;
use crate::member::node;
use crate::member::pod_lifecycle::host_ip;
use crate::member::shape::NodeShape;
use crate::member::store::Key;

/// Minimum number of pods of a batch of writes.
const BATCH_PODS: usize = 256;
/// Maximum number of concurrent batches: one is prepared while others are committed.
const MAX_CONCURRENT_BATCHES: usize = 3;
/// Maximum number of existing workloads that are scaled up concurrently.
const MAX_CONCURRENT_SCALE_UPS: usize = 16;

const MAX_PODS: usize = 5_000_000;
const MAX_CHURN_PER_SECOND: f64 = 10_000.0;
const MAX_POD_BYTES: usize = 256 << 10;

/// Size of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Number of pods.
    pub pods: usize,
    /// Changes per second.
    #[serde(default, rename = "churn")]
    pub churn_per_second: f64,
    /// Minimum size of a pod as JSON in bytes; 0 adds no padding.
    #[serde(default, rename = "size")]
    pub min_pod_bytes: usize,
    /// Seed of the workloads and the churn.
    #[serde(default = "default_seed")]
    pub seed: u64,
}

fn default_seed() -> u64 {
    1
}

impl Load {
    /// A load without churn and padding.
    pub fn new(pods: usize) -> Self {
        Self { pods, churn_per_second: 0.0, min_pod_bytes: 0, seed: default_seed() }
    }

    /// Part of the load for the `number`-th of `members` members, counted from 0.
    pub fn share(&self, number: usize, members: usize) -> Self {
        Self {
            pods: self.pods / members + usize::from(number < self.pods % members),
            churn_per_second: self.churn_per_second / members as f64,
            seed: self.seed.wrapping_add(number as u64),
            ..self.clone()
        }
    }

    /// Fails if a value is out of range.
    pub fn validate(&self) -> Result<(), String> {
        if !(1..=MAX_PODS).contains(&self.pods) {
            return Err(format!("pods={} is not between 1 and {MAX_PODS}", self.pods));
        }
        if !(0.0..=MAX_CHURN_PER_SECOND).contains(&self.churn_per_second) {
            return Err(format!("churn={}/s is not between 0/s and {MAX_CHURN_PER_SECOND}/s", self.churn_per_second));
        }
        if self.min_pod_bytes > MAX_POD_BYTES {
            return Err(format!("size={} is more than {MAX_POD_BYTES} bytes", self.min_pod_bytes));
        }
        Ok(())
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut load = Self::new(0);
        let mut names = BTreeSet::new();
        for part in text.split(',').map(str::trim) {
            let (name, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not NAME=VALUE"))?;
            let invalid = |expected: &str| format!("{name}={value}: {value:?} is not a {expected}");
            if !names.insert(name) {
                return Err(format!("{name} is set more than once"));
            }
            match name {
                "pods" => load.pods = value.parse().map_err(|_| invalid("number of pods"))?,
                "seed" => load.seed = value.parse().map_err(|_| invalid("number"))?,
                "churn" => {
                    let rate = value.strip_suffix("/s").unwrap_or(value);
                    load.churn_per_second = rate.parse().map_err(|_| invalid("number of changes per second"))?;
                }
                "size" => {
                    let bytes = Quantity::parse(value).map_err(|_| invalid("number of bytes"))?.value();
                    load.min_pod_bytes = usize::try_from(bytes).map_err(|_| invalid("number of bytes"))?;
                }
                _ => return Err(format!("unknown field {name:?}")),
            }
        }
        if !names.contains("pods") {
            return Err("pods is missing".into());
        }
        load.validate().map(|()| load)
    }
}

/// Parses the text form of flags: `pods=10000,churn=50/s,size=9500,seed=1`.
impl FromStr for Load {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text).map_err(|reason| {
            Error::Invalid(format!(
                "{reason}; expected pods=N[,churn=N/s][,size=BYTES][,seed=N], such as pods=10000,churn=50/s"
            ))
        })
    }
}

/// Result of a load: numbers of its objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadReport {
    pub namespaces: usize,
    pub workloads: usize,
    pub pods: usize,
    /// Number of pods that this load created; the others existed before.
    pub written: usize,
    /// Number of pods that become ready; the others crash, fail to pull their image or fail their probes.
    pub healthy: usize,
    pub nodes: usize,
    /// Time that the writes took; serialized in milliseconds.
    #[serde(rename = "took", with = "milliseconds")]
    pub duration: Duration,
}

mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

/// A created load with its running churn, which ends with the member.
#[derive(Debug)]
pub struct RunningLoad {
    pub seed: u64,
    pub report: LoadReport,
    changes: Arc<AtomicU64>,
    stop: CancellationToken,
    churn: Option<JoinHandle<()>>,
}

impl RunningLoad {
    /// Number of changes by churn.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Stops the churn after its current changes.
    pub async fn stop(mut self) -> Result<(), tokio::task::JoinError> {
        self.stop.cancel();
        match self.churn.take() {
            Some(churn) => churn.await,
            None => Ok(()),
        }
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Creates the missing objects of a load and starts its churn.
pub async fn start(context: &Arc<MemberContext>, registry: &Arc<Registry>, load: Load) -> Result<RunningLoad> {
    load.validate().map_err(Error::Invalid)?;
    let start = std::time::Instant::now();
    let workloads = catalog::generate_workloads(load.pods, load.seed);
    let nodes = ensure_nodes(context, &load).await?;
    let node_count = nodes.len();
    let writer = BulkWriter::new(context.clone(), registry.clone(), nodes, load.min_pod_bytes, Timestamp::now())?;
    let namespaces: BTreeSet<String> = workloads.iter().map(|workload| workload.namespace.clone()).collect();
    writer.create_namespaces(&namespaces).await?;

    let load_workloads: Vec<LoadWorkload> = workloads.iter().map(to_load_workload).collect();
    let healthy = workloads.iter().filter(|workload| workload.health == PodHealth::Healthy);
    let healthy = healthy.map(|workload| workload.replicas).sum();
    let (missing, undersized) = find_missing(context, workloads, node_count);
    let written = missing.iter().map(|placed| placed.node_indexes.len()).sum();
    futures::stream::iter(split_into_batches(missing))
        .map(|batch| writer.write_workloads(batch))
        .buffer_unordered(MAX_CONCURRENT_BATCHES)
        .try_collect::<()>()
        .await?;
    scale_up(context, undersized).await?;

    let report = LoadReport {
        namespaces: namespaces.len(),
        workloads: load_workloads.len(),
        pods: load.pods,
        written,
        healthy,
        nodes: node_count,
        duration: start.elapsed(),
    };
    tracing::info!(member = %context.name, ?report, "created a synthetic load");
    let (changes, stop) = (Arc::new(AtomicU64::new(0)), context.stop.child_token());
    let churn = (load.churn_per_second > 0.0).then(|| {
        let churn = Churn::new(context.clone(), load_workloads, changes.clone());
        context.tasks.tracker().spawn(churn.run(load.churn_per_second, load.seed, stop.clone()))
    });
    Ok(RunningLoad { seed: load.seed, report, changes, stop, churn })
}

/// Returns the nodes of the load and creates missing ones.
async fn ensure_nodes(context: &Arc<MemberContext>, load: &Load) -> Result<Vec<TargetNode>> {
    let shape = NodeShape::for_load(load.pods);
    let prefix = format!("{}-load{}", context.name, load.seed);
    // Keeps the address ranges of different loads apart.
    let first = 1000 + usize::try_from(load.seed % 50).unwrap_or_default() * 1000;
    node::ensure_nodes(context, &prefix, &shape, first).await?;
    let target_node = |number: usize| -> Result<TargetNode> {
        let name = format!("{prefix}-{number}");
        let node = context.nodes.get(&Key::new("", &name));
        let node = node.ok_or_else(|| Error::Invalid(format!("node {name} of the load was deleted")))?;
        let pod_cidr = node.spec.as_ref().and_then(|spec| spec.pod_cidr.clone()).unwrap_or_default();
        Ok(TargetNode { name: context.interner.intern_text(&name), host_ip: host_ip(&node).to_owned(), pod_cidr })
    };
    (1..=shape.count).map(target_node).collect()
}

fn to_load_workload(workload: &Workload) -> LoadWorkload {
    LoadWorkload {
        deployment: Key::new(&workload.namespace, &workload.name),
        replicas: i32::try_from(workload.replicas).unwrap_or(i32::MAX),
    }
}

/// The missing workloads with nodes for their pods, and the existing ones with too few replicas.
fn find_missing(
    context: &MemberContext,
    workloads: Vec<Workload>,
    nodes: usize,
) -> (Vec<PlacedWorkload>, Vec<LoadWorkload>) {
    let (mut missing, mut undersized, mut next_pod) = (Vec::new(), Vec::new(), 0);
    for workload in workloads {
        let node_indexes = (next_pod..next_pod + workload.replicas).map(|number| number % nodes.max(1)).collect();
        next_pod += workload.replicas;
        let desired = to_load_workload(&workload);
        match context.deployments.get(&desired.deployment) {
            None => missing.push(PlacedWorkload { workload, node_indexes }),
            Some(existing) if existing.spec.replicas.unwrap_or(1) < desired.replicas => undersized.push(desired),
            Some(_) => {}
        }
    }
    (missing, undersized)
}

fn split_into_batches(missing: Vec<PlacedWorkload>) -> Vec<Vec<PlacedWorkload>> {
    let mut batches = Vec::new();
    let (mut batch, mut pods) = (Vec::new(), 0);
    for placed in missing {
        pods += placed.node_indexes.len();
        batch.push(placed);
        if pods >= BATCH_PODS {
            batches.push(std::mem::take(&mut batch));
            pods = 0;
        }
    }
    batches.push(batch);
    batches
}

/// Scales up workloads that churn has scaled down or that are now larger.
async fn scale_up(context: &MemberContext, undersized: Vec<LoadWorkload>) -> Result<()> {
    futures::stream::iter(undersized)
        .map(|workload| async move {
            let patch = json!({"spec": {"replicas": workload.replicas}});
            context.patch(&context.deployments, &workload.deployment, None, &patch).await.map(|_| ())
        })
        .buffer_unordered(MAX_CONCURRENT_SCALE_UPS)
        .try_collect::<()>()
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("pods=10000,churn=50/s", Load { churn_per_second: 50.0, ..Load::new(10_000) })]
    #[case("pods=5, seed=9", Load { seed: 9, ..Load::new(5) })]
    #[case("churn=0.5,pods=1,size=9.5k", Load { churn_per_second: 0.5, min_pod_bytes: 9500, ..Load::new(1) })]
    fn loads_are_parsed_from_flags(#[case] text: &str, #[case] expected: Load) {
        assert_eq!(text.parse::<Load>().unwrap(), expected);
    }

    #[rstest::rstest]
    #[case("", "\"\" is not NAME=VALUE")]
    #[case("10000", "\"10000\" is not NAME=VALUE")]
    #[case("pods=many", "pods=many: \"many\" is not a number of pods")]
    #[case("pods=0", "pods=0 is not between 1 and 5000000")]
    #[case("churn=5", "pods is missing")]
    #[case("pods=1,churn=-1", "churn=-1/s is not between 0/s and 10000/s")]
    #[case("pods=1,churn=50/m", "churn=50/m: \"50/m\" is not a number of changes per second")]
    #[case("pods=1,churn=NaN", "churn=NaN/s is not between 0/s and 10000/s")]
    #[case("pods=1,pods=2", "pods is set more than once")]
    #[case("pods=1,size=big", "size=big: \"big\" is not a number of bytes")]
    #[case("pods=1,size=1Gi", "size=1073741824 is more than 262144 bytes")]
    #[case("pods=1,speed=3", "unknown field \"speed\"")]
    fn errors_name_the_reason_and_the_valid_form(#[case] text: &str, #[case] reason: &str) {
        let error = text.parse::<Load>().unwrap_err().to_string();
        let form = "expected pods=N[,churn=N/s][,size=BYTES][,seed=N], such as pods=10000,churn=50/s";
        assert_eq!(error, format!("{reason}; {form}"));
    }
}
