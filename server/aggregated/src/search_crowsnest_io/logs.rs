//! `logs`: logs of all pods that match a query, as lines of text or as server-sent events. docs/LOGS.md describes input
//! and output.

use crowsnest_apimachinery::status::ApiError;
use std::fmt::Write;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use crowsnest_proxy::logs::{LogEvent, LogRequest, LogSource, SourceEvent};
use futures::{Stream, StreamExt};
use http::{HeaderValue, header};
use serde_json::{Value, json};

use super::call::SearchCall;
use super::definition;
use super::events::{event, stream};
use super::hits::skipped;
use super::openapi::{EVENTS, Parameter, Q, ResponseSchemas, TEXT, name_of};
use super::operation::SearchOperation;
use super::parameters::Parameters;
use crate::resource::openapi::Document;
use crate::resource::{Definition, RequestFeatures};
use crowsnest_process::reply::Body;

/// Maximum number of available lines that are sent together.
const MAX_LINES_PER_CHUNK: usize = 256;

/// Format of lines of text.
#[derive(Debug, Clone, Copy)]
struct TextFormat {
    prefix: bool,
    timestamps: bool,
}

pub(super) struct Logs;

impl SearchOperation for Logs {
    const DEFINITION: Definition = Definition { route: "search.crowsnest.io/logs", ..definition("logs", "FleetLogs") };
    const SUMMARY: &str = "Logs of the matching pods, ordered by time; as server-sent events (notices, skipped, joined, line, refused, left, done, error) if Accept has text/event-stream.";
    const PARAMETERS: &[Parameter] = &[
        Q,
        Parameter::string("labelSelector", "Label selector for the pods."),
        Parameter::string("namespace", "Namespace of the pods; may be repeated."),
        Parameter::string("cluster", "Member cluster of the pods; may be repeated."),
        Parameter::string("pod", "Regular expression for names of pods."),
        Parameter::string("container", "Regular expression for names of containers."),
        Parameter::boolean("init", "Include init containers (default true)."),
        Parameter::boolean("ephemeral", "Include ephemeral containers (default true)."),
        Parameter::string("include", "Regular expression for lines; may be repeated: a line matches one of them."),
        Parameter::string("exclude", "Regular expression for lines to leave out; may be repeated."),
        Parameter::string("since", "Maximum age of lines, such as 90s, 15m, 2h30m or 7d."),
        Parameter::string("sinceTime", "Earliest time of lines (RFC 3339)."),
        Parameter::integer(
            "tail",
            "Number of last lines of each container, -1 for all (default 10 if no time is given).",
        ),
        Parameter::boolean("previous", "Logs of the runs before the last restarts."),
        Parameter::boolean("follow", "Follow new lines, and new pods."),
        Parameter::boolean("timestamps", "Write the time of each line."),
        Parameter::boolean("prefix", "Write the container of each line (default true)."),
        Parameter::integer("maxStreams", "Maximum number of logs that are read at once (default 100, at most 500)."),
    ];
    const RESPONSES: ResponseSchemas = &[(TEXT, &["Text"]), (EVENTS, &["LogEvents"])];

    fn is_long_running(_requested: RequestFeatures) -> bool {
        true
    }

    fn add_schemas(document: &mut Document) {
        let events = json!({"type": "string", "description": "Server-sent events with JSON data."});
        document.add_schema(name_of("LogEvents"), events);
    }

    async fn respond(call: SearchCall<'_>) -> Result<Response, ApiError> {
        let SearchCall { running, user, parameters, uri, accepts_events, .. } = call;
        let request = LogRequest::parse(uri.query(), jiff::Timestamp::now())?;
        let format = TextFormat::parse(&parameters)?;
        let lines = running.proxy.logs(user, request, parameters.scopes.clone()).await?;
        if accepts_events {
            let events = lines.map(|next| {
                let (name, data) = to_event(next);
                event(name, &data)
            });
            return Ok(stream(events).into_response());
        }
        Ok(text_response(lines, format))
    }
}

