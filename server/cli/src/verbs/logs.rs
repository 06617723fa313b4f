//! `crowsnest logs`: prints the logs of the pods that a query selects in all clusters. Log lines go to standard output,
//! notes and warnings to standard error.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use crowsnest_apimachinery::request::percent_encode;
use futures::{AsyncBufRead, AsyncBufReadExt, TryStreamExt};
use regex::Regex;
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use super::get::is_broken_pipe;
use crate::clients::explain_failure;
use crate::event_stream::EventParser;
use crate::output::Format;
use crate::output::color::ColorArgs;
use crate::output::terminal;
use crate::partial::FleetReadArgs;
use crate::workload::Workload;

/// ANSI foreground colours that are readable on light and dark backgrounds.
const COLORS: [u8; 12] = [31, 32, 33, 34, 35, 36, 91, 92, 93, 94, 95, 96];

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// Each line with its source
    Text,
    /// Lines only
    Raw,
    /// One JSON object per line
    Json,
    /// One JSON object per line, with the fields of lines that are JSON themselves
    Extjson,
}

#[derive(Debug, Args)]
#[command(
    mut_arg("allow_partial", |arg| arg.alias("ignore-errors")),
    after_help = examples![
        "crowsnest logs -n shop -l app=checkout -f",
        "crowsnest logs -n shop deploy/checkout -f",
        "crowsnest logs 'status:CrashLoopBackOff' --previous",
        "crowsnest logs image:nginx --cluster member1 --since 15m --include ' 50[0-9] '",
    ]
)]
pub struct LogsArgs {
    /// Search query for the pods (words are joined by spaces), or TYPE/NAME for the pods of a workload
    #[arg(value_name = "QUERY")]
    query: Vec<String>,
    /// Regular expression for container names
    #[arg(short, long, value_name = "REGEX")]
    container: Option<String>,
    /// Regular expression for pod names
    #[arg(long, value_name = "REGEX")]
    pod: Option<String>,
    /// Namespaces of the pods, separated by commas; may be repeated [default: all]
    #[arg(short, long, value_delimiter = ',')]
    namespace: Vec<String>,
    /// Label selector for the pods
    #[arg(short = 'l', long, visible_alias = "labels")]
    selector: Option<String>,
    /// Member clusters of the pods, separated by commas; may be repeated [default: all]
    #[arg(short = 'C', long, visible_alias = "clusters", value_delimiter = ',')]
    cluster: Vec<String>,
    /// Follow the logs, including those of pods that start later
    #[arg(short, long)]
    follow: bool,
    /// Show lines newer than a duration, such as 90s, 15m, 2h30m or 7d
    #[arg(long, value_name = "DURATION")]
    since: Option<String>,
    /// Show lines newer than a time, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "since")]
    since_time: Option<String>,
    /// Lines to show from the end of each container's log; -1 shows all [default: 10, or all with --since or
    /// --since-time]
    #[arg(long, allow_hyphen_values = true)]
    tail: Option<i64>,
    /// Show only lines that match this regular expression; may be repeated to match any of several
    #[arg(short, long, value_name = "REGEX")]
    include: Vec<String>,
    /// Hide lines that match this regular expression; may be repeated to match any of several
    #[arg(short, long, value_name = "REGEX")]
    exclude: Vec<String>,
    /// Highlight matches of this regular expression in coloured output; may be repeated
    #[arg(short = 'H', long, value_name = "REGEX")]
    highlight: Vec<Regex>,
    /// Show the logs of the previous run of each container
    #[arg(short, long, conflicts_with = "follow")]
    previous: bool,
    /// Include init containers
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    init_containers: bool,
    /// Include ephemeral containers
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    ephemeral_containers: bool,
    /// Show the timestamp of each line
    #[arg(long)]
    timestamps: bool,
    /// Print lines without their source
    #[arg(long)]
    no_prefix: bool,
    #[command(flatten)]
    color: ColorArgs,
    #[arg(short, long, value_enum, default_value = "text", value_name = "FORMAT")]
    output: Output,
    /// Go template for each line, over the fields of -o json, such as {{.pod}} {{.text}}
    #[arg(long, value_name = "TEMPLATE", value_parser = parse_template, conflicts_with = "output")]
    template: Option<Format>,
    /// Maximum number of concurrent log streams, up to 500
    #[arg(long, default_value_t = 100)]
    max_log_requests: usize,
    /// Maximum number of bytes to print of each log; lines are not cut
    #[arg(long, value_name = "BYTES", hide_short_help = true)]
    limit_bytes: Option<usize>,
    /// Accepted for compatibility with kubectl; all containers are always included
    #[arg(long, hide = true)]
    all_containers: bool,
    /// Accepted for compatibility with kubectl; all pods are always included
    #[arg(long, hide = true)]
    all_pods: bool,
    /// Accepted for compatibility with kubectl; --follow includes pods that start later
    #[arg(long, hide = true)]
    pod_running_timeout: Option<String>,
    /// Rejected; kubectl's flag of this name
    #[arg(long, hide = true)]
    insecure_skip_tls_verify_backend: bool,
    /// Accepted for compatibility with kubectl; the prefix is the default
    #[arg(long, hide = true, conflicts_with = "no_prefix")]
    prefix: bool,
    #[command(flatten)]
    read: FleetReadArgs,
}

