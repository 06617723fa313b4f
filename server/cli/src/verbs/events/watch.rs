//! `events -w`: lists events, then streams new ones. A search stream reports which events changed; these are read in
//! batches and printed once per resourceVersion.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use crowsnest_apimachinery::request::percent_encode;
use futures::TryStreamExt;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::{CACHED_FROM, EventsArgs, column_widths, export, headers, last_seen, row};
use crate::columns::Widths;
use crate::event_stream::{self, EventParser, Lines};
use crate::object::{SEARCH_API_PATH, text};
use crate::output::terminal;
use crate::verbs::search::print_warnings;

/// Delay to collect changes for one read, and the maximum number of events per read.
const BATCH_INTERVAL: Duration = Duration::from_millis(250);
const MAX_BATCH_SIZE: usize = 50;
/// Maximum number of reads of an event that is not indexed yet; changes are reported before they are searchable.
const MAX_READS: u8 = 12;

/// State of the watch.
struct EventWatch<'a> {
    args: &'a EventsArgs,
    client: &'a kube::Client,
    query: &'a str,
    /// The resourceVersion printed last of each event, by UID.
    printed_versions: BTreeMap<String, String>,
    widths: Widths,
    needs_header: bool,
    /// True until the first event is printed in an output format other than a table.
    is_first: bool,
}

pub(super) async fn follow(args: &EventsArgs, client: &kube::Client, query: &str) -> anyhow::Result<ExitCode> {
    let headers = headers(args.all_namespaces);
    let widths = column_widths(args, &headers);
    let (printed_versions, needs_header, is_first) = (BTreeMap::new(), !args.no_headers, true);
    let mut watch = EventWatch { args, client, query, printed_versions, widths, needs_header, is_first };
    // The stream itself returns no hits; events are read separately.
    let path = format!("{SEARCH_API_PATH}/query?q={}&limit=0&watch=true", percent_encode(query));
    event_stream::follow(client, &path, async |lines| watch.read(lines).await).await
}

/// Action for a message of the search stream.
#[derive(Debug, PartialEq, Eq)]
enum StreamMessage {
    Ignored,
    /// The initial search is complete; print all events that were not printed.
    Complete,
    Changed(String),
    Removed(String),
    /// The stream dropped changes.
    ChangesDropped,
}

/// Decodes a message of the search stream. Has no side effects.
fn decode_message(name: &str, data: &Value) -> anyhow::Result<StreamMessage> {
    let uid = || text(data, "/uid").to_owned();
    match name {
        "done" => Ok(StreamMessage::Complete),
        "changed" => Ok(StreamMessage::Changed(uid())),
        "left" => Ok(StreamMessage::Removed(uid())),
        "behind" => Ok(StreamMessage::ChangesDropped),
        "error" => Err(anyhow!("{}", data.get("message").and_then(Value::as_str).unwrap_or("the search ended"))),
        _ => Ok(StreamMessage::Ignored),
    }
}

/// UIDs of events to read, with the number of reads so far.
type PendingReads = BTreeMap<String, u8>;

/// Counts a read of `uids`. Removes the events that were printed, and those that were read `MAX_READS` times.
fn remove_completed(pending: &mut PendingReads, uids: &[String], printed: &[Value]) {
    for event in printed {
        pending.remove(text(event, "/metadata/uid"));
    }
    for uid in uids {
        if let Some(tries) = pending.get_mut(uid) {
            *tries += 1;
        }
    }
    pending.retain(|_, tries| *tries < MAX_READS);
}

