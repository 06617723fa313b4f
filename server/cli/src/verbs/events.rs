//! `crowsnest events`: lists the events of all clusters from the cache, latest last; with `-w` it streams new ones.

mod watch;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use crowsnest_apimachinery::request::percent_encode;
use futures::{AsyncBufReadExt, TryStreamExt};
use serde_json::{Value, json};

use super::describe::render::{age, last_seen};
use super::get::is_broken_pipe;
use crate::clients::{self, explain_failure};
use crate::columns::Widths;
use crate::object::{SEARCH_API_PATH, text};
use crate::output::Format;
use crate::output::color::ColorArgs;
use crate::output::terminal;
use crate::pager;
use crate::partial::FleetReadArgs;

const CACHED_FROM: &str = "/metadata/annotations/resource.karmada.io~1cached-from-cluster";

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest events -n shop",
    "crowsnest events pod/web-0 -n shop",
    "crowsnest events -A --types Warning --since 15m",
    "crowsnest events -A reason:BackOff region:eu-west -o jsonl",
    "crowsnest events -A --types Warning -w",
])]
pub struct EventsArgs {
    /// KIND/NAME of the involved object, or a search query
    #[arg(value_name = "QUERY")]
    query: Vec<String>,
    /// Show the events of this object only, as `kubectl events --for`
    #[arg(long = "for", value_name = "KIND/NAME", conflicts_with = "query")]
    about: Option<String>,
    /// Namespace of the events [default: the namespace of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Show the events of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Member clusters, separated by commas [default: all]
    #[arg(short = 'C', long, visible_alias = "cluster", value_delimiter = ',', value_name = "CLUSTERS")]
    clusters: Vec<String>,
    /// Event types, separated by commas: Normal, Warning
    #[arg(long, value_delimiter = ',', value_name = "TYPES")]
    types: Vec<String>,
    /// Show events of this last period only, such as 90s, 15m, 2h or 7d
    #[arg(long, value_name = "DURATION")]
    since: Option<String>,
    /// Maximum number of events; the latest are shown
    #[arg(long, default_value_t = 500)]
    limit: usize,
    /// Watch for new events after listing
    #[arg(short, long)]
    watch: bool,
    /// Output format: table, json, jsonl, yaml, name, jsonpath=TEMPLATE, go-template=TEMPLATE,
    /// custom-columns=HEAD:PATH,…
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = Format::parse_for_hits)]
    output: Format,
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    color: ColorArgs,
    #[command(flatten)]
    read: FleetReadArgs,
}

impl EventsArgs {
    /// Builds the search query; without a namespace it covers all namespaces.
    fn search_query(&self, namespace: Option<&str>) -> String {
        let mut parts = vec!["kind:event".to_owned()];
        parts.extend(self.about.iter().map(|object| format!("about:{object}")));
        match self.query.as_slice() {
            [object] if is_object(object) => parts.push(format!("about:{object}")),
            words => parts.extend(words.iter().cloned()),
        }
        parts.extend(namespace.map(|namespace| format!("namespace:={namespace}")));
        let lists = [("cluster", &self.clusters), ("type", &self.types)];
        parts.extend(
            lists
                .into_iter()
                .filter(|(_, list)| !list.is_empty())
                .map(|(name, list)| format!("{name}:{}", list.join(","))),
        );
        parts.extend(self.since.iter().map(|since| format!("last:<{since}")));
        // The sort order makes the limit drop the oldest events.
        parts.push("sort:-last".to_owned());
        parts.join(" ")
    }
}

/// True for `pod/web-0`, false for parts of a query.
fn is_object(text: &str) -> bool {
    let is_word =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'));
    text.split_once('/').is_some_and(|(kind, name)| is_word(kind) && is_word(name))
}

pub(crate) async fn run(args: EventsArgs) -> anyhow::Result<ExitCode> {
    if matches!(args.output, Format::Csv) {
        bail!("events has no output format csv; use `crowsnest search -o csv kind:event`");
    }
    let config = args.read.connection.load_config().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let query = args.search_query((!args.all_namespaces).then_some(namespace.as_str()));
    let client = kube::Client::try_from(config)?;
    let outcome = match args.watch {
        true => watch::follow(&args, &client, &query).await,
        false => list_events(&args, &client, &query).await,
    };
    match outcome {
        // The reader closed the pipe.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        outcome => outcome,
    }
}

async fn list_events(args: &EventsArgs, client: &kube::Client, query: &str) -> anyhow::Result<ExitCode> {
    let mut events = export(client, query, args.limit).await?;
    events.sort_by_cached_key(last_seen);
    let partial = print_warnings(client, query, events.len()).await?;
    pager::begin();
    print(args, &events)?;
    Ok(args.read.exit_code(partial))
}

async fn export(client: &kube::Client, query: &str, limit: usize) -> anyhow::Result<Vec<Value>> {
    let path = format!("{SEARCH_API_PATH}/export?format=jsonl&limit={limit}&q={}", percent_encode(query));
    let request = http::Request::get(path).body(Vec::new())?;
    let stream = client.request_stream(request).await.map_err(|error| anyhow!("{}", explain_failure(None, &error)))?;
    let mut lines = std::pin::pin!(stream.lines());
    let mut events = Vec::new();
    while let Some(line) = lines.try_next().await.context("cannot read the events")? {
        events.push(serde_json::from_str(&line).context("cannot decode an event")?);
    }
    Ok(events)
}

