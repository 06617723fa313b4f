//! Watch responses: a stream of event lines that ends by timeout, drain or error.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use crowsnest_apimachinery::content_negotiation::{self, Encoding, Representation, Shape};
use crowsnest_apimachinery::request::options::ListOptions;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_builtin::to_internal;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::{EventEncoder, Watch};
use crowsnest_schema::table::{IncludeObject, ListMeta, partial_object_metadata, to_v1beta1};
use futures::stream;
use rand::Rng;
use serde_json::Value;
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::http::handler::{Call, namespace};
use crate::http::{Response, respond};

/// Minimum duration of a watch without `timeoutSeconds`; the actual one is random, up to twice as long.
const MIN_DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);

/// Time after which a table row is encoded again, because it contains the age of the object.
const MAX_TABLE_LINE_AGE: Duration = Duration::from_secs(2);

/// Encodes events in one representation. Watches whose encoders have equal names share the encoded lines.
struct RepresentationEncoder {
    name: String,
    representation: Representation,
    include_object: IncludeObject,
    resource: ResourceRef,
}

/// Body of a watch response.
struct WatchStream {
    watch: Watch,
    // Created once, since creating timers for each event would cost more than the event.
    deadline: Pin<Box<Sleep>>,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
    has_expired: bool,
}

pub(super) async fn serve(call: &Call, resource: &ResourceRef) -> ApiResult<Response> {
    let options = ListOptions::from_request(&call.info, &call.query)?;
    let include_object = IncludeObject::parse(call.include_object())?;
    if call.representation.encoding == Encoding::Yaml {
        return Err(content_negotiation::stream_not_acceptable());
    }
    let timeout = options.timeout.unwrap_or_else(|| MIN_DEFAULT_TIMEOUT.mul_f64(1.0 + rand::rng().random::<f64>()));
    let representation = call.representation;
    let name = format!("{representation:?} {include_object:?}");
    let encoder = RepresentationEncoder { name, representation, include_object, resource: resource.clone() };
    let namespace = namespace(&call.info, resource);
    let watch = call.api.registry.watch(resource, namespace, options, Arc::new(encoder)).await?;
    let deadline = Box::pin(tokio::time::sleep(timeout));
    let draining = Box::pin(call.api.draining.clone().cancelled_owned());
    let watch_stream = WatchStream { watch, deadline, draining, has_expired: false };
    let stream = stream::unfold(watch_stream, |mut watch_stream| async move {
        let chunk = watch_stream.next().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), watch_stream))
    });
    Ok(respond::bytes(200, respond::JSON, Body::from_stream(stream)))
}

impl WatchStream {
    /// The next event lines; `None` at the end. A watch that expires ends with a bookmark.
    async fn next(&mut self) -> Option<Bytes> {
        if self.has_expired {
            return None;
        }
        loop {
            let lines = tokio::select! {
                lines = self.watch.next() => lines?,
                () = &mut self.deadline => {
                    self.has_expired = true;
                    self.watch.last_bookmark().unwrap_or_default()
                }
                () = &mut self.draining => return None,
            };
            if !lines.is_empty() {
                return Some(lines);
            }
            if self.has_expired {
                return None;
            }
        }
    }
}

impl EventEncoder for RepresentationEncoder {
    fn name(&self) -> &str {
        &self.name
    }

    fn can_send_stored(&self) -> bool {
        self.representation.shape == Shape::Object && self.resource.strategy.serves_stored_unchanged()
    }

    fn max_line_age(&self) -> Option<Duration> {
        (self.representation.shape == Shape::Table).then_some(MAX_TABLE_LINE_AGE)
    }

    fn has_distinct_first_line(&self) -> bool {
        self.representation.shape == Shape::Table
    }

    fn encode(&self, event: &str, object: Value, is_first: bool) -> Bytes {
        let mut object = if event == "ERROR" { object } else { self.shape(object, is_first) };
        if self.representation.is_beta && event != "ERROR" {
            to_v1beta1(&mut object);
        }
        let mut line = Vec::with_capacity(512);
        line.extend_from_slice(b"{\"type\":\"");
        line.extend_from_slice(event.as_bytes());
        line.extend_from_slice(b"\",\"object\":");
        if let Err(error) = serde_json::to_writer(&mut line, &object) {
            tracing::error!(%error, "cannot encode a watch event");
            return Bytes::new();
        }
        line.extend_from_slice(b"}\n");
        line.into()
    }
}

impl RepresentationEncoder {
    fn shape(&self, object: Value, is_first: bool) -> Value {
        match self.representation.shape {
            Shape::Table => {
                // Only the first event of a table watch has column definitions.
                let columns = is_first.then(|| self.resource.printer.columns(&respond::column_description));
                let meta = ListMeta::from_object(&object);
                // The mark of the end of the initial events is part of each row.
                let include_object = match self.include_object {
                    IncludeObject::None if ends_initial_events(&object) => IncludeObject::Metadata,
                    include_object => include_object,
                };
                respond::row_printer(&self.resource, include_object).table(columns, [&object], &meta)
            }
            Shape::PartialMetadata | Shape::PartialMetadataList => partial_object_metadata(&object, to_internal),
            Shape::Object | Shape::AggregatedDiscovery { .. } => object,
        }
    }
}

/// True for the bookmark at the end of the initial events.
fn ends_initial_events(object: &Value) -> bool {
    object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"
}
