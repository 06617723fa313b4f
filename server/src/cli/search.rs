//! `crowsnest search`: a query over all clusters, the same text as in the UI.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use super::columns;
use super::connection::ConnectionArgs;

/// Exit code of `--fail-on-empty` with no hit.
const EMPTY: u8 = 3;
/// Exit code when clusters were left out.
pub(super) const PARTIAL: u8 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Table,
    Wide,
    Json,
    Jsonl,
    Name,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest search 'kind:pod status:CrashLoopBackOff'\n  crowsnest search image:nginx -o name\n  crowsnest search --limit 0 'is:unhealthy group:region'\n  crowsnest search -- -ns:kube-system kind:deploy"
)]
pub(crate) struct SearchArgs {
    /// The query; several words are joined by blanks
    #[arg(value_name = "QUERY")]
    query: Vec<String>,
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// The most hits to print
    #[arg(long, default_value_t = 100)]
    limit: usize,
    #[arg(long)]
    no_headers: bool,
    /// Print what the query was taken for, and what each part of it finds and costs
    #[arg(long)]
    explain: bool,
    /// Exit with 3 when nothing is found
    #[arg(long)]
    fail_on_empty: bool,
    /// Exit with 0 even when clusters were left out
    #[arg(long)]
    allow_partial: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) async fn run(args: SearchArgs) -> anyhow::Result<ExitCode> {
    let client = args.connection.client().await?;
    let query = args.query.join(" ");
    let encoded = percent_encoding::utf8_percent_encode(&query, percent_encoding::NON_ALPHANUMERIC);
    let resource = if args.explain { "explain" } else { "query" };
    let path = format!("/apis/search.crowsnest.io/v1alpha1/{resource}?limit={}&q={encoded}", args.limit);
    let request = http::Request::get(path).header(http::header::ACCEPT, "application/json").body(Vec::new())?;
    let answer: Value = client.request(request).await.context("searching")?;
    let mut out = io::stdout().lock();
    if args.explain {
        match args.output {
            Output::Json | Output::Jsonl => writeln!(out, "{answer:#}")?,
            Output::Table | Output::Wide | Output::Name => explain(&mut out, &answer)?,
        }
        complain(&mut io::stderr().lock(), &answer, &query)?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&mut out, &answer, args.output, !args.no_headers, jiff::Timestamp::now())?;
    let partial = complain(&mut io::stderr().lock(), &answer, &query)?;
    let empty = hits(&answer).is_empty();
    Ok(match (partial && !args.allow_partial, empty && args.fail_on_empty) {
        (_, true) => ExitCode::from(EMPTY),
        (true, false) => ExitCode::from(PARTIAL),
        (false, false) => ExitCode::SUCCESS,
    })
}

