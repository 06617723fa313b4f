//! Clients that read continuously through the common address and retry once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::until;
use http::Request;
use kube::Client;
use tokio::task::JoinHandle;

use crate::serve::world::{MAPS_EVERYWHERE, World};

/// Interval between reads.
const READ_EVERY: Duration = Duration::from_millis(100);

/// An object of the control plane, a list of members' objects, a search, and an object read from a member.
const READS: [&str; 4] = [
    "/apis/cluster.karmada.io/v1alpha1/clusters/m1",
    MAPS_EVERYWHERE,
    "/apis/search.crowsnest.io/v1alpha1/query?q=kind:configmap",
    "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api/v1/namespaces/default",
];

/// Results of the reads of one kind.
struct Read {
    path: &'static str,
    answered: usize,
    /// Number of retries.
    again: usize,
    failures: Vec<String>,
}

pub struct Readers {
    ends: Arc<AtomicBool>,
    reading: Vec<JoinHandle<Read>>,
}

impl Readers {
    /// Starts after all reads have succeeded once.
    pub fn start(world: &World) -> Result<Self> {
        for path in READS {
            let read = || Ok(world.runtime.block_on(ask(&world.to_cp, path)).is_ok());
            until(&format!("{path} to be answered"), read)?;
        }
        let ends = Arc::new(AtomicBool::new(false));
        let read = |path| world.runtime.spawn(read(world.to_cp.clone(), path, Arc::clone(&ends)));
        Ok(Self { reading: READS.map(read).into_iter().collect(), ends })
    }

    /// Fails if a read failed twice in a row.
    pub fn stop(self, world: &World) -> Result<()> {
        self.ends.store(true, Ordering::Relaxed);
        for reading in self.reading {
            let Read { path, answered, again, failures } = world.runtime.block_on(reading).context("a reader died")?;
            eprintln!("{path}: {answered} answers, {again} of them after a second try");
            ensure!(
                failures.is_empty(),
                "{} of {answered} reads of {path} failed twice: {failures:#?}",
                failures.len()
            );
            ensure!(answered > 20, "only {answered} reads of {path}");
        }
        Ok(())
    }
}

pub async fn ask(client: &Client, path: &str) -> Result<String, kube::Error> {
    let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request_text(request).await
}

async fn read(client: Client, path: &'static str, ends: Arc<AtomicBool>) -> Read {
    let mut read = Read { path, answered: 0, again: 0, failures: Vec::new() };
    let mut interval = tokio::time::interval(READ_EVERY);
    while !ends.load(Ordering::Relaxed) {
        interval.tick().await;
        let Err(first) = ask(&client, path).await else {
            read.answered += 1;
            continue;
        };
        match ask(&client, path).await {
            Ok(_) => {
                read.answered += 1;
                read.again += 1;
            }
            Err(second) => read.failures.push(format!("{first}, then {second}")),
        }
    }
    read
}