fn parse_template(text: &str) -> Result<Format, String> {
    Format::parse_for_object(&format!("go-template={text}"))
}

impl LogsArgs {
    /// The search query; a single `TYPE/NAME` selects the pods of that workload.
    fn search_query(&self) -> String {
        match self.query.as_slice() {
            [one] => Workload::parse_with_type(one).map_or_else(|| one.clone(), |workload| workload.pods_query()),
            words => words.join(" "),
        }
    }

    /// The query string of the logs API.
    fn query_string(&self) -> String {
        let mut query = String::new();
        let mut set = |name: &str, value: &str| {
            let separator = if query.is_empty() { "" } else { "&" };
            query.push_str(&format!("{separator}{name}={}", percent_encode(value)));
        };
        set("q", &self.search_query());
        set("maxStreams", &self.max_log_requests.to_string());
        let parameters = [
            ("container", self.container.as_slice()),
            ("pod", self.pod.as_slice()),
            ("labelSelector", self.selector.as_slice()),
            ("since", self.since.as_slice()),
            ("sinceTime", self.since_time.as_slice()),
            ("namespace", self.namespace.as_slice()),
            ("cluster", self.cluster.as_slice()),
            ("include", self.include.as_slice()),
            ("exclude", self.exclude.as_slice()),
        ];
        for (name, values) in parameters {
            values.iter().for_each(|value| set(name, value));
        }
        self.tail.iter().for_each(|tail| set("tail", &tail.to_string()));
        let flags = [
            ("follow", self.follow, false),
            ("previous", self.previous, false),
            ("init", self.init_containers, true),
            ("ephemeral", self.ephemeral_containers, true),
        ];
        for (name, value, _) in flags.into_iter().filter(|(_, value, default)| value != default) {
            set(name, &value.to_string());
        }
        query
    }

    fn printer(&self) -> Printer {
        let is_colored = self.color.is_enabled();
        let prefix = !self.no_prefix && self.output != Output::Raw;
        Printer {
            output: self.output,
            template: self.template.clone(),
            is_colored,
            prefix,
            timestamps: self.timestamps,
            follow: self.follow,
            highlight: self.highlight.clone(),
            limit_bytes: self.limit_bytes,
            printed_bytes: BTreeMap::new(),
            is_partial: false,
            is_done: false,
        }
    }
}