fn hits(answer: &Value) -> &[Value] {
    answer.get("hits").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn print(out: &mut impl Write, answer: &Value, output: Output, headers: bool, now: jiff::Timestamp) -> io::Result<()> {
    match output {
        Output::Json => writeln!(out, "{answer:#}"),
        Output::Jsonl => hits(answer).iter().try_for_each(|hit| writeln!(out, "{hit}")),
        Output::Name => hits(answer).iter().try_for_each(|hit| {
            let of = |field: &str| hit.get(field).and_then(Value::as_str).unwrap_or_default();
            let namespace =
                Some(of("namespace")).filter(|n| !n.is_empty()).map(|n| format!("{n}/")).unwrap_or_default();
            writeln!(out, "{}/{namespace}{}/{}", of("cluster"), of("resource"), of("name"))
        }),
        Output::Table | Output::Wide => {
            groups(out, answer, headers)?;
            table(out, hits(answer), output == Output::Wide, headers, now)
        }
    }
}

/// How many hits are in each group, where the query groups them.
fn groups(out: &mut impl Write, answer: &Value, headers: bool) -> io::Result<()> {
    let Some(groups) = answer.get("groups") else { return Ok(()) };
    let field = groups.get("field").and_then(Value::as_str).unwrap_or_default().to_uppercase();
    let head = headers.then(|| vec![field, "COUNT".to_owned()]);
    let row = |group: &Value| {
        let value = group.get("value").and_then(Value::as_str).unwrap_or_default().to_owned();
        vec![value, group.get("count").and_then(Value::as_u64).unwrap_or_default().to_string()]
    };
    let values = groups.get("values").and_then(Value::as_array).into_iter().flatten();
    columns::write(out, &head.into_iter().chain(values.map(row)).collect::<Vec<_>>())?;
    if let Some(more) = groups.get("more").and_then(Value::as_u64).filter(|more| *more > 0) {
        writeln!(out, "and {more} more")?;
    }
    if hits(answer).is_empty() { Ok(()) } else { writeln!(out) }
}

/// The query as understood, and its plan as a tree with hits and milliseconds.
fn explain(out: &mut impl Write, answer: &Value) -> io::Result<()> {
    let of = |field: &str| answer.get(field).and_then(Value::as_str).unwrap_or_default();
    writeln!(out, "query: {}\nasked of: {}\n", of("query"), of("asked"))?;
    let mut rows = vec![vec!["HITS".to_owned(), "MS".to_owned(), "PART".to_owned()]];
    steps(answer.get("plan").unwrap_or(&Value::Null), 0, &mut rows);
    columns::write(out, &rows)
}

fn steps(step: &Value, depth: usize, rows: &mut Vec<Vec<String>>) {
    let cell = |field: &str| step.get(field).map_or_else(|| "<none>".to_owned(), ToString::to_string);
    let what = step.get("what").and_then(Value::as_str).unwrap_or_default();
    rows.push(vec![cell("hits"), cell("tookMs"), format!("{}{what}", "  ".repeat(depth))]);
    for part in step.get("parts").and_then(Value::as_array).into_iter().flatten() {
        steps(part, depth + 1, rows);
    }
}

fn table(out: &mut impl Write, hits: &[Value], wide: bool, headers: bool, now: jiff::Timestamp) -> io::Result<()> {
    if hits.is_empty() {
        return Ok(());
    }
    let mut names = vec!["CLUSTER", "KIND", "NAMESPACE", "NAME", "STATUS", "AGE"];
    if wide {
        names.extend(["READY", "RESTARTS", "NODE", "MATCHED"]);
    }
    let head = headers.then(|| names.iter().map(|name| (*name).to_owned()).collect());
    let rows: Vec<Vec<String>> = head.into_iter().chain(hits.iter().map(|hit| row(hit, wide, now))).collect();
    columns::write(out, &rows)
}

fn row(hit: &Value, wide: bool, now: jiff::Timestamp) -> Vec<String> {
    let of = |field: &str| match hit.get(field) {
        Some(Value::String(text)) if !text.is_empty() => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => "<none>".to_owned(),
    };
    let age = hit.get("created").and_then(Value::as_str).and_then(|t| t.parse::<jiff::Timestamp>().ok()).map_or_else(
        || "<unknown>".to_owned(),
        |t| crowsnest_api::print::human_duration(now.as_second() - t.as_second()),
    );
    let mut cells = vec![of("cluster"), of("kind"), of("namespace"), of("name"), of("status"), age];
    if wide {
        let matched = hit.get("matched").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let fields: Vec<&str> = matched.iter().filter_map(|m| m.get("field").and_then(Value::as_str)).collect();
        cells.extend([of("ready"), of("restarts"), of("node"), fields.join(",")]);
    }
    cells
}

/// Tells on standard error what the answer lacks. True when clusters were left out.
fn complain(err: &mut impl Write, answer: &Value, query: &str) -> io::Result<bool> {
    let list = |field: &str| answer.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    for notice in list("notices") {
        if let Some(message) = notice.get("message").and_then(Value::as_str) {
            writeln!(err, "note: {message}")?;
        }
    }
    let skipped = list("skipped");
    for cluster in &skipped {
        let of = |field: &str| cluster.get(field).and_then(Value::as_str).unwrap_or_default();
        let age = cluster.get("ageSeconds").and_then(Value::as_i64);
        let age =
            age.map(|a| format!(", shown as of {} ago", crowsnest_api::print::human_duration(a))).unwrap_or_default();
        writeln!(err, "warning: {}: {}{age}", of("cluster"), of("reason"))?;
    }
    let total = answer.get("total").and_then(Value::as_u64).unwrap_or(0);
    let shown = hits(answer).len();
    if total as usize > shown {
        writeln!(err, "{shown} of {total} shown; raise --limit or narrow the query")?;
    }
    if total == 0 && shown == 0 && answer.get("plan").is_none() {
        writeln!(err, "nothing found for {query:?}")?;
        for wider in list("wider") {
            let text = wider.get("query").and_then(Value::as_str).unwrap_or_default();
            let total = wider.get("total").and_then(Value::as_u64).unwrap_or_default();
            writeln!(err, "{total} with less: crowsnest search '{text}'")?;
        }
        for other in list("didYouMean") {
            if let Some(text) = other.as_str() {
                writeln!(err, "did you mean: crowsnest search '{text}'")?;
            }
        }
    }
    Ok(!skipped.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer() -> Value {
        json!({"total": 2, "skipped": [{"cluster": "m2", "reason": "connection refused", "ageSeconds": 90}], "hits": [
            {"cluster": "m1", "kind": "Pod", "resource": "pods", "namespace": "default", "name": "web-0", "status": "Running",
             "ready": "1/1", "restarts": 0, "created": "2026-01-01T00:00:00Z", "matched": [{"field": "name"}]},
            {"cluster": "m1", "kind": "Node", "resource": "nodes", "name": "n1", "created": "2026-01-01T00:00:00Z", "matched": []}]})
    }

    #[test]
    fn outputs() {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        for (output, expected) in [
            (
                Output::Table,
                "CLUSTER   KIND   NAMESPACE   NAME    STATUS    AGE\nm1        Pod    default     web-0   Running   60m\nm1        Node   <none>      n1      <none>    60m\n",
            ),
            (Output::Name, "m1/default/pods/web-0\nm1/nodes/n1\n"),
        ] {
            let mut out = Vec::new();
            print(&mut out, &answer(), output, true, now).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn groups_come_first() {
        let mut answer = answer();
        answer["groups"] = json!({"field": "kind", "values": [{"value": "Pod", "count": 2}, {"value": "Node", "count": 1}], "more": 1});
        answer["hits"] = json!([]);
        let mut out = Vec::new();
        print(&mut out, &answer, Output::Table, true, jiff::Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "KIND   COUNT\nPod    2\nNode   1\nand 1 more\n");
    }

    #[test]
    fn plans_are_trees() {
        let leaf = json!({"what": "kind is \"pod\"", "hits": 3, "tookMs": 0.5});
        let answer = json!({"query": "kind:pod x", "asked": "objects that are there",
            "plan": {"what": "all of", "hits": 2, "tookMs": 1.25, "parts": [leaf, {"what": "\"x\" anywhere", "tookMs": 0.0}]}});
        let mut out = Vec::new();
        explain(&mut out, &answer).unwrap();
        let expected = "query: kind:pod x\nasked of: objects that are there\n\nHITS     MS     PART\n2        1.25   all of\n\
            3        0.5      kind is \"pod\"\n<none>   0.0      \"x\" anywhere\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn what_is_missing_is_said() {
        let mut err = Vec::new();
        assert!(complain(&mut err, &answer(), "x").unwrap());
        assert_eq!(String::from_utf8(err).unwrap(), "warning: m2: connection refused, shown as of 90s ago\n");
    }
}
