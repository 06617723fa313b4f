//! `crowsnest cache`: shows the status of the cache (from the running server), checks its files, migrates them to
//! another format version, and deletes them to be filled again.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use crowsnest_apimachinery::printers::human_duration;
use crowsnest_index::StoreOptions;
use crowsnest_index::check::{self, RebuildScope};
use crowsnest_store::CheckReport;
use crowsnest_store::format;
use serde_json::Value;

use super::serve::DatabaseUrl;
use crowsnest_cli::columns;
use crowsnest_cli::connection::ConnectionArgs;
use crowsnest_cli::examples;
use crowsnest_cli::output::terminal;
use crowsnest_process::data_dir::DataDir;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest cache status",
    "crowsnest cache status --resources -o wide",
    "crowsnest cache check",
    "crowsnest cache rebuild --text",
    "CROWSNEST_DB=postgres://… crowsnest cache rebuild    with all replicas stopped",
])]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Wide,
    Json,
}

#[derive(Debug, Subcommand)]
enum CacheCommand {
    /// Show records, freshness and errors of each cluster, from the running server
    Status {
        /// Print one line per resource instead of one per cluster
        #[arg(long)]
        resources: bool,
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Check all files of the cache for damage; exits with 1 if any is found
    Check {
        #[command(flatten)]
        data_dir: DataDirArg,
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Delete the cache; the next start fills it again. Crowsnest must be stopped
    Rebuild {
        #[command(flatten)]
        data_dir: DataDirArg,
        #[command(flatten)]
        database: Database,
        /// Delete the text index only; it is rebuilt from the database
        #[arg(long)]
        text: bool,
    },
    /// Migrate the cache, with its content, to the format of another version. Run it with the newer of two versions
    /// before the older one starts. Crowsnest must be stopped
    Migrate {
        #[command(flatten)]
        data_dir: DataDirArg,
        #[command(flatten)]
        database: Database,
        /// Target format [default: the format of this version]
        #[arg(long, value_name = "FORMAT")]
        to: Option<usize>,
    },
}

#[derive(Debug, Args)]
struct Database {
    /// Database URL of the cache, as for `crowsnest serve` [default: a file in the data directory]
    #[arg(long, env = "CROWSNEST_DB", hide_env_values = true, value_name = "URL")]
    db: Option<DatabaseUrl>,
}

/// Location of a cache; holds the lock of its data directory while it is used.
struct CacheLocation {
    store: StoreOptions,
    /// `None` for a database server.
    folder: Option<PathBuf>,
    _lock: Option<DataDir>,
}

impl Database {
    fn location(&self, data_dir: &DataDirArg) -> anyhow::Result<CacheLocation> {
        match self.db.as_ref().map(DatabaseUrl::store_options).transpose()? {
            None | Some((StoreOptions::Sqlite, None)) => {
                let path = data_dir.path()?;
                let lock = Some(DataDir::open(&path, false)?);
                Ok(CacheLocation { store: StoreOptions::Sqlite, folder: Some(path.join(CACHE)), _lock: lock })
            }
            Some((StoreOptions::Sqlite, Some(folder))) => bail!(
                "cannot check whether a process uses {0}; stop all processes and delete {0}: the next start fills the cache from the member clusters",
                folder.display()
            ),
            Some((store @ StoreOptions::Postgres(_), _)) => Ok(CacheLocation { store, folder: None, _lock: None }),
        }
    }
}

#[derive(Debug, Args)]
struct DataDirArg {
    /// Data directory of `crowsnest up`
    #[arg(long, env = "CROWSNEST_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl DataDirArg {
    /// The data directory; an error if it has no cache.
    fn path(&self) -> anyhow::Result<PathBuf> {
        let path = self.data_dir.clone().unwrap_or_else(crowsnest_cli::data_dir::default_data_dir);
        if !path.join(CACHE).is_dir() {
            bail!("{} has no cache; set --data-dir to the data directory", path.display());
        }
        Ok(path)
    }
}

/// Folder of the cache in the data directory.
const CACHE: &str = "cache";

pub(crate) async fn run(args: CacheArgs) -> anyhow::Result<ExitCode> {
    let mut out = terminal::stdout();
    match args.command {
        CacheCommand::Status { resources, output, connection } => {
            let request = http::Request::get("/apis/search.crowsnest.io/v1alpha1/cache").body(Vec::new())?;
            let status: Value =
                connection.client().await?.request(request).await.context("cannot read the status of the cache")?;
            print_status(&mut out, &status, resources, output, jiff::Timestamp::now().as_millisecond())?;
            Ok(if status["problem"].is_null() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        CacheCommand::Check { data_dir, output } => {
            let report = check::check(&data_dir.path()?.join(CACHE)).await?;
            print_report(&mut out, &report, output)?;
            Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        CacheCommand::Rebuild { data_dir, database, text } => {
            // Each process keeps its own text index in its data directory, even if the records are in a database
            // server.
            let database = if text { Database { db: None } } else { database };
            let location = database.location(&data_dir)?;
            let existed = match (&location.folder, text) {
                (Some(folder), true) => check::discard(folder, RebuildScope::Text)?,
                (folder, _) => crowsnest_index::check::delete_all(&location.store, folder.as_deref()).await?,
            };
            print_rebuild_result(&mut out, existed, text)?;
            Ok(ExitCode::SUCCESS)
        }
        CacheCommand::Migrate { data_dir, database, to } => {
            let location = database.location(&data_dir)?;
            let to = to.unwrap_or_else(|| format::newest_format(&location.store));
            match format::migrate(&location.store, &location.folder.unwrap_or_default(), to).await? {
                Some(from) => writeln!(out, "the cache was migrated from format {from} to {to}")?,
                None => writeln!(out, "no cache found; the next start fills it")?,
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn print_rebuild_result(out: &mut impl Write, existed: bool, text: bool) -> anyhow::Result<()> {
    match (existed, text) {
        (false, _) => writeln!(out, "no cache found; the next start fills it")?,
        (true, true) => writeln!(out, "the text index was deleted; the next start rebuilds it from the database")?,
        (true, false) => writeln!(out, "the cache was deleted; the next start fills it from the member clusters")?,
    }
    Ok(())
}

fn print_report(out: &mut impl Write, report: &CheckReport, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        writeln!(out, "{:#}", serde_json::to_value(report)?)?;
        return Ok(());
    }
    let CheckReport { records, versions, documents, behind, problems, more } = report;
    writeln!(out, "{records} records, {versions} old versions, {documents} documents, {behind} changes behind")?;
    for problem in problems {
        writeln!(out, "damaged: {problem}")?;
    }
    if *more > 0 {
        writeln!(out, "and {more} more")?;
    }
    match problems.is_empty() {
        true => writeln!(out, "no damage found")?,
        false => writeln!(
            out,
            "stop crowsnest and run `crowsnest cache rebuild`; no data is lost: the next start fills the cache from the member clusters"
        )?,
    }
    Ok(())
}

/// A row of `cache status`.
#[derive(Default)]
struct StatusRow {
    resources: u64,
    records: u64,
    complete: u64,
    /// Milliseconds since the epoch; 0 without any response.
    last_seen: i64,
    error: Option<String>,
}

impl StatusRow {
    fn add(&mut self, collection: &Value) {
        self.resources += 1;
        self.records += collection["records"].as_u64().unwrap_or_default();
        self.complete += u64::from(collection["complete"] == true);
        self.last_seen = self.last_seen.max(collection["heardAt"].as_i64().unwrap_or_default());
        if self.error.is_none() {
            self.error = collection["trouble"].as_str().map(str::to_owned);
        }
    }

    fn cells(&self, now_ms: i64) -> [String; 4] {
        let last_seen = match self.last_seen {
            0 => "<never>".to_owned(),
            at => format!("{} ago", human_duration((now_ms - at).max(0) / 1000)),
        };
        let error = self.error.clone().unwrap_or_else(|| "<none>".to_owned());
        [self.records.to_string(), format!("{}/{}", self.complete, self.resources), last_seen, error]
    }
}

fn print_status(
    out: &mut impl Write,
    status: &Value,
    resources: bool,
    output: Output,
    now_ms: i64,
) -> anyhow::Result<()> {
    if output == Output::Json {
        writeln!(out, "{status:#}")?;
        return Ok(());
    }
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let mut lines: BTreeMap<(String, String), StatusRow> = BTreeMap::new();
    for collection in status["collections"].as_array().into_iter().flatten() {
        let resource = match text(collection, "group") {
            group if group.is_empty() => text(collection, "resource"),
            group => format!("{}.{group}", text(collection, "resource")),
        };
        let key = (text(collection, "cluster"), if resources { resource } else { String::new() });
        lines.entry(key).or_default().add(collection);
    }
    let head = ["CLUSTER", "RESOURCE", "RECORDS", "COMPLETE", "LAST SEEN", "ERROR"];
    let width = if output == Output::Wide { usize::MAX } else { 80 };
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for ((cluster, resource), line) in &lines {
        let [records, complete, last_seen, error] = line.cells(now_ms);
        let error = error.chars().take(width).collect();
        rows.push(vec![cluster.clone(), resource.clone(), records, complete, last_seen, error]);
    }
    if !resources {
        rows.iter_mut().for_each(|row| drop(row.remove(1)));
    }
    columns::write(out, &rows)?;
    let number = |value: &Value, field: &str| value[field].as_u64().unwrap_or_default();
    let (store, seq) = (&status["store"], number(status, "seq"));
    writeln!(
        out,
        "{} records, {} old versions ({} deleted objects, {} MiB), {} MiB on disk, {} changes, text search {} behind",
        number(store, "records"),
        number(store, "versions"),
        number(store, "deletions"),
        number(store, "versionBytes") >> 20,
        number(store, "bytes") >> 20,
        seq,
        seq.saturating_sub(number(status, "searchable")),
    )?;
    if let Some(error) = status["indexTrouble"].as_str() {
        let backend = status["backend"].as_str().unwrap_or("text search");
        writeln!(out, "cannot write to {backend}: {error}")?;
    }
    if let Some(problem) = status["problem"].as_str() {
        writeln!(out, "not ready: {problem}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn status_has_one_line_per_cluster_or_resource() {
        let collection = |cluster: &str, group: &str, resource: &str, records: u64, complete: bool, trouble: Value| {
            json!({"cluster": cluster, "group": group, "resource": resource, "records": records, "complete": complete,
                "heardAt": 90_000, "trouble": trouble})
        };
        let status = json!({"seq": 9, "searchable": 7, "collections": [
            collection("m1", "", "pods", 3, true, Value::Null), collection("m1", "apps", "deployments", 2, true, Value::Null),
            collection("m2", "", "pods", 1, false, json!("connection refused"))],
            "store": {"records": 6, "versions": 4, "deletions": 1, "versionBytes": 2 << 20, "bytes": 5 << 20}});
        let total =
            "6 records, 4 old versions (1 deleted objects, 2 MiB), 5 MiB on disk, 9 changes, text search 2 behind\n";
        for (resources, expected) in [
            (
                false,
                "CLUSTER   RECORDS   COMPLETE   LAST SEEN   ERROR\nm1        5         2/2        10s ago     <none>\nm2        1         0/1        10s ago     connection refused\n",
            ),
            (
                true,
                "CLUSTER   RESOURCE           RECORDS   COMPLETE   LAST SEEN   ERROR\nm1        deployments.apps   2         1/1        10s ago     <none>\nm1        pods               3         1/1        10s ago     <none>\nm2        pods               1         0/1        10s ago     connection refused\n",
            ),
        ] {
            let mut out = Vec::new();
            print_status(&mut out, &status, resources, Output::Table, 100_000).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), format!("{expected}{total}"));
        }
    }

    #[test]
    fn reports_name_the_damage_and_the_next_step() {
        let problems = vec!["records 7: its body is that of web 3".to_owned()];
        let report = CheckReport { records: 9, more: 2, problems, ..CheckReport::default() };
        let mut out = Vec::new();
        print_report(&mut out, &report, Output::Table).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("damaged: records 7") && text.contains("and 2 more") && text.contains("cache rebuild"),
            "{text}"
        );
    }
}
