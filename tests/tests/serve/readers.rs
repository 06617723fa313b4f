//! Clients that read continuously through the address of the load balancer and retry once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::wait_for;
use http::Request;
use kube::Client;
use tokio::task::JoinHandle;

use crate::serve::test_env::{FLEET_CONFIG_MAPS, TestEnv};

/// Interval between reads.
const READ_INTERVAL: Duration = Duration::from_millis(100);

/// An object of the control plane, a list of members' objects, a search, and an object read from a member.
const READS: [&str; 4] = [
    "/apis/cluster.karmada.io/v1alpha1/clusters/m1",
    FLEET_CONFIG_MAPS,
    "/apis/search.crowsnest.io/v1alpha1/query?q=kind:configmap",
    "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api/v1/namespaces/default",
];

/// Results of the reads of one kind.
struct ReadResults {
    path: &'static str,
    /// Number of reads that succeeded, some of them after a retry.
    successes: usize,
    retries: usize,
    /// Errors of reads that failed twice.
    failures: Vec<String>,
}

/// Running clients: one task for each path in [`READS`].
pub struct Readers {
    is_stopped: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<ReadResults>>,
}

impl Readers {
    /// Waits until all reads succeed, and starts the tasks.
    pub fn start(env: &TestEnv) -> Result<Self> {
        for path in READS {
            let read = || Ok(env.runtime.block_on(get_text(&env.cp_client, path)).is_ok());
            wait_for(&format!("a response to {path}"), read)?;
        }
        let is_stopped = Arc::new(AtomicBool::new(false));
        let spawn = |path| env.runtime.spawn(read_repeatedly(env.cp_client.clone(), path, Arc::clone(&is_stopped)));
        Ok(Self { tasks: READS.map(spawn).into_iter().collect(), is_stopped })
    }

    /// Stops the tasks. Fails if a read failed twice in a row, or if there were few reads.
    pub fn stop(self, env: &TestEnv) -> Result<()> {
        self.is_stopped.store(true, Ordering::Relaxed);
        for task in self.tasks {
            let ReadResults { path, successes, retries, failures } =
                env.runtime.block_on(task).context("a reader panicked")?;
            eprintln!("{path}: {successes} reads, {retries} of them after a retry");
            ensure!(
                failures.is_empty(),
                "besides {successes} successful reads, {} reads of {path} failed twice: {failures:#?}",
                failures.len()
            );
            ensure!(successes > 20, "only {successes} successful reads of {path}");
        }
        Ok(())
    }
}

/// Sends a GET request and returns the body.
pub async fn get_text(client: &Client, path: &str) -> Result<String, kube::Error> {
    let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request_text(request).await
}

async fn read_repeatedly(client: Client, path: &'static str, is_stopped: Arc<AtomicBool>) -> ReadResults {
    let mut results = ReadResults { path, successes: 0, retries: 0, failures: Vec::new() };
    let mut interval = tokio::time::interval(READ_INTERVAL);
    while !is_stopped.load(Ordering::Relaxed) {
        interval.tick().await;
        let Err(first) = get_text(&client, path).await else {
            results.successes += 1;
            continue;
        };
        match get_text(&client, path).await {
            Ok(_) => {
                results.successes += 1;
                results.retries += 1;
            }
            Err(second) => results.failures.push(format!("{first}, then {second}")),
        }
    }
    results
}
