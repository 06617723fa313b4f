//! Responses with lists of stored objects, which are not decoded. Large lists are encoded while they are sent, as fast
//! as the client reads, so that a response buffers one chunk.

use axum::body::Body;
use bytes::Bytes;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_registry::error::Error;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::storage::Record;
use crowsnest_registry::{Page, storage_error};
use futures::stream;
use serde_json::Value;

use crate::http::{Response, respond};

/// Size from which a chunk is sent.
const CHUNK_BYTES: usize = 64 * 1024;

/// Response extension of lists that are sent in chunks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunked;

/// The chunks of a list that have not been sent yet.
struct ListChunks {
    records: std::vec::IntoIter<Record>,
    /// True if items have `apiVersion` and `kind`.
    includes_type: bool,
    /// Encoded bytes of the next chunk.
    out: Vec<u8>,
    has_ended: bool,
}

/// Responds with a page of a list.
pub(super) fn respond_page(resource: &ResourceRef, page: Page) -> ApiResult<Response> {
    let meta = respond::list_meta(page.revision, &page.continue_token, page.remaining).to_json();
    let (kind, version) = (Value::from(&*resource.list_kind), Value::from(resource.gvr.api_version()));
    let mut out = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 8);
    out.extend_from_slice(
        format!("{{\"kind\":{kind},\"apiVersion\":{version},\"metadata\":{meta},\"items\":[").as_bytes(),
    );
    let includes_type = !respond::omits_item_type(resource);
    let mut chunks = ListChunks { records: page.objects.into_iter(), includes_type, out, has_ended: false };
    if let Some(record) = chunks.records.next() {
        chunks.write(&record).map_err(storage_error)?;
    }
    let first = chunks.fill().map_err(storage_error)?;
    if chunks.has_ended {
        return Ok(respond::bytes(200, respond::JSON, first));
    }
    // If a later chunk cannot be encoded, the headers have been sent and the client sees a truncated response.
    let chunks = std::iter::once(Ok(first)).chain(chunks);
    let mut response = respond::bytes(200, respond::JSON, Body::from_stream(stream::iter(chunks)));
    response.extensions_mut().insert(Chunked);
    Ok(response)
}

impl ListChunks {
    fn write(&mut self, record: &Record) -> Result<(), Error> {
        record.body.write_json(&mut self.out, record.revision, self.includes_type)
    }

    /// Encodes the next chunk; the last one includes the end of the list.
    fn fill(&mut self) -> Result<Bytes, Error> {
        while self.out.len() < CHUNK_BYTES {
            let Some(record) = self.records.next() else {
                self.out.extend_from_slice(b"]}");
                self.has_ended = true;
                break;
            };
            self.out.push(b',');
            self.write(&record)?;
        }
        let next_chunk = Vec::with_capacity(if self.has_ended { 0 } else { self.out.len() });
        Ok(std::mem::replace(&mut self.out, next_chunk).into())
    }
}

impl Iterator for ListChunks {
    type Item = Result<Bytes, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let chunk = self.fill();
        if let Err(error) = &chunk {
            tracing::error!(%error, "cannot complete a list response");
            self.has_ended = true;
        }
        Some(chunk)
    }
}