pub(crate) async fn run(args: LogsArgs) -> anyhow::Result<ExitCode> {
    if args.insecure_skip_tls_verify_backend {
        bail!("--insecure-skip-tls-verify-backend is not supported; each member's API server verifies its kubelets");
    }
    let client = args.read.connection.client().await?;
    let path = format!("/apis/search.crowsnest.io/v1alpha1/logs?{}", args.query_string());
    let request = http::Request::get(path).header(http::header::ACCEPT, "text/event-stream").body(Vec::new())?;
    let stream = client.request_stream(request).await.map_err(|error| anyhow!("{}", explain_failure(None, &error)))?;
    let mut printer = args.printer();
    match print(stream, &mut printer).await {
        Ok(()) => {}
        // The reader closed the pipe.
        Err(error) if is_broken_pipe(&error) => return Ok(ExitCode::SUCCESS),
        Err(error) => return Err(error),
    }
    if !printer.is_done {
        bail!("the connection was lost; later lines are missing, repeat the command with --since");
    }
    Ok(args.read.exit_code(printer.is_partial))
}

async fn print(stream: impl AsyncBufRead, printer: &mut Printer) -> anyhow::Result<()> {
    let mut lines = std::pin::pin!(stream.lines());
    let mut parser = EventParser::default();
    while let Some(line) = lines.try_next().await.context("cannot read the logs")? {
        if let Some((name, data)) = parser.push_line(&line) {
            let data: Value = serde_json::from_str(&data).with_context(|| format!("cannot decode an event {name}"))?;
            printer.print(&mut io::stdout().lock(), &mut terminal::stderr(), &name, &data)?;
        }
    }
    Ok(())
}

struct Printer {
    output: Output,
    template: Option<Format>,
    is_colored: bool,
    prefix: bool,
    timestamps: bool,
    follow: bool,
    highlight: Vec<Regex>,
    /// Maximum number of bytes to print of each log, and the number printed so far.
    limit_bytes: Option<usize>,
    printed_bytes: BTreeMap<String, usize>,
    /// True if logs or clusters are missing.
    is_partial: bool,
    is_done: bool,
}

