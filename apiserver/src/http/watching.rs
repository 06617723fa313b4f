//! Watch answers: a stream of event lines that ends by timeout, drain or error.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use rand::Rng;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::http::handler::{Call, namespace};
use crate::http::negotiate::{Accepted, Shape};
use crate::http::{Response, respond};
use crate::registry::options::ListOptions;
use crate::registry::resource::ResourceRef;
use crate::registry::{Emitted, Watch};
use crate::status::ApiResult;
use crate::table::{IncludeObject, ListMeta, partial_object_metadata, table, to_v1beta1};

/// Watches without a timeout of their own end after one to two times this.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);

/// How events are written for one client.
struct Shaping {
    accepted: Accepted,
    include: IncludeObject,
    resource: ResourceRef,
    /// Tables repeat no column definitions after the first event.
    columns_sent: bool,
}

struct Running {
    watch: Watch,
    shaping: Shaping,
    deadline: Instant,
    draining: CancellationToken,
    done: bool,
}

pub(super) async fn serve(call: &Call, resource: &ResourceRef) -> ApiResult<Response> {
    let mut options = ListOptions::parse(&call.query)?;
    if call.info.named && options.fields.is_everything() {
        options.fields.terms.push(("metadata.name".into(), true, call.info.name.clone()));
    }
    let include = IncludeObject::parse(call.include())?;
    let timeout = options.timeout.unwrap_or_else(|| DEFAULT_TIMEOUT.mul_f64(1.0 + rand::rng().random::<f64>()));
    let plain = call.accepted.shape == Shape::Object && resource.strategy.serves_stored();
    let watch = call.api.registry.watch(resource, namespace(&call.info, resource), options, plain).await?;
    let running = Running {
        watch,
        shaping: Shaping { accepted: call.accepted, include, resource: resource.clone(), columns_sent: false },
        deadline: Instant::now() + timeout,
        draining: call.api.draining.clone(),
        done: false,
    };
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
                () = tokio::time::sleep_until(self.deadline) => {
                    self.done = true;
                    self.watch.last_bookmark().into_iter().collect()
                }
                () = self.draining.cancelled() => return None,
            };
            if !batch.is_empty() {
                return Some(self.shaping.write(batch));
            }
            if self.done {
                return None;
            }
        }
    }
}

impl Shaping {
    fn write(&mut self, batch: Vec<Emitted>) -> Bytes {
        let mut out = Vec::with_capacity(512 * batch.len());
        for emitted in batch {
            match emitted {
                Emitted::Encoded(line) => out.extend_from_slice(&line),
                Emitted::Object { event, object } => {
                    let mut object = self.shape(event, object);
                    if self.accepted.beta {
                        to_v1beta1(&mut object);
                    }
                    push_line(&mut out, event, &object);
                }
                Emitted::Error(error) => push_line(&mut out, "ERROR", &error.to_status()),
            }
        }
        out.into()
    }

    fn shape(&mut self, event: &str, object: Value) -> Value {
        match self.accepted.shape {
            Shape::Table => {
                let printer = &self.resource.printer;
                let columns = (!self.columns_sent).then(|| printer.columns(&respond::docs));
                self.columns_sent = true;
                let meta = ListMeta::of(&object);
                let objects = (event != "BOOKMARK").then_some(&object);
                let mut table = table(printer, columns, objects, &meta, self.include, jiff::Timestamp::now());
                if event == "BOOKMARK" {
                    let row = json!({"cells": [], "object": partial_object_metadata(&object)});
                    table["rows"] = json!([row]);
                }
                table
            }
            Shape::PartialMetadata | Shape::PartialMetadataList => partial_object_metadata(&object),
            Shape::Object | Shape::Aggregated { .. } => object,
        }
    }
}

fn push_line(out: &mut Vec<u8>, event: &str, object: &Value) {
    let start = out.len();
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(event.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    if let Err(error) = serde_json::to_writer(&mut *out, object) {
        tracing::error!(%error, "an event cannot be written");
        out.truncate(start);
        return;
    }
    out.extend_from_slice(b"}\n");
}
