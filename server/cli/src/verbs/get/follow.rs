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
use super::ask::{Answer, Question, Source, marked};
use super::shown::Shown;
use super::table::{Column, Table};
use crate::event_stream::Pauses;
use crate::output::terminal;
use crate::reach;

/// Capacity of the channel of events to print.
const WAITING: usize = 64;

/// Event of a watch.
enum Event {
    /// A new list, because the watch could not be resumed.
    Anew(Answer),
    /// A change: event type and object.
    Object(String, Value),
    /// The watch was interrupted and reconnects.
    Broke(String),
    /// The watch ended and is not resumed.
    Ended(String),
}

/// A decoded line of a watch. Pure.
#[derive(Debug, PartialEq)]
enum Line {
    Object(String, Value),
    Bookmark,
    /// The resourceVersion is too old (410 Gone).
    Expired,
    Failed(String),
}

/// Prints events until all watches have ended.
pub(super) async fn follow(question: &Question, responses: &Responses, mut shown: Shown) -> anyhow::Result<ExitCode> {
    let (sender, mut events) = mpsc::channel(WAITING);
    let mut watches = JoinSet::new();
    for source in &responses.sources {
        let known = responses.answers.iter().find(|(answered, _)| answered.cluster == source.cluster);
        let version = known.map(|(_, response)| response.version.clone());
        watches.spawn(watch(question.clone(), source.clone(), version, sender.clone()));
    }
    drop(sender);
    let mut columns: BTreeMap<Option<String>, Vec<Column>> = BTreeMap::new();
    for (source, response) in &responses.answers {
        if let Some(page) = response.pages.first().filter(|_| question.as_table) {
            let table = Table::read(page, source.cluster.as_deref(), &[], &shown.beside, jiff::Timestamp::now());
            columns.insert(source.cluster.clone(), table.columns);
        }
    }
    let mut why = None;
    while let Some((cluster, event)) = events.recv().await {
        let source_name = cluster.as_deref().unwrap_or("the fleet");
        shown.now = jiff::Timestamp::now();
        match event {
            Event::Anew(response) => shown.add(cluster.as_deref(), &response),
            Event::Object(what, object) if question.as_table => {
                let known = columns.entry(cluster.clone()).or_default();
                let table = Table::read(&object, cluster.as_deref(), known, &shown.beside, shown.now);
                shown.table(&table, &what);
                *known = table.columns;
            }
            Event::Object(what, object) => shown.document(&what, marked(object, cluster.as_deref())),
            Event::Broke(text) => writeln!(terminal::stderr(), "note: {source_name}: {text}; reconnecting")?,
            Event::Ended(text) => {
                writeln!(terminal::stderr(), "warning: {source_name}: {text}")?;
                why = Some(text);
            }
        }
        let mut out = io::stdout().lock();
        shown.flush(&mut out)?;
        out.flush()?;
    }
    Err(anyhow!("the watch ended: {}", why.unwrap_or_else(|| "no cluster is left".to_owned())))
}

type Events = mpsc::Sender<(Option<String>, Event)>;

/// Watches one source until it is refused or the receiver is dropped.
async fn watch(question: Question, source: Source, mut version: Option<String>, events: Events) {
    let send = |event| events.send((source.cluster.clone(), event));
    let mut pauses = Pauses::default();
    loop {
        let began = tokio::time::Instant::now();
        let ended = match version.take() {
            Some(known) => {
                let mut reached = known;
                let ended = stream(&question, &source, &mut reached, &events).await;
                version = Some(reached);
                ended
            }
            None => match question.ask(&source).await {
                Ok(response) => {
                    version = Some(response.version.clone());
                    if send(Event::Anew(response)).await.is_err() {
                        return;
                    }
                    continue;
                }
                Err(error) => Err(End::of(error)),
            },
        };
        let sent = match ended {
            // API servers end watches regularly.
            Ok(()) => Ok(()),
            Err(End::Expired) => {
                version = None;
                send(Event::Broke("the resource version expired; listing again".to_owned())).await
            }
            Err(End::Broke(why)) => send(Event::Broke(why)).await,
            Err(End::Refused(why)) => {
                // The receiver was dropped, so the reason is not needed.
                let _ = send(Event::Ended(why)).await;
                return;
            }
            Err(End::Unheard) => return,
        };
        if sent.is_err() {
            return;
        }
        tokio::time::sleep(pauses.next(began.elapsed())).await;
    }
}

