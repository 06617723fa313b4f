//! Synthetic load: whole workloads written into a member's storage as if they had been running for a while, then churned.
//!
//! Objects are complete (owners, statuses, nodes), so the member's controllers find nothing to do until churn deletes pods; those
//! are replaced by the ordinary way: ReplicaSet controller, scheduler, kubelet. The same seed gives the same workloads.

pub mod catalog;
mod objects;

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apiserver::registry::Registry;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde::Deserialize;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::member::node;
use crate::member::shape::NodeShape;
use crate::member::world::World;

use self::objects::{Bulk, Placement};

/// Workloads written at the same time.
const AT_ONCE: usize = 8;

/// How much load.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Load {
    pub pods: usize,
    /// Pods replaced per second.
    #[serde(default)]
    pub churn: f64,
    #[serde(default)]
    pub seed: u64,
}

/// `pods=10000,churn=50/s,seed=1`: the text form of flags.
impl FromStr for Load {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::Invalid(format!("load {text:?}: expected pods=N[,churn=N/s][,seed=N]"));
        let mut load = Self { pods: 0, churn: 0.0, seed: 1 };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            match name {
                "pods" => load.pods = value.parse().map_err(|_| wrong())?,
                "seed" => load.seed = value.parse().map_err(|_| wrong())?,
                "churn" => load.churn = value.trim_end_matches("/s").parse().map_err(|_| wrong())?,
                _ => return Err(wrong()),
            }
        }
        if load.churn < 0.0 || !load.churn.is_finite() { Err(wrong()) } else { Ok(load) }
    }
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub namespaces: usize,
    pub workloads: usize,
    pub pods: usize,
    pub nodes: usize,
    pub took: Duration,
}

/// A load in place. Its churn ends with the member.
#[derive(Debug)]
pub struct Loaded {
    pub report: Report,
    churn: Option<JoinHandle<()>>,
}

impl Loaded {
    /// Ends the churn; the workloads stay.
    pub fn stop(&self) {
        if let Some(churn) = &self.churn {
            churn.abort();
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Writes the load and starts its churn.
pub async fn start(world: &Arc<World>, registry: &Arc<Registry>, load: Load) -> Result<Loaded> {
    let begun = std::time::Instant::now();
    let workloads = catalog::workloads(load.pods, load.seed);
    let shape = NodeShape::for_load(load.pods);
    let prefix = format!("{}-load{}", world.name, load.seed);
    node::add(world, &prefix, &shape, 1000 + usize::try_from(load.seed % 50).unwrap_or_default() * 1000).await?;
    let bulk = Bulk::new(world.clone(), registry.clone())?;
    let names: BTreeSet<String> = workloads.iter().map(|workload| workload.namespace.clone()).collect();
    for name in &names {
        bulk.namespace(name).await?;
    }
    let mut placement = Placement::new(shape.count);
    let (namespaces, count) = (names.len(), workloads.len());
    let placed: Vec<_> = workloads
        .into_iter()
        .map(|workload| {
            let nodes: Vec<usize> = (0..workload.replicas).map(|_| placement.next()).collect();
            (workload, nodes)
        })
        .collect();
    let (now, prefix) = (Timestamp::now(), prefix.as_str());
    let owners: Vec<Arc<str>> = futures::stream::iter(placed)
        .map(|(workload, nodes)| bulk.write(workload, prefix, nodes, now))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let report = Report { namespaces, workloads: count, pods: load.pods, nodes: shape.count, took: begun.elapsed() };
    tracing::info!(member = %world.name, ?report, "synthetic load is in place");
    let churn = (load.churn > 0.0 && !owners.is_empty()).then(|| {
        let world = world.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = world.stop.cancelled() => {}
                () = churn(&world, &owners, load.churn, load.seed) => {}
            }
        })
    });
    Ok(Loaded { report, churn })
}

/// Deletes `rate` pods a second, of random workloads.
async fn churn(world: &World, owners: &[Arc<str>], rate: f64, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(owner) = owners.choose(&mut random) else { return };
        let pods: Vec<_> = world.pods.owned(owner).into_iter().filter(|pod| pod.is_active()).collect();
        let Some(pod) = pods.choose(&mut random) else { continue };
        if let Err(error) = world.delete_pod(&pod.key, &pod.uid, None).await {
            tracing::debug!(pod = %pod.key, %error, "churn could not delete a pod");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("pods=10000,churn=50/s", Some((10_000, 50.0, 1)))]
    #[case("pods=5, seed=9", Some((5, 0.0, 9)))]
    #[case("pods=many", None)]
    #[case("churn=-1", None)]
    fn load_is_written_as_a_flag(#[case] text: &str, #[case] expected: Option<(usize, f64, u64)>) {
        let load = text.parse::<Load>().ok().map(|load| (load.pods, load.churn, load.seed));
        assert_eq!(load, expected);
    }
}