impl EventWatch<'_> {
    /// Reads one connection to its end; true if the initial search was complete.
    async fn read(&mut self, mut lines: Lines) -> anyhow::Result<bool> {
        let mut parser = EventParser::default();
        let (mut pending, mut deadline) = (PendingReads::new(), None);
        let mut is_complete = false;
        loop {
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                self.print_batch(&mut pending).await?;
                deadline = (!pending.is_empty()).then(|| Instant::now() + BATCH_INTERVAL);
            }
            let line = match deadline {
                None => lines.try_next().await,
                Some(deadline) => match timeout_at(deadline, lines.try_next()).await {
                    Ok(line) => line,
                    Err(_) => continue,
                },
            };
            let Ok(Some(line)) = line else { return Ok(is_complete) };
            let Some((name, data)) = parser.push_line(&line) else { continue };
            let data: Value = serde_json::from_str(&data).with_context(|| format!("cannot decode an event {name}"))?;
            if matches!(name.as_str(), "skipped" | "notices") && !is_complete {
                print_warnings(&mut terminal::stderr(), &json!({name: data, "total": 1, "hits": [1]}), self.query)?;
                continue;
            }
            match decode_message(&name, &data)? {
                StreamMessage::Ignored => {}
                StreamMessage::Complete => {
                    is_complete = true;
                    let events = export(self.client, self.query, self.args.limit).await?;
                    self.print(events)?;
                }
                StreamMessage::Changed(uid) => {
                    pending.insert(uid, 0);
                    deadline.get_or_insert_with(|| Instant::now() + BATCH_INTERVAL);
                }
                StreamMessage::Removed(uid) => drop(self.printed_versions.remove(&uid)),
                StreamMessage::ChangesDropped => return Ok(true),
            }
        }
    }

    /// Reads and prints the next batch of changed events.
    async fn print_batch(&mut self, pending: &mut PendingReads) -> anyhow::Result<()> {
        let uids: Vec<String> = pending.keys().take(MAX_BATCH_SIZE).cloned().collect();
        let query = format!("kind:event uid:{}", uids.join(","));
        let events = export(self.client, &query, uids.len().max(1)).await?;
        let events = self.filter_unprinted(events);
        self.write(&mut terminal::stdout(), &events, jiff::Timestamp::now())?;
        remove_completed(pending, &uids, &events);
        Ok(())
    }

    fn print(&mut self, events: Vec<Value>) -> anyhow::Result<()> {
        let events = self.filter_unprinted(events);
        self.write(&mut terminal::stdout(), &events, jiff::Timestamp::now())
    }

    /// Events not printed in this version yet, latest last.
    fn filter_unprinted(&mut self, mut events: Vec<Value>) -> Vec<Value> {
        events.retain(|event| {
            let version = text(event, "/metadata/resourceVersion").to_owned();
            let before = self.printed_versions.insert(text(event, "/metadata/uid").to_owned(), version.clone());
            before.is_none_or(|before| before != version)
        });
        events.sort_by_cached_key(last_seen);
        events
    }

    fn write(&mut self, out: &mut impl Write, events: &[Value], now: jiff::Timestamp) -> anyhow::Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        if self.args.output.is_table() {
            let namespaces = self.args.all_namespaces;
            let head = std::mem::take(&mut self.needs_header).then(|| headers(namespaces));
            let rows = events.iter().map(|event| row(event, namespaces, now));
            self.widths.write(out, &head.into_iter().chain(rows).collect::<Vec<_>>())?;
        } else {
            for event in events {
                let head = std::mem::take(&mut self.is_first) && !self.args.no_headers;
                let name =
                    |event: &Value| format!("{}/events/{}", text(event, CACHED_FROM), text(event, "/metadata/name"));
                self.args.output.print_next(out, event, head, name)?;
            }
        }
        Ok(out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parse_args;

    #[rstest::rstest]
    #[case("done", json!({"total": 2}), StreamMessage::Complete)]
    #[case("changed", json!({"uid": "1"}), StreamMessage::Changed("1".to_owned()))]
    #[case("left", json!({"uid": "1"}), StreamMessage::Removed("1".to_owned()))]
    #[case("behind", json!({}), StreamMessage::ChangesDropped)]
    #[case("counts", json!({"total": 3}), StreamMessage::Ignored)]
    fn stream_messages_are_decoded(#[case] name: &str, #[case] data: Value, #[case] expected: StreamMessage) {
        assert_eq!(decode_message(name, &data).unwrap(), expected);
    }

    #[test]
    fn unindexed_events_are_read_again() {
        let uids = |uids: &[&str]| uids.iter().map(|uid| (*uid).to_owned()).collect::<Vec<_>>();
        let mut pending: PendingReads = uids(&["1", "2", "3"]).into_iter().map(|uid| (uid, 0)).collect();
        remove_completed(&mut pending, &uids(&["1", "2"]), &[json!({"metadata": {"uid": "1"}})]);
        assert_eq!(pending.iter().map(|(uid, tries)| (uid.as_str(), *tries)).collect::<Vec<_>>(), [("2", 1), ("3", 0)]);
        (1..MAX_READS).for_each(|_| remove_completed(&mut pending, &uids(&["2"]), &[]));
        assert_eq!(pending.keys().collect::<Vec<_>>(), ["3"]);
    }

    #[tokio::test]
    async fn events_are_printed_once_per_version() {
        let args: EventsArgs = parse_args("-A -w").unwrap();
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(config).unwrap();
        let (printed_versions, widths) = (BTreeMap::new(), Widths::default());
        let mut watch = EventWatch {
            args: &args,
            client: &client,
            query: "",
            printed_versions,
            widths,
            needs_header: true,
            is_first: true,
        };
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
            let events = watch.filter_unprinted(batch);
            watch.write(&mut out, &events, now).unwrap();
        }
        let out = String::from_utf8(out).unwrap();
        let ages: Vec<&str> = out.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(ages, ["LAST-SEEN", "5m", "4m", "60s"], "{out}");
    }
}
