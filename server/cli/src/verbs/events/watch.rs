//! `events -w`: lists events, then streams new ones. A search stream reports which events changed; these are read in
//! batches and printed once per resourceVersion.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use crowsnest_apimachinery::request::percent_encoded;
use futures::TryStreamExt;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::{CACHED_FROM, EventsArgs, export, heads, row, seen, widths};
use crate::columns::Widths;
use crate::event_stream::{self as events, Events, Lines};
use crate::object::{SEARCH, text};
use crate::output::terminal;
use crate::verbs::search::print_warnings;

/// Delay to collect changes for one read, and the maximum number of events per read.
const TOGETHER: Duration = Duration::from_millis(250);
const MOST: usize = 50;
/// Number of reads of an event that is not indexed yet; changes are reported before they are searchable.
const TRIES: u8 = 12;

/// State of the watch.
struct Watched<'a> {
    args: &'a EventsArgs,
    client: &'a kube::Client,
    query: &'a str,
    /// The resourceVersion printed last of each event, by UID.
    known: BTreeMap<String, String>,
    widths: Widths,
    head: bool,
    first: bool,
}

pub(super) async fn follow(args: &EventsArgs, client: &kube::Client, query: &str) -> anyhow::Result<ExitCode> {
    let heads = heads(args.all_namespaces);
    let widths = widths(args, &heads);
    let (known, head, first) = (BTreeMap::new(), !args.no_headers, true);
    let mut watched = Watched { args, client, query, known, widths, head, first };
    // The stream itself returns no hits; events are read separately.
    let path = format!("{SEARCH}/query?q={}&limit=0&watch=true", percent_encoded(query));
    events::follow(client, &path, async |lines| watched.read(lines).await).await
}

/// Action for a message of the search stream.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Nothing,
    /// The initial search is complete; print all events that were not printed.
    All,
    Of(String),
    Gone(String),
    /// The stream dropped changes.
    Behind,
}

/// Decodes a message of the search stream. Pure.
fn news(name: &str, data: &Value) -> anyhow::Result<News> {
    let uid = || text(data, "/uid").to_owned();
    match name {
        "done" => Ok(News::All),
        "changed" => Ok(News::Of(uid())),
        "left" => Ok(News::Gone(uid())),
        "behind" => Ok(News::Behind),
        "error" => Err(anyhow!("{}", data.get("message").and_then(Value::as_str).unwrap_or("the search ended"))),
        _ => Ok(News::Nothing),
    }
}

/// UIDs of events to read, with the number of reads so far.
type Waiting = BTreeMap<String, u8>;

/// Removes events that were printed or read `TRIES` times. Pure.
fn answered(waiting: &mut Waiting, uids: &[String], printed: &[Value]) {
    for event in printed {
        waiting.remove(text(event, "/metadata/uid"));
    }
    for uid in uids {
        if let Some(tries) = waiting.get_mut(uid) {
            *tries += 1;
        }
    }
    waiting.retain(|_, tries| *tries < TRIES);
}