impl Printer {
    fn print(&mut self, out: &mut impl Write, err: &mut impl Write, name: &str, data: &Value) -> anyhow::Result<()> {
        let text = |data: &Value, field: &str| data.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        match name {
            "line" if !self.is_within_limit(data) => {}
            "line" => match (&self.template, self.output) {
                (Some(template), _) => {
                    template.print(out, data, source_name)?;
                    writeln!(out)?;
                }
                (None, Output::Json) => writeln!(out, "{data}")?,
                (None, Output::Extjson) => writeln!(out, "{}", parse_json_line(data))?,
                (None, Output::Text | Output::Raw) => self.print_line(out, data)?,
            },
            "joined" if self.follow => writeln!(err, "+ {}", source_name(data))?,
            "left" => writeln!(err, "- {}: {}", source_name(data), text(data, "why"))?,
            "refused" => {
                self.is_partial = true;
                writeln!(err, "warning: {}: {}", source_name(data), text(data, "message"))?;
            }
            "skipped" => {
                for cluster in data.as_array().into_iter().flatten() {
                    self.is_partial = true;
                    let age = cluster.get("ageSeconds").and_then(Value::as_i64);
                    let age =
                        age.map(|age| format!(", using its pods of {} ago", human_duration(age))).unwrap_or_default();
                    writeln!(err, "warning: {}: {}{age}", text(cluster, "cluster"), text(cluster, "reason"))?;
                }
            }
            "notices" => {
                for notice in data.as_array().into_iter().flatten() {
                    writeln!(err, "note: {}", text(notice, "message"))?;
                }
            }
            "error" => bail!("{}", text(data, "message")),
            "done" => {
                self.is_done = true;
                if data.get("why").is_some() {
                    writeln!(err, "{}", text(data, "why"))?;
                }
                if data.get("logs").and_then(Value::as_u64) == Some(0) {
                    writeln!(err, "no pods found")?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Counts the bytes of a line. Returns true while its log is within the byte limit.
    fn is_within_limit(&mut self, data: &Value) -> bool {
        let Some(limit) = self.limit_bytes else { return true };
        let printed_bytes = self.printed_bytes.entry(source_name(data)).or_default();
        *printed_bytes += data.get("text").and_then(Value::as_str).map_or(0, str::len) + 1;
        *printed_bytes <= limit
    }

    fn print_line(&self, out: &mut impl Write, data: &Value) -> io::Result<()> {
        let field = |name: &str| data.get(name).and_then(Value::as_str).unwrap_or_default();
        if self.prefix && self.is_colored {
            write!(
                out,
                "\x1b[{}m{}\x1b[0m | ",
                pod_color(field("cluster"), field("namespace"), field("pod")),
                source_name(data)
            )?;
        } else if self.prefix {
            write!(out, "{} | ", source_name(data))?;
        }
        if self.timestamps && !field("time").is_empty() {
            write!(out, "{} ", field("time"))?;
        }
        let cut = if data.get("cut").is_some() { " [cut]" } else { "" };
        match self.is_colored && !self.highlight.is_empty() {
            true => writeln!(out, "{}{cut}", highlight_matches(field("text"), &self.highlight)),
            false => writeln!(out, "{}{cut}", field("text")),
        }
    }
}

/// Shows matches in reverse video; overlapping matches are merged.
fn highlight_matches(text: &str, all: &[Regex]) -> String {
    let found = all.iter().flat_map(|pattern| pattern.find_iter(text)).map(|found| (found.start(), found.end()));
    let mut found: Vec<(usize, usize)> = found.filter(|(from, to)| from < to).collect();
    found.sort_unstable();
    let (mut line, mut at) = (String::new(), 0);
    for (from, to) in found {
        let from = from.max(at);
        if from < to {
            line.push_str(&format!("{}\x1b[7m{}\x1b[27m", &text[at..from], &text[from..to]));
            at = to;
        }
    }
    line + &text[at..]
}

/// Replaces a line that is JSON by its value.
fn parse_json_line(data: &Value) -> Value {
    let mut data = data.clone();
    if let Some(value) = data["text"].as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
        data["text"] = value;
    }
    data
}

fn source_name(data: &Value) -> String {
    let field = |name: &str| data.get(name).and_then(Value::as_str).unwrap_or_default();
    format!("{} {}/{} {}", field("cluster"), field("namespace"), field("pod"), field("container"))
}

/// The colour of a pod, derived from its cluster, namespace and name.
fn pod_color(cluster: &str, namespace: &str, pod: &str) -> u8 {
    let mut hash = Xxh3::new();
    for part in [cluster, namespace, pod] {
        hash.write(part.as_bytes());
        hash.write_u8(b'/');
    }
    let nth = hash.finish() % COLORS.len() as u64;
    usize::try_from(nth).ok().and_then(|nth| COLORS.get(nth)).copied().unwrap_or(COLORS[0])
}

fn human_duration(seconds: i64) -> String {
    crowsnest_apimachinery::printers::human_duration(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parse_args;
    use serde_json::json;

    fn args(line: &str) -> LogsArgs {
        parse_args(line).unwrap()
    }

    #[rstest::rstest]
    #[case("", "q=&maxStreams=100")]
    #[case("deploy/web -n shop", "q=kind%3Adeployment%20name%3A%3Dweb%20select%3Apod&maxStreams=100&namespace=shop")]
    #[case("uses:secret/db", "q=uses%3Asecret%2Fdb&maxStreams=100")]
    #[case(
        "kind:pod web -n a -n b -l app=x --cluster m1 -f --tail -1 --init-containers=false",
        "q=kind%3Apod%20web&maxStreams=100&labelSelector=app%3Dx&namespace=a&namespace=b&cluster=m1&tail=%2D1&follow=true&init=false"
    )]
    #[case("-C m1,m2 -i a -e c", "q=&maxStreams=100&cluster=m1&cluster=m2&include=a&exclude=c")]
    #[case("--include a --include b --exclude c -p", "q=&maxStreams=100&include=a&include=b&exclude=c&previous=true")]
    fn arguments_become_parameters(#[case] line: &str, #[case] expected: &str) {
        assert_eq!(args(line).query_string(), expected);
    }

    #[rstest::rstest]
    #[case("", false)]
    #[case("--allow-partial", true)]
    #[case("--ignore-errors", true)]
    fn missing_logs_are_allowed(#[case] line: &str, #[case] expected: bool) {
        assert_eq!(args(line).read.allow_partial, expected);
    }

    fn print_events(line: &str, events: &[(&str, Value)]) -> (String, String, bool) {
        let (mut out, mut err, mut printer) = (Vec::new(), Vec::new(), args(line).printer());
        for (name, data) in events {
            printer.print(&mut out, &mut err, name, data).unwrap();
        }
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), printer.is_partial)
    }

