//! `crowsnest index`: shows the state of the full-text search index, verifies it against the cache, and rebuilds it.
//! The running server does the work.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use serde_json::Value;

use crate::connection::ConnectionArgs;
use crate::output::terminal;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest index status",
    "crowsnest index verify --samples 1000",
    "crowsnest index rebuild --wait",
])]
pub struct IndexArgs {
    #[command(subcommand)]
    command: IndexCommand,
}

#[derive(Debug, Subcommand)]
enum IndexCommand {
    /// Show the backend, its backlog and rejected documents
    Status(CommonArgs),
    /// Compare the index with the cache, by counts per cluster and kind and by samples; exits with 1 if they differ
    Verify {
        /// Number of objects to compare field by field
        #[arg(long, default_value_t = 200, value_name = "N")]
        samples: usize,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Build a new index while the current one keeps serving (OpenSearch and Elasticsearch)
    Rebuild {
        /// Wait until the new index serves searches
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        common: CommonArgs,
    },
}

#[derive(Debug, Args)]
struct CommonArgs {
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

const INDEX_PATH: &str = "/apis/search.crowsnest.io/v1alpha1/index";
/// Interval between checks of a rebuild.
const REBUILD_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time without progress after which the command stops waiting; the server continues the rebuild.
const REBUILD_STALL_TIMEOUT: Duration = Duration::from_secs(300);

pub(crate) async fn run(args: IndexArgs) -> anyhow::Result<ExitCode> {
    let mut out = terminal::stdout();
    match args.command {
        IndexCommand::Status(common) => {
            let index = request_index(&common.connection.client().await?, Method::GET, INDEX_PATH).await?;
            print(&mut out, &index, common.output)?;
            Ok(if index["trouble"].is_null() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        IndexCommand::Verify { samples, common } => {
            let path = format!("{INDEX_PATH}?verify={samples}");
            let index = request_index(&common.connection.client().await?, Method::GET, &path).await?;
            print(&mut out, &index, common.output)?;
            Ok(if is_equal(&index["verification"]) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        IndexCommand::Rebuild { wait, common } => {
            let client = common.connection.client().await?;
            let before = request_index(&client, Method::GET, INDEX_PATH).await?;
            let mut index = request_index(&client, Method::POST, INDEX_PATH).await?;
            if wait {
                index = wait_for_rebuild(&client, &before["writer"]["index"]).await?;
            }
            print(&mut out, &index, common.output)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn request_index(client: &kube::Client, method: Method, path: &str) -> anyhow::Result<Value> {
    let request = http::Request::builder().method(method).uri(path).body(Vec::new())?;
    client.request(request).await.context("cannot query the search index")
}

/// Waits until an index other than `before` serves searches. Any replica may have built it.
async fn wait_for_rebuild(client: &kube::Client, before: &Value) -> anyhow::Result<Value> {
    let (mut position, mut moved_at) = (0, Instant::now());
    loop {
        let index = request_index(client, Method::GET, INDEX_PATH).await?;
        let writer = &index["writer"];
        if writer["index"] != *before && (writer["state"] == "Following" || writer["state"] == "Standby") {
            return Ok(index);
        }
        let now = number(writer, "position");
        if now != position {
            (position, moved_at) = (now, Instant::now());
        }
        if moved_at.elapsed() > REBUILD_STALL_TIMEOUT {
            let error = index["trouble"].as_str().unwrap_or("unknown reason");
            bail!(
                "the rebuild made no progress for {} s: {error}; see `crowsnest index status`",
                REBUILD_STALL_TIMEOUT.as_secs()
            );
        }
        tokio::time::sleep(REBUILD_POLL_INTERVAL).await;
    }
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_default()
}

fn is_equal(verification: &Value) -> bool {
    let is_empty = |field: &str| verification[field].as_array().is_some_and(Vec::is_empty);
    ["counts", "objects", "notices"].into_iter().all(is_empty)
        && ["more", "behind"].into_iter().all(|field| number(verification, field) == 0)
}

fn print(out: &mut impl Write, index: &Value, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        writeln!(out, "{index:#}")?;
        return Ok(());
    }
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let writer = &index["writer"];
    write!(out, "{}: {} changes behind", text(index, "backend"), number(index, "behind"))?;
    if !writer.is_null() {
        write!(out, ", {}, index {}", text(writer, "state").to_lowercase(), text(writer, "index"))?;
    }
    if let Some(bytes) = index["bytes"].as_u64() {
        write!(out, ", {} MiB", bytes >> 20)?;
    }
    writeln!(out)?;
    if !writer.is_null() {
        let fields = ["written", "retried", "refused", "rebuilds"];
        let count_texts: Vec<String> =
            fields.iter().map(|field| format!("{} {field}", number(writer, field))).collect();
        writeln!(out, "since the start: {}", count_texts.join(", "))?;
    }
    if let Some(error) = index["trouble"].as_str() {
        writeln!(out, "cannot write to the index: {error}")?;
    }
    for refused in writer["refusedDocuments"].as_array().into_iter().flatten() {
        writeln!(out, "rejected: object {}: {}", text(refused, "id"), text(refused, "reason"))?;
    }
    print_verification(out, &index["verification"])
}

fn print_verification(out: &mut impl Write, found: &Value) -> anyhow::Result<()> {
    if found.is_null() {
        return Ok(());
    }
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let list = |field: &str| found[field].as_array().into_iter().flatten();
    writeln!(
        out,
        "{} objects in the cache, {} in the index; {} compared",
        number(found, "stored"),
        number(found, "indexed"),
        number(found, "samples")
    )?;
    for item in list("counts") {
        let (stored, indexed) = (number(item, "stored"), number(item, "indexed"));
        match text(item, "cluster").as_str() {
            "" => writeln!(out, "differs: {indexed} objects of clusters missing in the cache")?,
            cluster => writeln!(
                out,
                "differs: {cluster} {}: {stored} in the cache, {indexed} in the index",
                text(item, "kind")
            )?,
        }
    }
    for item in list("objects") {
        let names = ["cluster", "kind", "namespace", "name"].map(|field| text(item, field));
        let path: Vec<&str> = names.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
        writeln!(out, "differs: {}: {}", path.join("/"), text(item, "field"))?;
    }
    for notice in list("notices") {
        writeln!(out, "not compared: {}", notice.as_str().unwrap_or_default())?;
    }
    match number(found, "behind") {
        0 => {}
        behind => writeln!(out, "not compared: {behind} changes that are not indexed yet")?,
    }
    match number(found, "more") {
        0 => {}
        more => writeln!(out, "and {more} more")?,
    }
    match is_equal(found) {
        true => writeln!(out, "equal")?,
        false => writeln!(
            out,
            "rebuild the index with `crowsnest index rebuild` or, for tantivy, with `crowsnest cache rebuild --text`"
        )?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(index: &Value) -> String {
        let mut out = Vec::new();
        print(&mut out, index, Output::Table).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_local_index_has_one_line() {
        let index = json!({"backend": "tantivy", "behind": 0, "trouble": null, "bytes": null, "writer": null});
        assert_eq!(render(&index), "tantivy: 0 changes behind\n");
    }

    #[test]
    fn an_engine_shows_its_writer_and_differences() {
        let index = json!({
            "backend": "opensearch", "behind": 3, "trouble": "429 blocked", "bytes": 5 << 20,
            "writer": {"index": "crowsnest-000001", "state": "Waiting", "written": 9, "retried": 2, "refused": 1,
                "rebuilds": 0, "refusedDocuments": [{"id": "7", "seq": 5, "reason": "400 mapping"}]},
            "verification": {"stored": 10, "indexed": 9, "samples": 4, "more": 0, "notices": [],
                "counts": [{"cluster": "m1", "kind": "Pod", "stored": 3, "indexed": 2},
                    {"cluster": "", "kind": "", "stored": 0, "indexed": 1}],
                "objects": [{"cluster": "m1", "kind": "Node", "namespace": "", "name": "n1", "field": "status"}]},
        });
        insta::assert_snapshot!(render(&index), @r"
        opensearch: 3 changes behind, waiting, index crowsnest-000001, 5 MiB
        since the start: 9 written, 2 retried, 1 refused, 0 rebuilds
        cannot write to the index: 429 blocked
        rejected: object 7: 400 mapping
        10 objects in the cache, 9 in the index; 4 compared
        differs: m1 Pod: 3 in the cache, 2 in the index
        differs: 1 objects of clusters missing in the cache
        differs: m1/Node/n1: status
        rebuild the index with `crowsnest index rebuild` or, for tantivy, with `crowsnest cache rebuild --text`
        ");
    }
}
