//! `logs`: the logs of all pods a query finds, as lines of text or as server-sent events. docs/LOGS.md says what goes in and
//! out.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_proxy::logs::{LogEvent, LogRequest, LogSource, Said};
use futures::StreamExt;
use http::{HeaderValue, header};
use serde_json::{Value, json};

use super::hits::skipped;
use super::parameters::Parameters;
use super::query::{event, sent};
use crate::aggregated::reply::{Body, Failure};
use crate::roles::Running;

/// Lines that are there already are sent together.
const TOGETHER: usize = 256;

/// How lines of text are told.
#[derive(Debug, Clone, Copy)]
struct Form {
    prefix: bool,
    timestamps: bool,
}

pub(super) async fn logs(
    running: &Running,
    caller: &UserInfo,
    query: Option<&str>,
    parameters: &Parameters,
    as_events: bool,
) -> Result<Response, Failure> {
    let request = LogRequest::parse(query, jiff::Timestamp::now())?;
    let scopes: BTreeMap<String, String> = parameters.scopes.clone();
    let told = running.proxy.logs(caller, request, scopes).await?;
    if as_events {
        return Ok(sent(told.map(|told| {
            let (name, data) = shown(told);
            event(name, &data)
        }))
        .into_response());
    }
    let form = Form {
        prefix: parameters.get("prefix").is_none_or(|value| !matches!(value, "false" | "0")),
        timestamps: parameters.flag("timestamps"),
    };
    let text = told.ready_chunks(TOGETHER).map(move |told| {
        let mut text = String::new();
        told.iter().for_each(|event| form.write(&mut text, event));
        Ok::<_, std::convert::Infallible>(Bytes::from(text))
    });
    let mut response = Response::new(Body::from_stream(text));
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    Ok(response)
}

fn source(source: &LogSource) -> Value {
    json!({"cluster": source.cluster, "namespace": source.namespace, "pod": source.pod, "container": source.container})
}

/// Name and data of an event.
fn shown(told: LogEvent) -> (&'static str, Value) {
    let (of, said) = match told {
        LogEvent::Notices(notices) => return ("notices", json!(notices)),
        LogEvent::Skipped(clusters) => return ("skipped", skipped(&clusters)),
        LogEvent::Failed(why) => return ("error", json!({"message": why})),
        LogEvent::Done(told) => return ("done", json!(told)),
        LogEvent::Said(of, said) => (of, said),
    };
    let mut data = source(&of);
    let name = match said {
        Said::Joined => "joined",
        Said::Left(why) => {
            data["why"] = why.into();
            "left"
        }
        Said::Refused(refusal) => {
            data["code"] = refusal.code.into();
            data["reason"] = refusal.reason.into();
            data["message"] = refusal.message.into();
            "refused"
        }
        Said::Line(line) => {
            if let Some(time) = line.time {
                // As long as any other, so that they sort as text does.
                data["time"] = format!("{time:.9}").into();
            }
            data["text"] = line.text.into();
            if line.cut {
                data["cut"] = true.into();
            }
            "line"
        }
    };
    (name, data)
}

impl Form {
    /// What is no line of a log begins with `crowsnest: `.
    fn write(self, text: &mut String, told: &LogEvent) {
        let written = match told {
            LogEvent::Said(of, Said::Line(line)) => {
                let mut prefix = if self.prefix { format!("{} | ", named(of)) } else { String::new() };
                if let Some(time) = line.time.filter(|_| self.timestamps) {
                    prefix.push_str(&format!("{time:.9} "));
                }
                let cut = if line.cut { " [cut]" } else { "" };
                writeln!(text, "{prefix}{}{cut}", line.text)
            }
            LogEvent::Said(of, Said::Refused(refusal)) => {
                writeln!(text, "crowsnest: {} is not told: {}", named(of), refusal.message)
            }
            LogEvent::Said(of, Said::Left(why)) => writeln!(text, "crowsnest: {} has left: {why}", named(of)),
            LogEvent::Said(_, Said::Joined) => Ok(()),
            LogEvent::Notices(notices) => notices.iter().try_for_each(|n| writeln!(text, "crowsnest: {}", n.message)),
            LogEvent::Skipped(clusters) => clusters.iter().try_for_each(|skipped| {
                let age = skipped.age_seconds.map(|age| format!(", pods are those of {age} s ago")).unwrap_or_default();
                writeln!(text, "crowsnest: cluster {}: {}{age}", skipped.cluster, skipped.reason)
            }),
            LogEvent::Failed(why) => writeln!(text, "crowsnest: {why}"),
            LogEvent::Done(told) => match told.why {
                Some(why) => writeln!(text, "crowsnest: logs end here: {why}"),
                None => Ok(()),
            },
        };
        if let Err(error) = written {
            tracing::error!(%error, "text cannot be written into a string");
        }
    }
}

fn named(of: &LogSource) -> String {
    format!("{} {}/{} {}", of.cluster, of.namespace, of.pod, of.container)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::ClusterName;
    use crowsnest_proxy::logs::{Line, Refusal};
    use std::sync::Arc;

    fn told() -> Vec<LogEvent> {
        let source = Arc::new(LogSource {
            cluster: ClusterName::parse("m1").unwrap(),
            namespace: "shop".into(),
            pod: "web-0".into(),
            container: "web".into(),
        });
        let line = Line { time: "2026-01-01T00:00:00.5Z".parse().ok(), text: "hello".into(), cut: true };
        let refusal = Refusal { code: 403, reason: "Forbidden".into(), message: "no".into() };
        [Said::Joined, Said::Line(line), Said::Refused(refusal), Said::Left("it is gone")]
            .map(|said| LogEvent::Said(Arc::clone(&source), said))
            .into()
    }

    #[rstest::rstest]
    #[case::as_it_is(
        Form { prefix: true, timestamps: false },
        "m1 shop/web-0 web | hello [cut]\ncrowsnest: m1 shop/web-0 web is not told: no\ncrowsnest: m1 shop/web-0 web has left: it is gone\n"
    )]
    #[case::bare(
        Form { prefix: false, timestamps: true },
        "2026-01-01T00:00:00.500000000Z hello [cut]\ncrowsnest: m1 shop/web-0 web is not told: no\ncrowsnest: m1 shop/web-0 web has left: it is gone\n"
    )]
    fn logs_are_text(#[case] form: Form, #[case] expected: &str) {
        let mut text = String::new();
        told().iter().for_each(|event| form.write(&mut text, event));
        assert_eq!(text, expected);
    }

    #[test]
    fn logs_are_events() {
        let events: Vec<String> = told()
            .into_iter()
            .map(|event| {
                let (name, mut data) = shown(event);
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
