//! `crowsnest bench definitions`: measures the memory of `crowsnest up` with many CustomResourceDefinitions in the
//! control plane and in every member, and the time to read their OpenAPI documents.

mod generate;

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use http::header::ACCEPT_ENCODING;
use http_body_util::BodyExt;
use kube::Client;
use serde_json::Value;

use self::generate::{PROJECTS, definition, group};
use super::cache::MeasurementPrinter;
use super::load::connect;
use super::scratch::ScratchArgs;
use super::workloads::create;

#[derive(Debug, Clone, Args)]
pub(super) struct DefinitionsArgs {
    /// Number of definitions in each API server
    #[arg(long, default_value_t = 280)]
    definitions: usize,
    /// Number of simulated members
    #[arg(long, default_value_t = 2)]
    members: usize,
    /// Time to wait before memory is measured, in seconds
    #[arg(long, default_value_t = 30)]
    settle: u64,
}

/// Maximum number of definitions that are created concurrently in a server.
const MAX_CONCURRENT_CREATES: usize = 8;
/// Number of reads of a document after the first one.
const REPEATED_READS: usize = 9;
/// Interval between checks that definitions are served.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of waiting until a server serves all definitions.
const SERVE_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) async fn run(args: &DefinitionsArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    ensure!(args.definitions > 0, "--definitions must be at least 1");
    let scratch = scratch.create()?;
    let fleet = super::start(scratch.path(), args.members).await?;
    let mut printer = MeasurementPrinter { out: std::io::stdout() };
    measure(args, scratch.path(), &fleet, &mut printer).await?;
    super::stop(fleet).await
}

async fn measure(
    args: &DefinitionsArgs,
    dir: &Path,
    fleet: &super::RunningProcess,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let mut servers = vec![connect(dir, "cp").await?];
    for number in 1..=args.members {
        servers.push(connect(dir, &format!("member{number}")).await?);
    }
    let definitions: Vec<Value> = (0..args.definitions).map(definition).collect();
    let text_bytes: usize = definitions.iter().map(|definition| definition.to_string().len()).sum();
    printer.print("definitions/text", text_bytes as f64 / 1e6, "MB")?;
    let megabytes = |kib: u64| kib as f64 * 1024.0 / 1e6;
    printer.print("definitions/rss-before", megabytes(super::resident_kib(&fleet.child)?), "MB")?;

    let start = Instant::now();
    for server in &servers {
        create_definitions(server, &definitions).await?;
    }
    for server in &servers {
        wait_until_served(server, args.definitions).await?;
    }
    printer.print("definitions/served", start.elapsed().as_secs_f64(), "s")?;
    tokio::time::sleep(Duration::from_secs(args.settle)).await;
    printer.print("definitions/rss", megabytes(super::resident_kib(&fleet.child)?), "MB")?;
    printer.print("definitions/peak-rss", megabytes(super::peak_kib(&fleet.child)?), "MB")?;

    let control_plane = servers.first().context("no server")?;
    measure_openapi(control_plane, &largest_document_path(&definitions), printer).await?;
    for server in &servers {
        for path in openapi_paths(args.definitions) {
            read(server, &path, "gzip").await?;
        }
        read(server, "/openapi/v2", "gzip").await?;
    }
    tokio::time::sleep(Duration::from_secs(args.settle)).await;
    printer.print("definitions/rss-after-reads", megabytes(super::resident_kib(&fleet.child)?), "MB")
}

/// Measures reads of the OpenAPI v3 index and of a document, compressed as Go clients request it: the first read and
/// later ones. Also reports the size of the document without compression.
async fn measure_openapi(
    server: &Client,
    path: &str,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let (index, _) = read(server, "/openapi/v3", "gzip").await?;
    printer.print_milliseconds("definitions/openapi-index", index)?;
    let (first, _) = read(server, path, "gzip").await?;
    printer.print_milliseconds("definitions/openapi-first", first)?;
    let mut times = Vec::with_capacity(REPEATED_READS);
    for _ in 0..REPEATED_READS {
        times.push(read(server, path, "gzip").await?.0);
    }
    printer.print_percentiles("definitions/openapi-again", times)?;
    let (_, bytes) = read(server, path, "identity").await?;
    printer.print("definitions/openapi-size", bytes as f64 / 1e6, "MB")
}

/// Reads a response to its end, and returns its duration and size in bytes.
async fn read(server: &Client, path: &str, encoding: &str) -> anyhow::Result<(Duration, usize)> {
    let start = Instant::now();
    let request = Request::get(path).header(ACCEPT_ENCODING, encoding).body(kube::client::Body::empty())?;
    let response = server.send(request).await?;
    ensure!(response.status().is_success(), "GET {path}: {}", response.status());
    let (mut body, mut bytes) = (response.into_body(), 0);
    while let Some(frame) = body.frame().await {
        bytes += frame?.data_ref().map_or(0, bytes::Bytes::len);
    }
    Ok((start.elapsed(), bytes))
}

async fn create_definitions(server: &Client, definitions: &[Value]) -> anyhow::Result<()> {
    const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let creates = definitions.iter().map(|definition| create(server, PATH, definition));
    stream::iter(creates).buffer_unordered(MAX_CONCURRENT_CREATES).try_collect::<()>().await
}

/// Number of API groups over which this many definitions are distributed.
fn group_count(definitions: usize) -> usize {
    PROJECTS.min(definitions)
}

/// Waits until the discovery documents of all groups list their definitions.
async fn wait_until_served(server: &Client, definitions: usize) -> anyhow::Result<()> {
    let polling = async {
        for project in 0..group_count(definitions) {
            let expected = (project..definitions).step_by(PROJECTS).count();
            loop {
                let request = Request::get(format!("/apis/{}/v1", group(project))).body(Vec::new())?;
                // The group is unknown until its first definition is served.
                let list: Value = server.request(request).await.unwrap_or_default();
                if list["resources"].as_array().is_some_and(|resources| resources.len() == expected) {
                    break;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(SERVE_TIMEOUT, polling).await.context("the definitions are not served")?
}

fn openapi_path(project: usize) -> String {
    format!("/openapi/v3/apis/{}/v1", group(project))
}

fn openapi_paths(definitions: usize) -> impl Iterator<Item = String> {
    (0..group_count(definitions)).map(openapi_path)
}

/// Path of the OpenAPI document of the group whose definitions have the longest text.
fn largest_document_path(definitions: &[Value]) -> String {
    let size = |project: &usize| -> usize {
        let project_definitions = definitions.iter().skip(*project).step_by(PROJECTS);
        project_definitions.map(|definition| definition.to_string().len()).sum()
    };
    openapi_path((0..group_count(definitions.len())).max_by_key(size).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_document_is_that_of_the_group_with_the_longest_text() {
        let mut definitions: Vec<Value> = (0..PROJECTS + 2).map(|_| Value::Null).collect();
        definitions[PROJECTS + 1] = "x".repeat(100).into();
        assert_eq!(largest_document_path(&definitions), openapi_path(1));
        assert_eq!(openapi_paths(3).count(), 3);
    }
}
