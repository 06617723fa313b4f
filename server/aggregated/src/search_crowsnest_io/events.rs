//! Server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use serde_json::{Value, json};

pub(super) type Event = Result<sse::Event, Infallible>;
pub(super) type Events = sse::Sse<sse::KeepAliveStream<BoxStream<'static, Event>>>;

pub(super) fn event(name: &str, data: &Value) -> Event {
    Ok(sse::Event::default().event(name).data(data.to_string()))
}

pub(super) fn error(message: &str) -> Event {
    event("error", &json!({"message": message}))
}

/// A response that sends events as they occur.
pub(super) fn stream(events: impl Stream<Item = Event> + Send + 'static) -> Events {
    sse::Sse::new(events.boxed()).keep_alive(sse::KeepAlive::new().interval(Duration::from_secs(15)))
}
