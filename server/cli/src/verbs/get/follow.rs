//! Watches the fleet, or several members at once; each watch reconnects on its own.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::anyhow;
use futures::{AsyncBufReadExt, TryStreamExt};
use http::{Request, header};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Responses;
use super::printer::Printer;
use super::requests::{GetRequest, GetResponse, Source, annotate_cluster};
use super::table::{Column, Table};
use crate::clients;
use crate::event_stream::ReconnectDelays;
use crate::output::terminal;

/// Capacity of the channel of events to print.
const CHANNEL_CAPACITY: usize = 64;

/// Event of a watch.
enum Event {
    /// A new list, because the watch could not be resumed.
    Relisted(GetResponse),
    /// A change: event type and object.
    Object(String, Value),
    /// The watch was interrupted and reconnects.
    Interrupted(String),
    /// The watch ended and is not resumed.
    Ended(String),
}

/// A decoded line of a watch.
#[derive(Debug, PartialEq)]
enum WatchLine {
    Object(String, Value),
    Bookmark,
    /// The resourceVersion is too old (410 Gone).
    Expired,
    Failed(String),
}

/// Prints events until all watches have ended.
pub(super) async fn follow(
    request: &GetRequest,
    responses: &Responses,
    mut printer: Printer,
) -> anyhow::Result<ExitCode> {
    let (sender, mut events) = mpsc::channel(CHANNEL_CAPACITY);
    let mut watches = JoinSet::new();
    for source in &responses.sources {
        let listed_response = responses.successes.iter().find(|(listed, _)| listed.cluster == source.cluster);
        let version = listed_response.map(|(_, response)| response.version.clone());
        watches.spawn(watch(request.clone(), source.clone(), version, sender.clone()));
    }
    drop(sender);
    let mut columns: BTreeMap<Option<String>, Vec<Column>> = BTreeMap::new();
    for (source, response) in &responses.successes {
        if let Some(page) = response.pages.first().filter(|_| request.as_table) {
            let table =
                Table::parse(page, source.cluster.as_deref(), &[], &printer.extra_columns, jiff::Timestamp::now());
            columns.insert(source.cluster.clone(), table.columns);
        }
    }
    let mut last_error = None;
    while let Some((cluster, event)) = events.recv().await {
        let source_name = cluster.as_deref().unwrap_or("the fleet");
        printer.now = jiff::Timestamp::now();
        match event {
            Event::Relisted(response) => printer.add(cluster.as_deref(), &response),
            Event::Object(event_type, object) if request.as_table => {
                let previous_columns = columns.entry(cluster.clone()).or_default();
                let table =
                    Table::parse(&object, cluster.as_deref(), previous_columns, &printer.extra_columns, printer.now);
                printer.add_table(&table, &event_type);
                *previous_columns = table.columns;
            }
            Event::Object(event_type, object) => {
                printer.add_document(&event_type, annotate_cluster(object, cluster.as_deref()))
            }
            Event::Interrupted(text) => writeln!(terminal::stderr(), "note: {source_name}: {text}; reconnecting")?,
            Event::Ended(text) => {
                writeln!(terminal::stderr(), "warning: {source_name}: {text}")?;
                last_error = Some(text);
            }
        }
        let mut out = io::stdout().lock();
        printer.flush(&mut out)?;
        out.flush()?;
    }
    Err(anyhow!("the watch ended: {}", last_error.unwrap_or_else(|| "no cluster is left".to_owned())))
}

type EventSender = mpsc::Sender<(Option<String>, Event)>;

/// Watches one source until it is refused or the receiver is dropped.
async fn watch(request: GetRequest, source: Source, mut version: Option<String>, events: EventSender) {
    let send = |event| events.send((source.cluster.clone(), event));
    let mut delays = ReconnectDelays::default();
    loop {
        let started_at = tokio::time::Instant::now();
        let result = match version.take() {
            Some(mut resume_version) => {
                let result = stream_events(&request, &source, &mut resume_version, &events).await;
                version = Some(resume_version);
                result
            }
            None => match request.send(&source).await {
                Ok(response) => {
                    version = Some(response.version.clone());
                    if send(Event::Relisted(response)).await.is_err() {
                        return;
                    }
                    continue;
                }
                Err(error) => Err(WatchEnd::from_error(error)),
            },
        };
        let send_result = match result {
            // API servers end watches regularly.
            Ok(()) => Ok(()),
            Err(WatchEnd::Expired) => {
                version = None;
                send(Event::Interrupted("the resource version expired; listing again".to_owned())).await
            }
            Err(WatchEnd::Interrupted(reason)) => send(Event::Interrupted(reason)).await,
            Err(WatchEnd::Rejected(reason)) => {
                // The receiver was dropped, so the reason is not needed.
                let _ = send(Event::Ended(reason)).await;
                return;
            }
            Err(WatchEnd::ReceiverDropped) => return,
        };
        if send_result.is_err() {
            return;
        }
        tokio::time::sleep(delays.next_delay(started_at.elapsed())).await;
    }
}

