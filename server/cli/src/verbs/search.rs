//! `crowsnest search`: runs a search query over all clusters, in the same language as in the UI.

mod watch;
mod web;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use crowsnest_apimachinery::request::percent_encode;
use futures::{AsyncBufReadExt, TryStreamExt};
use serde_json::{Value, json};

use super::get::is_broken_pipe;
use crate::amounts::{format_cpu, format_memory};
use crate::clients::{self, explain_failure};
use crate::columns::{self, Widths};
use crate::object::SEARCH_API_PATH;
use crate::output::color::ColorArgs;
use crate::output::terminal;
use crate::output::{Format, write_csv_line};
use crate::pager;
use crate::partial::FleetReadArgs;
use crate::spinner;

/// Exit code of `--fail-on-empty` without hits.
const EXIT_EMPTY: u8 = 3;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest search 'kind:pod status:CrashLoopBackOff'",
    "crowsnest search image:nginx -o name",
    "crowsnest search --limit 0 'is:unhealthy group:region'",
    "crowsnest search --limit 0 --sum cpu.req,mem.req 'kind:pod -phase:Succeeded,Failed group:node'",
    "crowsnest search kind:pod -o 'custom-columns=POD:.name,NODE:.node'",
    "crowsnest search kind:deploy --objects -o 'jsonpath={.items[*].spec.replicas}'",
    "crowsnest search -w 'kind:pod -status:Running'",
    "crowsnest search -- -ns:kube-system kind:deploy",
])]
pub struct SearchArgs {
    /// Search query; words are joined by spaces
    #[arg(value_name = "QUERY")]
    query: Vec<String>,
    /// Output format: table, wide, json, jsonl, yaml, csv, name, jsonpath=TEMPLATE, go-template=TEMPLATE,
    /// custom-columns=HEAD:PATH,…
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = Format::parse_for_hits)]
    output: Format,
    /// Print whole objects instead of hits, for output formats other than tables
    #[arg(long, conflicts_with_all = ["watch", "explain"])]
    objects: bool,
    /// Maximum number of hits
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Sum these fields per group of a query with group:, such as cpu.req,mem.req
    #[arg(long, value_name = "FIELDS", value_delimiter = ',', conflicts_with_all = ["watch", "web", "explain", "objects"])]
    sum: Vec<String>,
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    color: ColorArgs,
    /// Watch for changes after the search
    #[arg(short, long, conflicts_with = "explain")]
    watch: bool,
    /// Open the query in the UI
    #[arg(long, conflicts_with_all = ["watch", "explain", "objects"])]
    web: bool,
    /// URL of the UI
    #[arg(long, env = "CROWSNEST_UI_URL", default_value = "http://127.0.0.1:7080", value_name = "URL")]
    ui_url: String,
    /// Print how the query was parsed, and the hits and cost of each part
    #[arg(long)]
    explain: bool,
    /// Exit with 3 if nothing is found
    #[arg(long)]
    fail_on_empty: bool,
    #[command(flatten)]
    read: FleetReadArgs,
}

pub(crate) async fn run(args: SearchArgs) -> anyhow::Result<ExitCode> {
    let query = args.query.join(" ");
    let result = if args.web {
        web::open(&args.ui_url, &query)
    } else if args.watch {
        watch::follow(&args, &query).await
    } else if args.objects {
        export_objects(&args, &query).await
    } else {
        run_search(&args, &query).await
    };
    match result {
        // The reader closed the pipe.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        result => result,
    }
}

/// The path of a resource of the search API.
fn api_path(resource: &str, query: &str, parameters: &str) -> String {
    format!("{SEARCH_API_PATH}/{resource}?q={}{parameters}", percent_encode(query))
}

async fn run_search(args: &SearchArgs, query: &str) -> anyhow::Result<ExitCode> {
    let client = args.read.connection.client().await?;
    let resource = if args.explain { "explain" } else { "query" };
    let path = api_path(resource, query, &args.parameters());
    let response = spinner::with_spinner(|| "searching".to_owned(), clients::get_or_explain(&client, &path)).await?;
    pager::begin();
    let mut out = terminal::stdout();
    if args.explain {
        match &args.output {
            Format::Table | Format::Wide => print_explanation(&mut out, &response)?,
            format => format.print(&mut out, &response, hit_name)?,
        }
        print_warnings(&mut terminal::stderr(), &response, query)?;
        return Ok(ExitCode::SUCCESS);
    }
    let options =
        PrintOptions { output: &args.output, has_headers: !args.no_headers, is_colored: args.color.is_enabled() };
    print(&mut out, &response, &options, jiff::Timestamp::now())?;
    out.flush()?;
    let partial = print_warnings(&mut terminal::stderr(), &response, query)?;
    Ok(args.exit_code(hits(&response).is_empty(), partial))
}