    fn log_event(more: Value) -> Value {
        let mut data = json!({"cluster": "m1", "namespace": "shop", "pod": "web-0", "container": "web"});
        data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        data
    }

    #[rstest::rstest]
    #[case::plain("", "m1 shop/web-0 web | hi [cut]\n")]
    #[case::raw("-o raw", "hi [cut]\n")]
    #[case::template("--template {{.pod}}:{{.text}}", "web-0:hi\n")]
    #[case::bare("--no-prefix --timestamps", "2026-01-01T00:00:00Z hi [cut]\n")]
    #[case::highlighted("--color always --no-prefix -H h -H i$", "\u{1b}[7mh\u{1b}[27m\u{1b}[7mi\u{1b}[27m [cut]\n")]
    #[case::colored("--color always", "\u{1b}[COLOURmm1 shop/web-0 web\u{1b}[0m | hi [cut]\n")]
    fn lines_are_printed(#[case] line: &str, #[case] expected: &str) {
        let event = log_event(json!({"text": "hi", "time": "2026-01-01T00:00:00Z", "cut": true}));
        let expected = expected.replace("COLOUR", &pod_color("m1", "shop", "web-0").to_string());
        assert_eq!(print_events(line, &[("line", event)]), (expected, String::new(), false));
    }

    #[test]
    fn json_lines_are_parsed() {
        let (out, _, _) = print_events("-o extjson", &[("line", log_event(json!({"text": "{\"level\": \"info\"}"})))]);
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["text"], json!({"level": "info"}));
        let (out, _, _) = print_events("-o extjson", &[("line", log_event(json!({"text": "hi"})))]);
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["text"], "hi");
    }

    #[test]
    fn missing_logs_are_reported() {
        let events = [
            ("skipped", json!([{"cluster": "m2", "reason": "connection refused", "ageSeconds": 90}])),
            ("joined", log_event(json!({}))),
            ("refused", log_event(json!({"code": 403, "message": "forbidden"}))),
            ("left", log_event(json!({"why": "it is gone"}))),
            ("done", json!({"lines": 0, "logs": 1, "refused": 1})),
        ];
        let expected = "warning: m2: connection refused, using its pods of 90s ago\n+ m1 shop/web-0 web\n\
            warning: m1 shop/web-0 web: forbidden\n- m1 shop/web-0 web: it is gone\n";
        assert_eq!(print_events("-f", &events), (String::new(), expected.to_owned(), true));
    }

    #[test]
    fn a_pod_keeps_its_colour() {
        let colours: std::collections::BTreeSet<u8> =
            (0..50).map(|nth| pod_color("m1", "shop", &format!("web-{nth}"))).collect();
        assert!(colours.len() > COLORS.len() / 2);
        assert_eq!(pod_color("m1", "shop", "web-0"), pod_color("m1", "shop", "web-0"));
    }
}