/// Reason for the end of a watch.
enum End {
    Expired,
    Broke(String),
    Refused(String),
    Unheard,
}

impl End {
    fn of(error: kube::Error) -> Self {
        let reason = reach::reason(&error);
        match error {
            kube::Error::Api(status) if status.code == 410 => Self::Expired,
            kube::Error::Api(status) if matches!(status.code, 400 | 401 | 403 | 404 | 405) => Self::Refused(reason),
            _ => Self::Broke(reason),
        }
    }
}

async fn stream(question: &Question, source: &Source, version: &mut String, events: &Events) -> Result<(), End> {
    let parameters = [("watch", "true"), ("allowWatchBookmarks", "true"), ("resourceVersion", version.as_str())];
    let request = Request::get(question.path(None, &parameters)).header(header::ACCEPT, question.accept());
    let request = request.body(Vec::new()).map_err(|error| End::Refused(error.to_string()))?;
    let stream = source.client.request_stream(request).await.map_err(End::of)?;
    let mut lines = std::pin::pin!(stream.lines());
    loop {
        let line = match lines.try_next().await {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(error) => return Err(End::Broke(error.to_string())),
        };
        match read(&line, version) {
            Line::Object(what, object) => {
                let sent = events.send((source.cluster.clone(), Event::Object(what, object))).await;
                sent.map_err(|_| End::Unheard)?;
            }
            Line::Bookmark => {}
            Line::Expired => return Err(End::Expired),
            Line::Failed(why) => return Err(End::Broke(why)),
        }
    }
}

/// Decodes a line; updates `version` to resume from.
fn read(line: &str, version: &mut String) -> Line {
    let Ok(mut event) = serde_json::from_str::<Value>(line) else {
        return Line::Failed(format!("invalid watch event {line:?}"));
    };
    let object = event.get_mut("object").map(Value::take).unwrap_or_default();
    let text = |value: &Value, path: &str| value.pointer(path).and_then(Value::as_str).map(str::to_owned);
    let kind = text(&event, "/type").unwrap_or_default();
    if kind == "ERROR" {
        return match object.get("code").and_then(Value::as_u64) {
            Some(410) => Line::Expired,
            _ => Line::Failed(text(&object, "/message").unwrap_or_else(|| object.to_string())),
        };
    }
    // For tables, the version is that of the list or of the row's object.
    let resource_version =
        text(&object, "/rows/0/object/metadata/resourceVersion").or_else(|| text(&object, "/metadata/resourceVersion"));
    if let Some(resource_version) = resource_version.filter(|resource_version| !resource_version.is_empty()) {
        *version = resource_version;
    }
    if kind == "BOOKMARK" { Line::Bookmark } else { Line::Object(kind, object) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[rstest::rstest]
    #[case::object(json!({"type": "ADDED", "object": {"metadata": {"resourceVersion": "7"}}}),
        Line::Object("ADDED".to_owned(), json!({"metadata": {"resourceVersion": "7"}})), "7")]
    #[case::row(
        json!({"type": "ADDED", "object": {"metadata": {}, "rows": [{"object": {"metadata": {"resourceVersion": "8"}}}]}}),
        Line::Object("ADDED".to_owned(), json!({"metadata": {}, "rows": [{"object": {"metadata": {"resourceVersion": "8"}}}]})), "8")]
    #[case::bookmark(json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}), Line::Bookmark, "9")]
    #[case::expired(json!({"type": "ERROR", "object": {"code": 410, "message": "too old"}}), Line::Expired, "1")]
    #[case::failed(json!({"type": "ERROR", "object": {"code": 500, "message": "no"}}), Line::Failed("no".to_owned()), "1")]
    fn lines_are_decoded(#[case] event: Value, #[case] expected: Line, #[case] reached: &str) {
        let mut version = "1".to_owned();
        assert_eq!(read(&event.to_string(), &mut version), expected);
        assert_eq!(version, reached);
    }
}