/// Prints whole objects from one snapshot of the index.
async fn export_objects(args: &SearchArgs, query: &str) -> anyhow::Result<ExitCode> {
    if args.output.is_table() {
        anyhow::bail!(
            "--objects requires an output format for documents: json, jsonl, yaml, jsonpath=… or custom-columns=…"
        );
    }
    let client = args.read.connection.client().await?;
    let path = api_path("export", query, &format!("&format=jsonl&limit={}", args.limit));
    let request = http::Request::get(path).body(Vec::new())?;
    let stream = client.request_stream(request).await.map_err(|error| anyhow!("{}", explain_failure(None, &error)))?;
    let mut lines = std::pin::pin!(stream.lines());
    let (mut items, mut empty) = (Vec::new(), true);
    let mut out = io::stdout();
    while let Some(line) = lines.try_next().await.context("cannot read the objects")? {
        empty = false;
        match args.output {
            // JSON lines are streamed without buffering.
            Format::Jsonl => writeln!(out, "{line}")?,
            _ => items.push(serde_json::from_str::<Value>(&line).context("cannot decode an object")?),
        }
    }
    if !matches!(args.output, Format::Jsonl) {
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items});
        args.output.print(&mut out, &list, object_name)?;
    }
    out.flush()?;
    Ok(args.exit_code(empty, false))
}

impl SearchArgs {
    /// Parameters of a search in addition to its query.
    fn parameters(&self) -> String {
        let sums =
            if self.sum.is_empty() { String::new() } else { format!("&sums={}", percent_encode(&self.sum.join(","))) };
        format!("&limit={}{sums}", self.limit)
    }

    fn exit_code(&self, empty: bool, partial: bool) -> ExitCode {
        if empty && self.fail_on_empty { ExitCode::from(EXIT_EMPTY) } else { self.read.exit_code(partial) }
    }
}

/// Output format of hits.
struct PrintOptions<'f> {
    output: &'f Format,
    has_headers: bool,
    is_colored: bool,
}

/// `cluster/namespace/resource/name` of a hit.
fn hit_name(hit: &Value) -> String {
    let field = |name: &str| hit.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    [field("cluster"), field("namespace"), field("resource"), field("name")]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("/")
}

/// `cluster/namespace/Kind/name` of an object.
fn object_name(object: &Value) -> String {
    let text_at = |path: &str| object.pointer(path).and_then(Value::as_str).filter(|text| !text.is_empty());
    let cluster = text_at("/metadata/annotations/resource.karmada.io~1cached-from-cluster");
    let parts = [cluster, text_at("/metadata/namespace"), text_at("/kind"), text_at("/metadata/name")];
    parts.into_iter().flatten().collect::<Vec<_>>().join("/")
}

fn hits(response: &Value) -> &[Value] {
    response.get("hits").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn print(
    out: &mut impl Write,
    response: &Value,
    options: &PrintOptions<'_>,
    now: jiff::Timestamp,
) -> anyhow::Result<()> {
    match options.output {
        Format::Table | Format::Wide => {
            print_groups(out, response, options.has_headers)?;
            print_table(out, hits(response), options, now)?;
        }
        Format::Csv => {
            if options.has_headers {
                write_csv_line(out, &CSV_FIELDS.map(str::to_owned))?;
            }
            hits(response)
                .iter()
                .try_for_each(|hit| write_csv_line(out, &CSV_FIELDS.map(|field| csv_cell(hit, field))))?;
        }
        Format::Jsonl | Format::Name => {
            let list = json!({"items": hits(response)});
            options.output.print(out, &list, hit_name)?;
        }
        Format::CustomColumns(columns) => columns.write(out, hits(response), options.has_headers)?,
        format => format.print(out, response, hit_name)?,
    }
    Ok(())
}

/// Fields of a hit that are columns of CSV output.
const CSV_FIELDS: [&str; 11] =
    ["cluster", "apiVersion", "kind", "namespace", "name", "status", "ready", "restarts", "node", "images", "created"];

fn csv_cell(hit: &Value, field: &str) -> String {
    match hit.get(field) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        Some(value) => value.to_string(),
    }
}

