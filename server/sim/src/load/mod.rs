//! Synthetic load: workloads written to a member's storage as if they had been running for some time, followed by
//! churn.
//!
//! Objects are complete (owners, statuses, nodes), so the member's controllers have nothing to do until churn
//! changes something; replacements are created by the ReplicaSet controller, scheduler and kubelet. Equal seeds
//! yield equal workloads, so a repeated load only adds what is missing.

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

use self::bulk::{Bulk, Placed, TargetNode};
use self::catalog::{State, Workload};
use self::churn::{Churn, Target};
use crate::error::{Error, Result};
use crate::member::node;
use crate::member::podlife::host_ip;
use crate::member::shape::NodeShape;
use crate::member::store::Key;
use crate::member::world::World;

/// Pods per batch of writes.
const BATCH: usize = 256;
/// Batches in progress: one is prepared while others are committed.
const AT_ONCE: usize = 3;
/// Existing workloads scaled up concurrently.
const RAISED_AT_ONCE: usize = 16;

const MOST_PODS: usize = 5_000_000;
const MOST_CHURN: f64 = 10_000.0;
const MOST_BYTES: usize = 256 << 10;

/// Size of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    pub pods: usize,
    /// Changes per second.
    #[serde(default)]
    pub churn: f64,
    /// Minimum size of a pod as JSON in bytes; 0 adds no padding.
    #[serde(default)]
    pub size: usize,
    #[serde(default = "first_seed")]
    pub seed: u64,
}

fn first_seed() -> u64 {
    1
}

impl Load {
    pub fn new(pods: usize) -> Self {
        Self { pods, churn: 0.0, size: 0, seed: first_seed() }
    }

    /// The share of one member when `members` share the load.
    pub fn share(&self, number: usize, members: usize) -> Self {
        Self {
            pods: self.pods / members + usize::from(number < self.pods % members),
            churn: self.churn / members as f64,
            seed: self.seed.wrapping_add(number as u64),
            ..self.clone()
        }
    }

    /// Rejects sizes that no member can handle.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=MOST_PODS).contains(&self.pods) {
            return Err(format!("pods={} is not between 1 and {MOST_PODS}", self.pods));
        }
        if !(0.0..=MOST_CHURN).contains(&self.churn) {
            return Err(format!("churn={}/s is not between 0/s and {MOST_CHURN}/s", self.churn));
        }
        if self.size > MOST_BYTES {
            return Err(format!("size={} is more than {MOST_BYTES} bytes", self.size));
        }
        Ok(())
    }

    fn read(text: &str) -> Result<Self, String> {
        let mut load = Self::new(0);
        let mut given = BTreeSet::new();
        for part in text.split(',').map(str::trim) {
            let (name, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is no NAME=VALUE"))?;
            let wrong = |wanted: &str| format!("{name}={value}: {value:?} is no {wanted}");
            if !given.insert(name) {
                return Err(format!("{name} is given twice"));
            }
            match name {
                "pods" => load.pods = value.parse().map_err(|_| wrong("number of pods"))?,
                "seed" => load.seed = value.parse().map_err(|_| wrong("number"))?,
                "churn" => {
                    let rate = value.strip_suffix("/s").unwrap_or(value);
                    load.churn = rate.parse().map_err(|_| wrong("number of changes per second"))?;
                }
                "size" => {
                    let bytes = Quantity::parse(value).map_err(|_| wrong("number of bytes"))?.value();
                    load.size = usize::try_from(bytes).map_err(|_| wrong("number of bytes"))?;
                }
                _ => return Err(format!("there is no {name:?}")),
            }
        }
        if !given.contains("pods") {
            return Err("pods is missing".into());
        }
        load.check().map(|()| load)
    }
}

/// Parses the text form of flags: `pods=10000,churn=50/s,size=9500,seed=1`.
impl FromStr for Load {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::read(text).map_err(|why| {
            Error::Invalid(format!(
                "{why}; expected pods=N[,churn=N/s][,size=BYTES][,seed=N], as pods=10000,churn=50/s"
            ))
        })
    }
}

/// Objects of a load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub namespaces: usize,
    pub workloads: usize,
    pub pods: usize,
    /// Pods that were written now; the others existed before.
    pub written: usize,
    /// Pods that become ready; the others crash, fail to pull their image or fail their probes.
    pub healthy: usize,
    pub nodes: usize,
    #[serde(with = "milliseconds")]
    pub took: Duration,
}

mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(took: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(took.as_millis()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// A running load. Its churn ends with the member.
#[derive(Debug)]
pub struct Loaded {
    pub seed: u64,
    pub report: Report,
    made: Arc<AtomicU64>,
    quit: CancellationToken,
    churn: Option<JoinHandle<()>>,
}

impl Loaded {
    /// Number of changes by churn.
    pub fn changes(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Stops the churn after its current changes.
    pub async fn stop(mut self) -> Result<(), tokio::task::JoinError> {
        self.quit.cancel();
        match self.churn.take() {
            Some(churn) => churn.await,
            None => Ok(()),
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.quit.cancel();
    }
}

/// Creates the missing objects of a load and starts its churn.
pub async fn start(world: &Arc<World>, registry: &Arc<Registry>, load: Load) -> Result<Loaded> {
    load.check().map_err(Error::Invalid)?;
    let begun = std::time::Instant::now();
    let workloads = catalog::workloads(load.pods, load.seed);
    let places = places(world, &load).await?;
    let nodes = places.len();
    let bulk = Bulk::new(world.clone(), registry.clone(), places, load.size, Timestamp::now())?;
    let namespaces: BTreeSet<String> = workloads.iter().map(|workload| workload.namespace.clone()).collect();
    bulk.namespaces(&namespaces).await?;

    let targets: Vec<Target> = workloads.iter().map(target).collect();
    let healthy = workloads.iter().filter(|workload| workload.state == State::Healthy);
    let healthy = healthy.map(|workload| workload.replicas).sum();
    let (missing, short) = missing(world, workloads, nodes);
    let written = missing.iter().map(|placed| placed.places.len()).sum();
    futures::stream::iter(batches(missing))
        .map(|batch| bulk.write(batch))
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    raise(world, short).await?;

    let report = Report {
        namespaces: namespaces.len(),
        workloads: targets.len(),
        pods: load.pods,
        written,
        healthy,
        nodes,
        took: begun.elapsed(),
    };
    tracing::info!(member = %world.name, ?report, "created a synthetic load");
    let (made, quit) = (Arc::new(AtomicU64::new(0)), world.stop.child_token());
    let churn = (load.churn > 0.0).then(|| {
        let churn = Churn::new(world.clone(), targets, made.clone());
        world.tasks.passing().spawn(churn.run(load.churn, load.seed, quit.clone()))
    });
    Ok(Loaded { seed: load.seed, report, made, quit, churn })
}

/// The nodes of the load; missing ones are created.
async fn places(world: &Arc<World>, load: &Load) -> Result<Vec<TargetNode>> {
    let shape = NodeShape::for_load(load.pods);
    let prefix = format!("{}-load{}", world.name, load.seed);
    // Keeps the address ranges of different loads apart.
    let first = 1000 + usize::try_from(load.seed % 50).unwrap_or_default() * 1000;
    node::add(world, &prefix, &shape, first).await?;
    let target_node = |number: usize| -> Result<TargetNode> {
        let name = format!("{prefix}-{number}");
        let node = world.nodes.get(&Key::new("", &name));
        let node = node.ok_or_else(|| Error::Invalid(format!("node {name} of the load was deleted")))?;
        let cidr = node.spec.as_ref().and_then(|spec| spec.pod_cidr.clone()).unwrap_or_default();
        Ok(TargetNode { node: world.interner.text(&name), host: host_ip(&node).to_owned(), cidr })
    };
    (1..=shape.count).map(target_node).collect()
}

fn target(workload: &Workload) -> Target {
    Target {
        deployment: Key::new(&workload.namespace, &workload.name),
        replicas: i32::try_from(workload.replicas).unwrap_or(i32::MAX),
    }
}

/// The missing workloads with nodes for their pods, and the existing ones with too few replicas.
fn missing(world: &World, workloads: Vec<Workload>, nodes: usize) -> (Vec<Placed>, Vec<Target>) {
    let (mut missing, mut short, mut next) = (Vec::new(), Vec::new(), 0);
    for workload in workloads {
        let places = (next..next + workload.replicas).map(|number| number % nodes.max(1)).collect();
        next += workload.replicas;
        let target = target(&workload);
        match world.deployments.get(&target.deployment) {
            None => missing.push(Placed { workload, places }),
            Some(known) if known.spec.replicas.unwrap_or(1) < target.replicas => short.push(target),
            Some(_) => {}
        }
    }
    (missing, short)
}

fn batches(missing: Vec<Placed>) -> Vec<Vec<Placed>> {
    let mut batches = Vec::new();
    let (mut batch, mut pods) = (Vec::new(), 0);
    for placed in missing {
        pods += placed.places.len();
        batch.push(placed);
        if pods >= BATCH {
            batches.push(std::mem::take(&mut batch));
            pods = 0;
        }
    }
    batches.push(batch);
    batches
}

/// Scales up workloads that churn has scaled down or that are now larger.
async fn raise(world: &World, short: Vec<Target>) -> Result<()> {
    futures::stream::iter(short)
        .map(|target| async move {
            let patch = json!({"spec": {"replicas": target.replicas}});
            world.patch(&world.deployments, &target.deployment, None, &patch).await.map(|_| ())
        })
        .buffer_unordered(RAISED_AT_ONCE)
        .try_collect::<()>()
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("pods=10000,churn=50/s", Load { churn: 50.0, ..Load::new(10_000) })]
    #[case("pods=5, seed=9", Load { seed: 9, ..Load::new(5) })]
    #[case("churn=0.5,pods=1,size=9.5k", Load { churn: 0.5, size: 9500, ..Load::new(1) })]
    fn loads_are_parsed_from_flags(#[case] text: &str, #[case] expected: Load) {
        assert_eq!(text.parse::<Load>().unwrap(), expected);
    }

    #[rstest::rstest]
    #[case("", "\"\" is no NAME=VALUE")]
    #[case("10000", "\"10000\" is no NAME=VALUE")]
    #[case("pods=many", "pods=many: \"many\" is no number of pods")]
    #[case("pods=0", "pods=0 is not between 1 and 5000000")]
    #[case("churn=5", "pods is missing")]
    #[case("pods=1,churn=-1", "churn=-1/s is not between 0/s and 10000/s")]
    #[case("pods=1,churn=50/m", "churn=50/m: \"50/m\" is no number of changes per second")]
    #[case("pods=1,churn=NaN", "churn=NaN/s is not between 0/s and 10000/s")]
    #[case("pods=1,pods=2", "pods is given twice")]
    #[case("pods=1,size=big", "size=big: \"big\" is no number of bytes")]
    #[case("pods=1,size=1Gi", "size=1073741824 is more than 262144 bytes")]
    #[case("pods=1,speed=3", "there is no \"speed\"")]
    fn errors_explain_valid_loads(#[case] text: &str, #[case] why: &str) {
        let error = text.parse::<Load>().unwrap_err().to_string();
        let form = "expected pods=N[,churn=N/s][,size=BYTES][,seed=N], as pods=10000,churn=50/s";
        assert_eq!(error, format!("{why}; {form}"));
    }
}