fn text_response(lines: impl Stream<Item = LogEvent> + Send + 'static, format: TextFormat) -> Response {
    let text = lines.ready_chunks(MAX_LINES_PER_CHUNK).map(move |events| {
        let mut text = String::new();
        events.iter().for_each(|event| format.write(&mut text, event));
        Ok::<_, std::convert::Infallible>(Bytes::from(text))
    });
    let mut response = Response::new(Body::from_stream(text));
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

fn source_fields(source: &LogSource) -> Value {
    json!({"cluster": source.cluster, "namespace": source.namespace, "pod": source.pod, "container": source.container})
}

/// Name and data of an event.
fn to_event(event: LogEvent) -> (&'static str, Value) {
    let (source, source_event) = match event {
        LogEvent::Notices(notices) => return ("notices", json!(notices)),
        LogEvent::Skipped(clusters) => return ("skipped", skipped(&clusters)),
        LogEvent::Failed(reason) => return ("error", json!({"message": reason})),
        LogEvent::Done(summary) => return ("done", json!(summary)),
        LogEvent::Source(source, source_event) => (source, source_event),
    };
    let mut data = source_fields(&source);
    let name = match source_event {
        SourceEvent::Started => "joined",
        SourceEvent::Ended(reason) => {
            data["why"] = reason.into();
            "left"
        }
        SourceEvent::Refused(refusal) => {
            data["code"] = refusal.code.into();
            data["reason"] = refusal.reason.into();
            data["message"] = refusal.message.into();
            "refused"
        }
        SourceEvent::Line(line) => {
            if let Some(time) = line.time {
                // A fixed length, so that times sort as text.
                data["time"] = format!("{time:.9}").into();
            }
            data["text"] = line.text.into();
            if line.is_truncated {
                data["cut"] = true.into();
            }
            "line"
        }
    };
    (name, data)
}

impl TextFormat {
    fn parse(parameters: &Parameters<'_>) -> Result<Self, ApiError> {
        let prefix = parameters.boolean("prefix", true)?;
        Ok(Self { prefix, timestamps: parameters.flag("timestamps")? })
    }

    /// Writes an event as text; all but lines of logs begin with `crowsnest: `.
    fn write(self, text: &mut String, event: &LogEvent) {
        let result = match event {
            LogEvent::Source(source, SourceEvent::Line(line)) => {
                let mut prefix = if self.prefix { format!("{} | ", source_text(source)) } else { String::new() };
                if let Some(time) = line.time.filter(|_| self.timestamps) {
                    prefix.push_str(&format!("{time:.9} "));
                }
                let cut = if line.is_truncated { " [cut]" } else { "" };
                writeln!(text, "{prefix}{}{cut}", line.text)
            }
            LogEvent::Source(source, SourceEvent::Refused(refusal)) => {
                writeln!(text, "crowsnest: cannot read {}: {}", source_text(source), refusal.message)
            }
            LogEvent::Source(source, SourceEvent::Ended(reason)) => {
                writeln!(text, "crowsnest: {} ended: {reason}", source_text(source))
            }
            LogEvent::Source(_, SourceEvent::Started) => Ok(()),
            LogEvent::Notices(notices) => notices.iter().try_for_each(|n| writeln!(text, "crowsnest: {}", n.message)),
            LogEvent::Skipped(clusters) => clusters.iter().try_for_each(|skipped| {
                let age = skipped.age_seconds.map(|age| format!(", using its pods of {age} s ago")).unwrap_or_default();
                writeln!(text, "crowsnest: cluster {}: {}{age}", skipped.cluster, skipped.reason)
            }),
            LogEvent::Failed(reason) => writeln!(text, "crowsnest: {reason}"),
            LogEvent::Done(summary) => match summary.end_reason {
                Some(reason) => writeln!(text, "crowsnest: logs end here: {reason}"),
                None => Ok(()),
            },
        };
        if let Err(error) = result {
            tracing::error!(%error, "cannot format a log event");
        }
    }
}

fn source_text(source: &LogSource) -> String {
    format!("{} {}/{} {}", source.cluster, source.namespace, source.pod, source.container)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::ClusterName;
    use crowsnest_proxy::logs::{Line, Refusal};
    use std::sync::Arc;

    fn sample_events() -> Vec<LogEvent> {
        let source = Arc::new(LogSource {
            cluster: ClusterName::parse("m1").unwrap(),
            namespace: "shop".into(),
            pod: "web-0".into(),
            container: "web".into(),
        });
        let line = Line { time: "2026-01-01T00:00:00.5Z".parse().ok(), text: "hello".into(), is_truncated: true };
        let refusal = Refusal { code: 403, reason: "Forbidden".into(), message: "no".into() };
        [SourceEvent::Started, SourceEvent::Line(line), SourceEvent::Refused(refusal), SourceEvent::Ended("it is gone")]
            .map(|event| LogEvent::Source(Arc::clone(&source), event))
            .into()
    }

    #[rstest::rstest]
    #[case::with_prefixes(
        TextFormat { prefix: true, timestamps: false },
        "m1 shop/web-0 web | hello [cut]\ncrowsnest: cannot read m1 shop/web-0 web: no\ncrowsnest: m1 shop/web-0 web ended: it is gone\n"
    )]
    #[case::with_timestamps(
        TextFormat { prefix: false, timestamps: true },
        "2026-01-01T00:00:00.500000000Z hello [cut]\ncrowsnest: cannot read m1 shop/web-0 web: no\ncrowsnest: m1 shop/web-0 web ended: it is gone\n"
    )]
    fn logs_are_text(#[case] format: TextFormat, #[case] expected: &str) {
        let mut text = String::new();
        sample_events().iter().for_each(|event| format.write(&mut text, event));
        assert_eq!(text, expected);
    }

    #[test]
    fn logs_are_events() {
        let events: Vec<String> = sample_events()
            .into_iter()
            .map(|event| {
                let (name, mut data) = to_event(event);
                for field in ["cluster", "namespace", "pod", "container"] {
                    assert!(data[field].is_string());
                    data.as_object_mut().unwrap().remove(field);
                }
                format!("{name} {data}")
            })
            .collect();
        assert_eq!(
            events,
            [
                "joined {}",
                r#"line {"cut":true,"text":"hello","time":"2026-01-01T00:00:00.500000000Z"}"#,
                r#"refused {"code":403,"message":"no","reason":"Forbidden"}"#,
                r#"left {"why":"it is gone"}"#,
            ]
        );
    }
}