/// Prints the number of hits per group of a `group:` query, and the sums of `--sum`.
fn print_groups(out: &mut impl Write, response: &Value, has_headers: bool) -> io::Result<()> {
    let Some(groups) = response.get("groups") else { return Ok(()) };
    let field = groups.get("field").and_then(Value::as_str).unwrap_or_default().to_uppercase();
    let values = groups.get("values").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    // A group whose sums are missing must not hide those of the others.
    let sums = values.iter().find_map(|group| group.get("sums")?.as_object());
    let summed: Vec<&String> = sums.into_iter().flat_map(|sums| sums.keys()).collect();
    let header = [field, "COUNT".to_owned()].into_iter().chain(summed.iter().map(|field| field.to_uppercase()));
    let header: Option<Vec<String>> = has_headers.then(|| header.collect());
    let row = |group: &Value| -> Vec<String> {
        let value = group.get("value").and_then(Value::as_str).unwrap_or_default().to_owned();
        let count = group.get("count").and_then(Value::as_u64).unwrap_or_default().to_string();
        let sum = |field: &&String| format_amount(field, group["sums"][field.as_str()].as_i64());
        [value, count].into_iter().chain(summed.iter().map(sum)).collect()
    };
    columns::write(out, &header.into_iter().chain(values.iter().map(row)).collect::<Vec<_>>())?;
    if let Some(more) = groups.get("more").and_then(Value::as_u64).filter(|more| *more > 0) {
        writeln!(out, "and {more} more")?;
    }
    if hits(response).is_empty() { Ok(()) } else { writeln!(out) }
}

/// Formats a sum; sums of CPU and memory become quantities. `None` is a sum that the server did not return.
fn format_amount(field: &str, amount: Option<i64>) -> String {
    let Some(amount) = amount else { return "<unknown>".to_owned() };
    match field.split_once('.') {
        Some(("cpu", _)) => format_cpu(amount),
        Some(("mem", _)) => format_memory(amount),
        _ => amount.to_string(),
    }
}

/// Prints the parsed query and its plan as a tree with hits and milliseconds.
fn print_explanation(out: &mut impl Write, response: &Value) -> io::Result<()> {
    let field = |name: &str| response.get(name).and_then(Value::as_str).unwrap_or_default();
    writeln!(out, "query: {}\nscope: {}\n", field("query"), field("asked"))?;
    let mut rows = vec![vec!["HITS".to_owned(), "MS".to_owned(), "PART".to_owned()]];
    add_plan_rows(response.get("plan").unwrap_or(&Value::Null), 0, &mut rows);
    columns::write(out, &rows)
}

fn add_plan_rows(step: &Value, depth: usize, rows: &mut Vec<Vec<String>>) {
    let cell = |field: &str| step.get(field).map_or_else(|| "<none>".to_owned(), ToString::to_string);
    let description = step.get("what").and_then(Value::as_str).unwrap_or_default();
    rows.push(vec![cell("hits"), cell("tookMs"), format!("{}{description}", "  ".repeat(depth))]);
    for part in step.get("parts").and_then(Value::as_array).into_iter().flatten() {
        add_plan_rows(part, depth + 1, rows);
    }
}

fn print_table(
    out: &mut impl Write,
    hits: &[Value],
    options: &PrintOptions<'_>,
    now: jiff::Timestamp,
) -> io::Result<()> {
    if hits.is_empty() {
        return Ok(());
    }
    let is_wide = matches!(options.output, Format::Wide);
    let headers = headers(is_wide);
    let mut widths = if options.is_colored { Widths::with_colors(&headers) } else { Widths::default() };
    let header = options.has_headers.then_some(headers);
    let rows: Vec<Vec<String>> = header.into_iter().chain(hits.iter().map(|hit| row(hit, is_wide, now))).collect();
    widths.write(out, &rows)
}

