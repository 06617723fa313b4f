//! `crowsnest journal`: shows what changed about an object's placement and why, from the resource `journal` of
//! `search.crowsnest.io`.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use crowsnest_apimachinery::request::percent_encode;
use crowsnest_apimachinery::yaml;
use serde_json::Value;

use super::explain::{ExplainedObject, format_reference, list, resolve_template, text};
use super::get::is_broken_pipe;
use crate::clients;
use crate::columns;
use crate::output::terminal;
use crate::pager;
use crate::partial::FleetReadArgs;

const JOURNAL_PATH: &str = "/apis/search.crowsnest.io/v1alpha1/journal";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Table,
    Json,
    Yaml,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest journal deploy/web -n shop",
    "crowsnest journal deploy/web -n shop --at 10:05",
    "crowsnest journal cluster/member1 --at now-2h --within 15m",
    "crowsnest search 'kind:event cause:cluster/member1'    all changes that a cluster caused",
])]
pub struct JournalArgs {
    /// Object of the control plane, or its binding
    #[arg(value_name = "KIND/NAME")]
    object: String,
    /// Namespace of the object [default: the namespace of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Show entries around this time: 10:05 (UTC, the most recent), now-2h or 2026-08-01T10:05 [default: all that are
    /// kept]
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Period before and after --at [default: 5m]
    #[arg(long, value_name = "DURATION", requires = "at")]
    within: Option<String>,
    /// Maximum number of entries; the newest are shown
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    read: FleetReadArgs,
}

pub(crate) async fn run(args: JournalArgs) -> anyhow::Result<ExitCode> {
    let ExplainedObject { client, kind, namespace, name } =
        resolve_template(&args.object, args.namespace.as_deref(), &args.read.connection).await?;
    let about = format!("{}/{namespace}/{name}", kind.gvr.group_resource());
    let mut path = format!("{JOURNAL_PATH}?limit={}&about={}", args.limit, percent_encode(&about));
    for (parameter, value) in [("at", &args.at), ("within", &args.within)] {
        if let Some(value) = value {
            path.push_str(&format!("&{parameter}={}", percent_encode(value)));
        }
    }
    let response = clients::get_or_explain(&client, &path).await?;
    pager::begin();
    let mut out = terminal::stdout();
    let result = match args.output {
        Output::Table => print_table(&mut out, &response, pager::width()).map_err(anyhow::Error::from),
        Output::Json => writeln!(out, "{response:#}").map_err(anyhow::Error::from),
        Output::Yaml => out.write_all(yaml::to_yaml(&response).as_bytes()).map_err(anyhow::Error::from),
    };
    match result {
        // The reader closed the pipe.
        Err(error) if is_broken_pipe(&error) => return Ok(ExitCode::SUCCESS),
        result => result?,
    }
    let partial = print_warnings(&mut terminal::stderr(), &response, &args.object)?;
    Ok(args.read.exit_code(partial))
}

/// Prints the entries, oldest first. Entries about other objects are included if they are a cause.
fn print_table(out: &mut impl Write, response: &Value, width: Option<usize>) -> io::Result<()> {
    let entries = list(response, "entries");
    if entries.is_empty() {
        return Ok(());
    }
    let head = ["AT", "ACTION", "OBJECT", "MESSAGE"].map(str::to_owned).to_vec();
    let row = |entry: &Value| {
        // Seconds suffice here; JSON output has the full precision.
        let at = text(entry, "/at").get(..19).map_or_else(String::new, |at| format!("{at}Z"));
        let message = text(entry, "/message").replace('\n', " ");
        vec![at, text(entry, "/action").to_owned(), format_reference(&entry["subject"]), message]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(entries.iter().map(row)).collect();
    columns::Widths::default().with_max_width(width).write(out, &rows)
}

/// Prints notices, skipped clusters and omitted entries to standard error. Returns true if clusters were skipped.
fn print_warnings(err: &mut impl Write, response: &Value, object: &str) -> io::Result<bool> {
    for notice in list(response, "notices") {
        writeln!(err, "note: {}", text(notice, "/message"))?;
    }
    let skipped = list(response, "skipped");
    for cluster in skipped {
        writeln!(err, "warning: {}: {}", text(cluster, "/cluster"), text(cluster, "/reason"))?;
    }
    let entries = list(response, "entries");
    if entries.is_empty() {
        let retention = response["keptForSeconds"].as_i64().unwrap_or_default();
        let retention = crowsnest_apimachinery::printers::human_duration(retention);
        writeln!(err, "no entries found for {object}; entries are kept for {retention} (--cache-history)")?;
    }
    let about = entries.iter().filter(|entry| entry["isCause"] != true).count() as u64;
    let total = response["total"].as_u64().unwrap_or_default();
    if total > about && about > 0 {
        writeln!(err, "showing the newest {about} of {total} entries; raise --limit or use --at")?;
    }
    Ok(!skipped.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(at: &str, action: &str, subject: Value, message: &str, is_cause: bool) -> Value {
        json!({"at": at, "action": action, "subject": subject, "message": message, "isCause": is_cause})
    }

    #[test]
    fn causes_are_printed_before_effects() {
        let web = json!({"kind": "Deployment", "namespace": "shop", "name": "web"});
        let response = json!({"total": 3, "keptForSeconds": 86400, "skipped": [], "notices": [{"message": "kept for a day"}],
        "entries": [
            entry("2026-01-01T10:05:00.1Z", "ClusterFlipped", json!({"kind": "Cluster", "name": "m1"}), "Ready is False", true),
            entry("2026-01-01T10:05:01.2Z", "Evicted", web, "Evicted from m1", false),
        ]});
        let mut out = Vec::new();
        print_table(&mut out, &response, None).unwrap();
        let expected = "AT                     ACTION           OBJECT                MESSAGE\n\
            2026-01-01T10:05:00Z   ClusterFlipped   Cluster m1            Ready is False\n\
            2026-01-01T10:05:01Z   Evicted          Deployment shop/web   Evicted from m1\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut err = Vec::new();
        assert!(!print_warnings(&mut err, &response, "deploy/web").unwrap());
        let expected = "note: kept for a day\nshowing the newest 1 of 3 entries; raise --limit or use --at\n";
        assert_eq!(String::from_utf8(err).unwrap(), expected);
    }

    #[test]
    fn empty_results_are_reported() {
        let response = json!({"total": 0, "keptForSeconds": 86400, "entries": [], "notices": [],
            "skipped": [{"cluster": "@control-plane", "reason": "connection refused"}]});
        let mut err = Vec::new();
        assert!(print_warnings(&mut err, &response, "deploy/web").unwrap());
        let expected = "warning: @control-plane: connection refused\n\
            no entries found for deploy/web; entries are kept for 24h (--cache-history)\n";
        assert_eq!(String::from_utf8(err).unwrap(), expected);
    }
}
