//! `crowsnest history`: lists the revisions of an object that the cache keeps, and the fields that changed in each.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use crowsnest_apimachinery::printers::human_duration;
use futures::{StreamExt, TryStreamExt};
use serde_json::Value;

use super::get::is_broken_pipe;
use crate::columns;
use crate::connection::ConnectionArgs;
use crate::object::{ObjectArgs, ResolvedObject, text};
use crate::output::Format;
use crate::pager;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest history deploy/web -n shop --cluster member1",
    "crowsnest history deploy/web -n shop --cluster member1 --seq 120 -o yaml",
    "crowsnest diff deploy/web -n shop --cluster member1 --from 120",
])]
pub struct HistoryArgs {
    #[command(flatten)]
    object: ObjectArgs,
    /// Cluster of the object [default: the only one that has or had it]
    #[arg(short = 'C', long, visible_alias = "clusters")]
    cluster: Option<String>,
    /// Print the manifest of the revision with this SEQ
    #[arg(long, value_name = "SEQ")]
    seq: Option<u64>,
    /// Output format: json, yaml, jsonpath=TEMPLATE, go-template=TEMPLATE, custom-columns=HEAD:PATH,… [default: a
    /// table; yaml with --seq]
    #[arg(short, long, value_name = "FORMAT", value_parser = Format::parse_for_objects)]
    output: Option<Format>,
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) async fn run(args: HistoryArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.as_deref();
    let (target, cluster) = args.object.resolve_with_cluster(&args.connection, cluster).await?;
    let parameters = args.seq.map(|seq| format!("&seq={seq}")).unwrap_or_default();
    let response = target.request_search_api("history", &cluster, &parameters).await?;
    let mut out = Vec::new();
    match (&args.output, args.seq) {
        (Some(format), _) if !format.is_table() => format.print(&mut out, &response, |_| target.display_name())?,
        (None, Some(_)) => Format::Yaml.print(&mut out, &response, |_| target.display_name())?,
        (_, Some(_)) => bail!("--seq requires an output format for documents, such as -o yaml or -o json"),
        _ => print_table(&mut out, &args, &target, &cluster, &response).await?,
    }
    pager::begin();
    let result = io::stdout().write_all(&out).map_err(anyhow::Error::from);
    match result {
        Err(error) if !is_broken_pipe(&error) => Err(error),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Maximum number of concurrent diff requests.
const MAX_CONCURRENT_REQUESTS: usize = 4;
/// Maximum number of changed paths shown per revision.
const MAX_PATHS: usize = 4;

/// Prints the revisions as a table, with the paths that changed since the previous revision.
async fn print_table(
    out: &mut impl Write,
    args: &HistoryArgs,
    target: &ResolvedObject,
    cluster: &str,
    response: &Value,
) -> anyhow::Result<()> {
    let revisions = response.get("versions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let seq = |revision: &Value| revision.get("seq").and_then(Value::as_u64).unwrap_or_default();
    let pairs = revisions.windows(2).map(|pair| (seq(&pair[1]), seq(&pair[0])));
    let changed_paths =
        futures::stream::iter(pairs)
            .map(|(from, to)| async move {
                target.request_search_api("diff", cluster, &format!("&from={from}&to={to}")).await
            })
            .buffered(MAX_CONCURRENT_REQUESTS)
            .map_ok(|diff| format_paths(&diff))
            .try_collect::<Vec<String>>()
            .await?;
    let now = jiff::Timestamp::now();
    let header = ["SEQ", "AGE", "UNTIL", "GENERATION", "CHANGED"].map(str::to_owned).to_vec();
    let row = |(at, revision): (usize, &Value)| {
        let changed = changed_paths.get(at).map_or("<unknown>", String::as_str);
        row(revision, changed, now)
    };
    let rows: Vec<Vec<String>> =
        (!args.no_headers).then_some(header).into_iter().chain(revisions.iter().enumerate().map(row)).collect();
    Ok(columns::write(out, &rows)?)
}

/// The row of a revision. The oldest has no predecessor to compare with.
fn row(revision: &Value, changed: &str, now: jiff::Timestamp) -> Vec<String> {
    let ago = |field: &str| {
        let at = text(revision, field).parse::<jiff::Timestamp>().ok();
        at.map(|at| human_duration(now.as_second() - at.as_second()))
    };
    let number = |field: &str| revision.get(field).map_or_else(|| "<none>".to_owned(), ToString::to_string);
    let until = match (ago("/until"), revision.get("deleted").and_then(Value::as_bool)) {
        (Some(until), Some(true)) => format!("deleted-{until}-ago"),
        (Some(until), _) => format!("{until}-ago"),
        (None, _) => "now".to_owned(),
    };
    let age = ago("/from").unwrap_or_else(|| "<unknown>".to_owned());
    vec![number("seq"), age, until, number("generation"), changed.to_owned()]
}

/// The changed paths of a revision as one cell, such as `spec.replicas,status.replicas,+3`.
fn format_paths(diff: &Value) -> String {
    let all = diff.get("differences").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let is_own_change = |path: &str| !["/metadata/resourceVersion", "/metadata/generation"].contains(&path);
    let paths: Vec<String> = all
        .iter()
        .map(|difference| text(difference, "/path"))
        .filter(|path| is_own_change(path))
        .map(|path| path.trim_start_matches('/').replace('/', ".").replace("~1", "/").replace("~0", "~"))
        .collect();
    // The API returns a limited number of differences and whether there are more.
    let more = diff.get("more") == Some(&Value::Bool(true));
    let omitted = paths.len().saturating_sub(MAX_PATHS);
    let mut listed = paths.into_iter().take(MAX_PATHS).collect::<Vec<_>>();
    match (omitted, more) {
        (0, false) => {}
        (omitted, false) => listed.push(format!("+{omitted}")),
        (_, true) => listed.push("...".to_owned()),
    }
    if listed.is_empty() { "<none>".to_owned() } else { listed.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn changes_are_shown_by_their_paths() {
        let cell = |paths: &[&str], more: bool| {
            let differences: Vec<Value> = paths.iter().map(|path| json!({"path": path, "after": 1})).collect();
            format_paths(&json!({"differences": differences, "more": more}))
        };
        assert_eq!(cell(&["/metadata/resourceVersion", "/spec/replicas"], false), "spec.replicas");
        assert_eq!(cell(&["/metadata/labels/a~1b"], true), "metadata.labels.a/b,...");
        assert_eq!(cell(&["/a", "/b", "/c", "/d", "/e"], false), "a,b,c,d,+1");
        assert_eq!(cell(&[], false), "<none>");
    }

    #[rstest::rstest]
    #[case(json!({"seq": 7, "generation": 2, "from": "2026-01-01T00:00:00Z"}), "7 60m now 2 x")]
    #[case(json!({"seq": 6, "generation": 1, "from": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:30:00Z"}), "6 60m 30m-ago 1 x")]
    #[case(json!({"seq": 6, "from": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:30:00Z", "deleted": true}), "6 60m deleted-30m-ago <none> x")]
    fn revisions_become_rows(#[case] version: Value, #[case] expected: &str) {
        assert_eq!(row(&version, "x", "2026-01-01T01:00:00Z".parse().unwrap()).join(" "), expected);
    }
}