fn headers(is_wide: bool) -> Vec<String> {
    let mut names = vec!["CLUSTER", "KIND", "NAMESPACE", "NAME", "STATUS", "AGE"];
    if is_wide {
        names.extend(["READY", "RESTARTS", "NODE", "MATCHED"]);
    }
    names.into_iter().map(str::to_owned).collect()
}

fn row(hit: &Value, is_wide: bool, now: jiff::Timestamp) -> Vec<String> {
    let cell = |field: &str| match hit.get(field) {
        Some(Value::String(text)) if !text.is_empty() => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => "<none>".to_owned(),
    };
    let age = hit.get("created").and_then(Value::as_str).and_then(|t| t.parse::<jiff::Timestamp>().ok()).map_or_else(
        || "<unknown>".to_owned(),
        |t| crowsnest_apimachinery::printers::human_duration(now.as_second() - t.as_second()),
    );
    let mut cells = vec![cell("cluster"), cell("kind"), cell("namespace"), cell("name"), cell("status"), age];
    if is_wide {
        let matched = hit.get("matched").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let fields: Vec<&str> = matched.iter().filter_map(|m| m.get("field").and_then(Value::as_str)).collect();
        cells.extend([cell("ready"), cell("restarts"), cell("node"), fields.join(",")]);
    }
    cells
}