impl Watched<'_> {
    /// Reads one connection to its end; true if the initial search was complete.
    async fn read(&mut self, mut lines: Lines) -> anyhow::Result<bool> {
        let mut events = Events::default();
        let (mut waiting, mut until) = (Waiting::new(), None);
        let mut whole = false;
        loop {
            if until.is_some_and(|until| until <= Instant::now()) {
                self.print_some(&mut waiting).await?;
                until = (!waiting.is_empty()).then(|| Instant::now() + TOGETHER);
            }
            let line = match until {
                None => lines.try_next().await,
                Some(until) => match timeout_at(until, lines.try_next()).await {
                    Ok(line) => line,
                    Err(_) => continue,
                },
            };
            let Ok(Some(line)) = line else { return Ok(whole) };
            let Some((name, data)) = events.line(&line) else { continue };
            let data: Value = serde_json::from_str(&data).with_context(|| format!("cannot decode an event {name}"))?;
            if matches!(name.as_str(), "skipped" | "notices") && !whole {
                print_warnings(&mut terminal::stderr(), &json!({name: data, "total": 1, "hits": [1]}), self.query)?;
                continue;
            }
            match news(&name, &data)? {
                News::Nothing => {}
                News::All => {
                    whole = true;
                    let events = export(self.client, self.query, self.args.limit).await?;
                    self.print(events)?;
                }
                News::Of(uid) => {
                    waiting.insert(uid, 0);
                    until.get_or_insert_with(|| Instant::now() + TOGETHER);
                }
                News::Gone(uid) => drop(self.known.remove(&uid)),
                News::Behind => return Ok(true),
            }
        }
    }

    /// Reads and prints the next batch of changed events.
    async fn print_some(&mut self, waiting: &mut Waiting) -> anyhow::Result<()> {
        let uids: Vec<String> = waiting.keys().take(MOST).cloned().collect();
        let query = format!("kind:event uid:{}", uids.join(","));
        let events = export(self.client, &query, uids.len().max(1)).await?;
        let events = self.unknown(events);
        self.write(&mut terminal::stdout(), &events, jiff::Timestamp::now())?;
        answered(waiting, &uids, &events);
        Ok(())
    }

    fn print(&mut self, events: Vec<Value>) -> anyhow::Result<()> {
        let events = self.unknown(events);
        self.write(&mut terminal::stdout(), &events, jiff::Timestamp::now())
    }

    /// Events not printed in this version yet, latest last.
    fn unknown(&mut self, mut events: Vec<Value>) -> Vec<Value> {
        events.retain(|event| {
            let version = text(event, "/metadata/resourceVersion").to_owned();
            let before = self.known.insert(text(event, "/metadata/uid").to_owned(), version.clone());
            before.is_none_or(|before| before != version)
        });
        events.sort_by_cached_key(seen);
        events
    }

    fn write(&mut self, out: &mut impl Write, events: &[Value], now: jiff::Timestamp) -> anyhow::Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        if self.args.output.is_table() {
            let namespaces = self.args.all_namespaces;
            let head = std::mem::take(&mut self.head).then(|| heads(namespaces));
            let rows = events.iter().map(|event| row(event, namespaces, now));
            self.widths.write(out, &head.into_iter().chain(rows).collect::<Vec<_>>())?;
        } else {
            for event in events {
                let head = std::mem::take(&mut self.first) && !self.args.no_headers;
                let name =
                    |event: &Value| format!("{}/events/{}", text(event, CACHED_FROM), text(event, "/metadata/name"));
                self.args.output.next(out, event, head, name)?;
            }
        }
        Ok(out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct TestArgs {
        #[command(flatten)]
        events: EventsArgs,
    }

    #[rstest::rstest]
    #[case("done", json!({"total": 2}), News::All)]
    #[case("changed", json!({"uid": "1"}), News::Of("1".to_owned()))]
    #[case("left", json!({"uid": "1"}), News::Gone("1".to_owned()))]
    #[case("behind", json!({}), News::Behind)]
    #[case("counts", json!({"total": 3}), News::Nothing)]
    fn stream_messages_are_decoded(#[case] name: &str, #[case] data: Value, #[case] expected: News) {
        assert_eq!(news(name, &data).unwrap(), expected);
    }

    #[test]
    fn unindexed_events_are_read_again() {
        let uids = |uids: &[&str]| uids.iter().map(|uid| (*uid).to_owned()).collect::<Vec<_>>();
        let mut waiting: Waiting = uids(&["1", "2", "3"]).into_iter().map(|uid| (uid, 0)).collect();
        answered(&mut waiting, &uids(&["1", "2"]), &[json!({"metadata": {"uid": "1"}})]);
        assert_eq!(waiting.iter().map(|(uid, tries)| (uid.as_str(), *tries)).collect::<Vec<_>>(), [("2", 1), ("3", 0)]);
        (1..TRIES).for_each(|_| answered(&mut waiting, &uids(&["2"]), &[]));
        assert_eq!(waiting.keys().collect::<Vec<_>>(), ["3"]);
    }

    #[tokio::test]
    async fn events_are_printed_once_per_version() {
        let args = TestArgs::parse_from(["events", "-A", "-w"]).events;
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(config).unwrap();
        let (known, widths) = (BTreeMap::new(), Widths::default());
        let mut watched = Watched { args: &args, client: &client, query: "", known, widths, head: true, first: true };
        let event = |uid: &str, version: &str, minute: u8| {
            json!({"type": "Warning", "reason": "BackOff", "message": "again", "count": 1,
                "lastTimestamp": format!("2026-01-01T00:0{minute}:00Z"), "involvedObject": {"kind": "Pod", "name": "web"},
                "metadata": {"uid": uid, "namespace": "shop", "resourceVersion": version,
                    "annotations": {"resource.karmada.io/cached-from-cluster": "m1"}}})
        };
        let mut out = Vec::new();
        let now = "2026-01-01T00:09:00Z".parse().unwrap();
        for batch in [vec![event("2", "2", 5), event("1", "1", 4)], vec![event("1", "1", 4)], vec![event("1", "3", 8)]]
        {
            let events = watched.unknown(batch);
            watched.write(&mut out, &events, now).unwrap();
        }
        let out = String::from_utf8(out).unwrap();
        let ages: Vec<&str> = out.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(ages, ["LAST-SEEN", "5m", "4m", "60s"], "{out}");
    }
}
