//! Watch responses: a stream of event lines that ends by timeout, drain or error.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use crowsnest_apimachinery::negotiate::{self, Encoding, Representation, Shape};
use crowsnest_apimachinery::request::options::ListOptions;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_builtin::internal;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::{EventEncoder, Watch};
use crowsnest_schema::table::{IncludeObject, ListMeta, partial_object_metadata, to_v1beta1};
use futures::stream;
use rand::Rng;
use serde_json::{Value, json};
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::http::handler::{Call, namespace};
use crate::http::{Response, respond};

/// Watches without a timeout end after a random time between this and twice as long.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);

/// Time after which table rows, which contain ages, are encoded again.
const AGES: Duration = Duration::from_secs(2);

/// Representation of events, shared by clients with equal parameters.
struct Shaping {
    name: String,
    accepted: Representation,
    include: IncludeObject,
    resource: ResourceRef,
}

struct Running {
    watch: Watch,
    // Created once, since creating timers for each event would cost more than the event.
    deadline: Pin<Box<Sleep>>,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
    done: bool,
}

pub(super) async fn serve(call: &Call, resource: &ResourceRef) -> ApiResult<Response> {
    let options = ListOptions::from_request(&call.info, &call.query)?;
    let include = IncludeObject::parse(call.include())?;
    if call.accepted.encoding == Encoding::Yaml {
        return Err(negotiate::stream_not_acceptable());
    }
    let timeout = options.timeout.unwrap_or_else(|| DEFAULT_TIMEOUT.mul_f64(1.0 + rand::rng().random::<f64>()));
    let name = format!("{:?} {include:?}", call.accepted);
    let form = Arc::new(Shaping { name, accepted: call.accepted, include, resource: resource.clone() });
    let watch = call.api.registry.watch(resource, namespace(&call.info, resource), options, form).await?;
    let deadline = Box::pin(tokio::time::sleep(timeout));
    let draining = Box::pin(call.api.draining.clone().cancelled_owned());
    let running = Running { watch, deadline, draining, done: false };
    let stream = stream::unfold(running, |mut running| async move {
        let chunk = running.next().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), running))
    });
    Ok(respond::bytes(200, respond::JSON, Body::from_stream(stream)))
}

impl Running {
    async fn next(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        loop {
            let batch = tokio::select! {
                batch = self.watch.next() => batch?,
                () = &mut self.deadline => {
                    self.done = true;
                    self.watch.last_bookmark().into_iter().collect()
                }
                () = &mut self.draining => return None,
            };
            if !batch.is_empty() {
                return Some(joined(batch));
            }
            if self.done {
                return None;
            }
        }
    }
}

/// Concatenates event lines; a single line is shared with other watches.
fn joined(batch: Vec<Bytes>) -> Bytes {
    match <[Bytes; 1]>::try_from(batch) {
        Ok([line]) => line,
        Err(batch) => batch.concat().into(),
    }
}

impl EventEncoder for Shaping {
    fn name(&self) -> &str {
        &self.name
    }

    fn can_send_stored(&self) -> bool {
        self.accepted.shape == Shape::Object && self.resource.strategy.serves_stored()
    }

    fn max_line_age(&self) -> Option<Duration> {
        (self.accepted.shape == Shape::Table).then_some(AGES)
    }

    fn has_distinct_first_line(&self) -> bool {
        self.accepted.shape == Shape::Table
    }

    fn encode(&self, event: &str, object: Value, first: bool) -> Bytes {
        let mut object = if event == "ERROR" { object } else { self.shape(event, object, first) };
        if self.accepted.beta && event != "ERROR" {
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

impl Shaping {
    fn shape(&self, event: &str, object: Value, first: bool) -> Value {
        match self.accepted.shape {
            Shape::Table => {
                // Only the first event of a table watch has column definitions.
                let columns = first.then(|| self.resource.printer.columns(&respond::docs));
                let meta = ListMeta::of(&object);
                let objects = (event != "BOOKMARK").then_some(&object);
                let mut table = respond::rows(&self.resource, self.include).table(columns, objects, &meta);
                if event == "BOOKMARK" {
                    let row = json!({"cells": [], "object": partial_object_metadata(&object, internal)});
                    table["rows"] = json!([row]);
                }
                table
            }
            Shape::PartialMetadata | Shape::PartialMetadataList => partial_object_metadata(&object, internal),
            Shape::Object | Shape::Aggregated { .. } => object,
        }
    }
}