/// Prints notices, skipped clusters and omitted events to standard error. Returns true if clusters were skipped.
async fn print_warnings(client: &kube::Client, query: &str, shown: usize) -> anyhow::Result<bool> {
    let path = format!("{SEARCH_API_PATH}/count?q={}", percent_encode(query));
    let response = clients::get_or_explain(client, &path).await?;
    let list = |field: &str| response.get(field).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut err = terminal::stderr();
    for notice in list("notices") {
        writeln!(err, "note: {}", text(notice, "/message"))?;
    }
    for cluster in list("skipped") {
        writeln!(err, "warning: {}: {}", text(cluster, "/cluster"), text(cluster, "/reason"))?;
    }
    let total = response.get("total").and_then(Value::as_u64).unwrap_or_default();
    match shown {
        0 => writeln!(err, "No events found for {query:?}")?,
        shown if total > shown as u64 => {
            writeln!(err, "showing the latest {shown} of {total}; raise --limit or narrow the query")?
        }
        _ => {}
    }
    Ok(!list("skipped").is_empty())
}

fn print(args: &EventsArgs, events: &[Value]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match &args.output {
        Format::Table | Format::Wide if events.is_empty() => {}
        Format::Table | Format::Wide => {
            let headers = headers(args.all_namespaces);
            let mut widths = column_widths(args, &headers);
            let now = jiff::Timestamp::now();
            let rows = events.iter().map(|event| row(event, args.all_namespaces, now));
            let rows: Vec<Vec<String>> = (!args.no_headers).then_some(headers).into_iter().chain(rows).collect();
            widths.write(&mut out, &rows)?;
        }
        format => {
            let list =
                json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": events});
            let name = |event: &Value| format!("{}/events/{}", text(event, CACHED_FROM), text(event, "/metadata/name"));
            format.print(&mut out, &list, name)?;
        }
    }
    Ok(out.flush()?)
}

fn column_widths(args: &EventsArgs, headers: &[String]) -> Widths {
    let widths = if args.color.is_enabled() { Widths::with_colors(headers) } else { Widths::default() };
    widths.with_max_width(pager::width())
}

fn headers(has_namespace: bool) -> Vec<String> {
    let headers = ["LAST-SEEN", "TYPE", "REASON", "CLUSTER", "OBJECT", "MESSAGE"].map(str::to_owned);
    has_namespace.then(|| "NAMESPACE".to_owned()).into_iter().chain(headers).collect()
}

fn row(event: &Value, has_namespace: bool, now: jiff::Timestamp) -> Vec<String> {
    let or_none = |text: &str| if text.is_empty() { "<none>".to_owned() } else { text.to_owned() };
    let kind = text(event, "/involvedObject/kind").to_lowercase();
    let object = format!("{kind}/{}", text(event, "/involvedObject/name"));
    let message = text(event, "/message").trim().replace('\n', " ");
    let cells = [
        age(event, now),
        or_none(text(event, "/type")),
        or_none(text(event, "/reason")),
        or_none(text(event, CACHED_FROM)),
        object,
        message,
    ];
    has_namespace.then(|| text(event, "/metadata/namespace").to_owned()).into_iter().chain(cells).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parse_args;

    #[rstest::rstest]
    #[case("", "kind:event namespace:=shop sort:-last")]
    #[case("pod/web-0", "kind:event about:pod/web-0 namespace:=shop sort:-last")]
    #[case("--for pod/web-0", "kind:event about:pod/web-0 namespace:=shop sort:-last")]
    #[case("reason:BackOff region:eu", "kind:event reason:BackOff region:eu namespace:=shop sort:-last")]
    #[case("name:/a/b/", "kind:event name:/a/b/ namespace:=shop sort:-last")]
    #[case(
        "-C m1,m2 --types Warning --since 15m",
        "kind:event namespace:=shop cluster:m1,m2 type:Warning last:<15m sort:-last"
    )]
    fn arguments_become_a_query(#[case] line: &str, #[case] expected: &str) {
        let args: EventsArgs = parse_args(line).unwrap();
        assert_eq!(args.search_query(Some("shop")), expected);
    }

    #[test]
    fn events_are_rows() {
        let event = json!({"type": "Warning", "reason": "BackOff", "message": "Back-off\nagain", "count": 2,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:05:00Z",
            "involvedObject": {"kind": "Pod", "name": "web-0"},
            "metadata": {"namespace": "shop", "annotations": {"resource.karmada.io/cached-from-cluster": "m1"}}});
        let row = row(&event, true, "2026-01-01T00:10:00Z".parse().unwrap());
        let expected = ["shop", "5m (x2 over 10m)", "Warning", "BackOff", "m1", "pod/web-0", "Back-off again"];
        assert_eq!(row, expected);
    }
}
