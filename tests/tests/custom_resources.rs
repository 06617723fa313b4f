//! Custom resources behave as on kube-apiserver: generated objects of many definitions are created, changed and deleted
//! by generated requests, and the responses of a real kube-apiserver and of the embedded control plane are compared.
//!
//! `.ci/ground system-tests 1.36 custom_resources` starts the real one. Without it, the requests are sent to the embedded
//! one alone, which must not return a server error. A failure names the seed that repeats it.
//!
//! | variable | meaning |
//! |---|---|
//! | `CROWSNEST_SEEDS` | number of seeds (default 300); each is a sequence of 18 requests |
//! | `CROWSNEST_SEED` | the only seed |
//! | `CROWSNEST_DEFINITIONS` | folder with more definitions in YAML files, such as those of a project |

mod compare;
mod definition;
mod generate;
mod generate_tests;
mod literals;
mod mutate;
mod random;
mod run;
mod sequence;
mod server;

use std::env;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Apiserver, Fleet, ground, repository_root};

use compare::KnownDeviations;
use definition::{Definition, read_definitions};
use run::Run;
use server::Server;

const KNOWN: &str = include_str!("custom_resources/differences.yaml");
/// Seeds of the test. Each uses one of the definitions in turn.
const SEEDS: u64 = 300;
/// Minimum share of accepted requests in many sequences, in percent. Refused requests test little.
const MIN_ACCEPTED_PERCENT: u64 = 30;
/// Measured share that is accepted, and its standard deviation between sequences, in percent.
const MEAN_ACCEPTED_PERCENT: u64 = 38;
const ACCEPTED_DEVIATION_PERCENT: u64 = 13;
/// Maximum number of differing sequences that are shown.
const MAX_SHOWN_SEQUENCES: usize = 20;

fn number_from_env(variable: &str) -> Result<Option<u64>> {
    let Ok(text) = env::var(variable) else { return Ok(None) };
    text.parse().map(Some).with_context(|| format!("{variable}={text} is not a number"))
}

/// The seeds to run.
fn seeds() -> Result<Range<u64>> {
    if let Some(seed) = number_from_env("CROWSNEST_SEED")? {
        return Ok(seed..seed + 1);
    }
    Ok(0..number_from_env("CROWSNEST_SEEDS")?.unwrap_or(SEEDS))
}

/// Minimum share of accepted requests in this number of sequences, in percent. The mean of few sequences varies, so it may
/// be four of its standard deviations below the measured share. Returns 0 for fewer than four sequences.
fn min_accepted_percent(sequences: u64) -> u64 {
    let deviation = 4 * ACCEPTED_DEVIATION_PERCENT / sequences.isqrt().max(1);
    MIN_ACCEPTED_PERCENT.min(MEAN_ACCEPTED_PERCENT.saturating_sub(deviation))
}

/// Folder of the test's own definitions.
fn own_folder() -> PathBuf {
    repository_root().join("tests/tests/custom_resources/definitions")
}

/// The definitions of the test, and those of `CROWSNEST_DEFINITIONS`.
fn definitions() -> Result<Vec<Definition>> {
    let mut definitions = read_definitions(&own_folder())?;
    if let Some(folder) = env::var_os("CROWSNEST_DEFINITIONS") {
        definitions.extend(read_definitions(Path::new(&folder))?);
    }
    Ok(definitions)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generated_requests_have_the_responses_of_a_kube_apiserver() -> Result<()> {
    crate::use_ring();
    let dir = tempfile::tempdir()?;
    let (data, real_data) = (dir.path().join("up"), dir.path().join("real"));
    let fleet = tokio::task::spawn_blocking(move || Fleet::start(&data, &["--no-members"])).await??;
    let real_apiserver = match ground::uses_real_clusters() {
        true => Some(tokio::task::spawn_blocking(move || Apiserver::start(&real_data)).await??),
        false => None,
    };
    let real = match &real_apiserver {
        Some(real) => Some(Server::connect("kube-apiserver", &real.kubeconfig).await?),
        None => None,
    };
    let ours = Server::connect("crowsnest", &fleet.kubeconfig("cp")).await?;
    let (definitions, known): (_, KnownDeviations) = (definitions()?, serde_saphyr::from_str(KNOWN)?);
    let seeds = seeds()?;
    let min_percent = usize::try_from(min_accepted_percent(seeds.end - seeds.start))?;
    let run = Run { real, ours, definitions: &definitions, known: &known };
    let report = run.execute(seeds).await.with_context(|| fleet.log())?;
    let shown = report.differing.iter().take(MAX_SHOWN_SEQUENCES).map(String::as_str).collect::<Vec<_>>().join("\n");
    let count = report.differing.len();
    ensure!(report.differing.is_empty(), "{count} sequences differ, of which the first are:\n{shown}");
    let (accepted, requests) = (report.accepted, report.requests);
    ensure!(requests > 0 && accepted * 100 >= requests * min_percent, "only {accepted} of {requests} were accepted");
    ensure!(fleet.stop()?.success());
    Ok(())
}