/// Reason for the end of a watch.
enum WatchEnd {
    Expired,
    Interrupted(String),
    Rejected(String),
    ReceiverDropped,
}

impl WatchEnd {
    fn from_error(error: kube::Error) -> Self {
        let reason = clients::describe_cause(&error);
        match error {
            kube::Error::Api(status) if status.code == 410 => Self::Expired,
            kube::Error::Api(status) if matches!(status.code, 400 | 401 | 403 | 404 | 405) => Self::Rejected(reason),
            _ => Self::Interrupted(reason),
        }
    }
}

async fn stream_events(
    request: &GetRequest,
    source: &Source,
    version: &mut String,
    events: &EventSender,
) -> Result<(), WatchEnd> {
    let parameters = [("watch", "true"), ("allowWatchBookmarks", "true"), ("resourceVersion", version.as_str())];
    let request = Request::get(request.path(None, &parameters)).header(header::ACCEPT, request.accept());
    let request = request.body(Vec::new()).map_err(|error| WatchEnd::Rejected(error.to_string()))?;
    let stream = source.client.request_stream(request).await.map_err(WatchEnd::from_error)?;
    let mut lines = std::pin::pin!(stream.lines());
    loop {
        let line = match lines.try_next().await {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(error) => return Err(WatchEnd::Interrupted(error.to_string())),
        };
        match decode_line(&line, version) {
            WatchLine::Object(event_type, object) => {
                let result = events.send((source.cluster.clone(), Event::Object(event_type, object))).await;
                result.map_err(|_| WatchEnd::ReceiverDropped)?;
            }
            WatchLine::Bookmark => {}
            WatchLine::Expired => return Err(WatchEnd::Expired),
            WatchLine::Failed(reason) => return Err(WatchEnd::Interrupted(reason)),
        }
    }
}

/// Decodes a line; updates `version` to resume from.
fn decode_line(line: &str, version: &mut String) -> WatchLine {
    let Ok(mut event) = serde_json::from_str::<Value>(line) else {
        return WatchLine::Failed(format!("invalid watch event {line:?}"));
    };
    let object = event.get_mut("object").map(Value::take).unwrap_or_default();
    let text = |value: &Value, path: &str| value.pointer(path).and_then(Value::as_str).map(str::to_owned);
    let event_type = text(&event, "/type").unwrap_or_default();
    if event_type == "ERROR" {
        return match object.get("code").and_then(Value::as_u64) {
            Some(410) => WatchLine::Expired,
            _ => WatchLine::Failed(text(&object, "/message").unwrap_or_else(|| object.to_string())),
        };
    }
    // For tables, the version is that of the list or of the row's object.
    let resource_version =
        text(&object, "/rows/0/object/metadata/resourceVersion").or_else(|| text(&object, "/metadata/resourceVersion"));
    if let Some(resource_version) = resource_version.filter(|resource_version| !resource_version.is_empty()) {
        *version = resource_version;
    }
    if event_type == "BOOKMARK" { WatchLine::Bookmark } else { WatchLine::Object(event_type, object) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[rstest::rstest]
    #[case::object(json!({"type": "ADDED", "object": {"metadata": {"resourceVersion": "7"}}}),
        WatchLine::Object("ADDED".to_owned(), json!({"metadata": {"resourceVersion": "7"}})), "7")]
    #[case::row(
        json!({"type": "ADDED", "object": {"metadata": {}, "rows": [{"object": {"metadata": {"resourceVersion": "8"}}}]}}),
        WatchLine::Object("ADDED".to_owned(), json!({"metadata": {}, "rows": [{"object": {"metadata": {"resourceVersion": "8"}}}]})), "8")]
    #[case::bookmark(json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}), WatchLine::Bookmark, "9")]
    #[case::expired(json!({"type": "ERROR", "object": {"code": 410, "message": "too old"}}), WatchLine::Expired, "1")]
    #[case::failed(json!({"type": "ERROR", "object": {"code": 500, "message": "no"}}), WatchLine::Failed("no".to_owned()), "1")]
    fn lines_are_decoded(#[case] event: Value, #[case] expected: WatchLine, #[case] reached: &str) {
        let mut version = "1".to_owned();
        assert_eq!(decode_line(&event.to_string(), &mut version), expected);
        assert_eq!(version, reached);
    }
}