/// Prints notices, skipped clusters and omitted hits to standard error. Returns true if the result is partial.
pub(crate) fn print_warnings(err: &mut impl Write, response: &Value, query: &str) -> io::Result<bool> {
    let list = |field: &str| response.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    for notice in list("notices") {
        if let Some(message) = notice.get("message").and_then(Value::as_str) {
            writeln!(err, "note: {message}")?;
        }
    }
    let skipped = list("skipped");
    for cluster in &skipped {
        let field = |name: &str| cluster.get(name).and_then(Value::as_str).unwrap_or_default();
        let age = cluster.get("ageSeconds").and_then(Value::as_i64);
        let age = age
            .map(|a| format!(", shown as of {} ago", crowsnest_apimachinery::printers::human_duration(a)))
            .unwrap_or_default();
        writeln!(err, "warning: {}: {}{age}", field("cluster"), field("reason"))?;
    }
    let total = response.get("total").and_then(Value::as_u64).unwrap_or(0);
    let shown = hits(response).len();
    if total as usize > shown {
        writeln!(err, "showing {shown} of {total}; raise --limit or narrow the query")?;
    }
    if total == 0 && shown == 0 && response.get("plan").is_none() {
        writeln!(err, "nothing found for {query:?}")?;
        for wider in list("wider") {
            let text = wider.get("query").and_then(Value::as_str).unwrap_or_default();
            let total = wider.get("total").and_then(Value::as_u64).unwrap_or_default();
            writeln!(err, "{total} with fewer terms: crowsnest search '{text}'")?;
        }
        for suggestion in list("didYouMean") {
            if let Some(text) = suggestion.as_str() {
                writeln!(err, "did you mean: crowsnest search '{text}'")?;
            }
        }
    }
    Ok(!skipped.is_empty() || response.get("totalRelation").is_some_and(|relation| relation == "gte"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parse_args;
    use serde_json::json;

    fn response() -> Value {
        json!({"total": 2, "skipped": [{"cluster": "m2", "reason": "connection refused", "ageSeconds": 90}], "hits": [
            {"cluster": "m1", "kind": "Pod", "resource": "pods", "namespace": "default", "name": "web-0", "status": "Running",
             "ready": "1/1", "restarts": 0, "created": "2026-01-01T00:00:00Z", "matched": [{"field": "name"}]},
            {"cluster": "m1", "kind": "Node", "resource": "nodes", "name": "n1", "created": "2026-01-01T00:00:00Z", "matched": []}]})
    }

    fn print_response(response: &Value, output: &str, is_colored: bool) -> String {
        let output = Format::parse_for_hits(output).unwrap();
        let mut out = Vec::new();
        let options = PrintOptions { output: &output, has_headers: true, is_colored };
        print(&mut out, response, &options, "2026-01-01T01:00:00Z".parse().unwrap()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[rstest::rstest]
    #[case(
        "table",
        "CLUSTER   KIND   NAMESPACE   NAME    STATUS    AGE\nm1        Pod    default     web-0   Running   60m\nm1        Node   <none>      n1      <none>    60m\n"
    )]
    #[case("name", "m1/default/pods/web-0\nm1/nodes/n1\n")]
    #[case(
        "csv",
        "cluster,apiVersion,kind,namespace,name,status,ready,restarts,node,images,created\nm1,,Pod,default,web-0,Running,1/1,0,,,2026-01-01T00:00:00Z\nm1,,Node,,n1,,,,,,2026-01-01T00:00:00Z\n"
    )]
    #[case("custom-columns=WHO:.name,HOW:.status", "WHO     HOW\nweb-0   Running\nn1      <none>\n")]
    #[case("jsonpath={.hits[*].name}", "web-0 n1")]
    #[case("go-template={{range .hits}}{{.name}} {{end}}{{.total}}", "web-0 n1 2")]
    fn hits_are_printed(#[case] output: &str, #[case] expected: &str) {
        assert_eq!(print_response(&response(), output, false), expected);
    }

    #[test]
    fn documents_are_printed() {
        let lines = print_response(&response(), "jsonl", false);
        assert_eq!(lines.lines().count(), 2);
        assert_eq!(serde_json::from_str::<Value>(&print_response(&response(), "json", false)).unwrap(), response());
        assert!(print_response(&response(), "yaml", false).contains("- cluster: m1\n"));
        assert!(print_response(&response(), "table", true).contains("\u{1b}[32mRunning\u{1b}[0m   60m\n"));
    }

    #[test]
    fn groups_are_printed_first() {
        let mut response = response();
        response["groups"] = json!({"field": "kind", "values": [{"value": "Pod", "count": 2}, {"value": "Node", "count": 1}], "more": 1});
        response["hits"] = json!([]);
        assert_eq!(print_response(&response, "table", false), "KIND   COUNT\nPod    2\nNode   1\nand 1 more\n");
    }

    #[test]
    fn sums_are_printed_with_their_groups() {
        let group = |node: &str, count: u64, cpu: i64, memory: Option<i64>, restarts: i64| {
            let sums = json!({"cpu.req": cpu, "mem.req": memory, "restarts": restarts});
            json!({"value": node, "count": count, "sums": sums})
        };
        let without_sums = json!({"value": "n4", "count": 1});
        let values = [
            without_sums,
            group("n1", 5, 3250, Some(3 << 29), 7),
            group("n2", 1, 2000, Some(0), 0),
            group("n3", 1, 0, None, 0),
        ];
        let response = json!({"groups": {"field": "node", "values": values, "more": 0}, "hits": []});
        let expected = "NODE   COUNT   CPU.REQ     MEM.REQ     RESTARTS\nn4     1       <unknown>   <unknown>   <unknown>\n\
            n1     5       3250m       1536Mi      7\nn2     1       2           0           0\n\
            n3     1       0           <unknown>   0\n";
        assert_eq!(print_response(&response, "table", false), expected);
    }

    #[rstest::rstest]
    #[case("kind:pod group:node", "&limit=100")]
    #[case("kind:pod group:node --limit 0 --sum cpu.req,mem.req", "&limit=0&sums=cpu%2Ereq%2Cmem%2Ereq")]
    fn sums_are_requested(#[case] args: &str, #[case] expected: &str) {
        assert_eq!(parse_args::<SearchArgs>(args).unwrap().parameters(), expected);
    }

    #[test]
    fn plans_are_trees() {
        let leaf = json!({"what": "kind is \"pod\"", "hits": 3, "tookMs": 0.5});
        let response = json!({"query": "kind:pod x", "asked": "objects that are there",
            "plan": {"what": "all of", "hits": 2, "tookMs": 1.25, "parts": [leaf, {"what": "\"x\" anywhere", "tookMs": 0.0}]}});
        let mut out = Vec::new();
        print_explanation(&mut out, &response).unwrap();
        let expected = "query: kind:pod x\nscope: objects that are there\n\nHITS     MS     PART\n2        1.25   all of\n\
            3        0.5      kind is \"pod\"\n<none>   0.0      \"x\" anywhere\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn missing_results_are_reported() {
        let mut err = Vec::new();
        assert!(print_warnings(&mut err, &response(), "x").unwrap());
        assert_eq!(String::from_utf8(err).unwrap(), "warning: m2: connection refused, shown as of 90s ago\n");
    }
}
