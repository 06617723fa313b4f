//! Lists of stored objects, sent without decoding. Large lists are encoded while they are sent, as fast as the
//! client reads, so that a response needs one chunk of memory.

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

/// Chunk size in bytes.
const PIECE: usize = 64 * 1024;

/// Marks responses that are sent in chunks.
#[derive(Debug, Clone, Copy)]
pub(super) struct InPieces;

/// Encoder of the remaining items.
struct Pieces {
    records: std::vec::IntoIter<Record>,
    typed: bool,
    /// Encoded and not yet sent.
    out: Vec<u8>,
    ended: bool,
}

pub(super) fn page(resource: &ResourceRef, page: Page) -> ApiResult<Response> {
    let meta = respond::list_meta(page.revision, &page.continue_token, page.remaining).to_json();
    let (kind, version) = (Value::from(&*resource.list_kind), Value::from(resource.gvr.api_version()));
    let mut out = Vec::with_capacity(PIECE + PIECE / 8);
    out.extend_from_slice(
        format!("{{\"kind\":{kind},\"apiVersion\":{version},\"metadata\":{meta},\"items\":[").as_bytes(),
    );
    let typed = !respond::untyped(resource);
    let mut pieces = Pieces { records: page.objects.into_iter(), typed, out, ended: false };
    if let Some(record) = pieces.records.next() {
        pieces.write(&record).map_err(storage_error)?;
    }
    let first = pieces.fill().map_err(storage_error)?;
    if pieces.ended {
        return Ok(respond::bytes(200, respond::JSON, first));
    }
    // If a later chunk cannot be encoded, the headers have been sent and the client sees a truncated response.
    let pieces = std::iter::once(Ok(first)).chain(pieces);
    let mut response = respond::bytes(200, respond::JSON, Body::from_stream(stream::iter(pieces)));
    response.extensions_mut().insert(InPieces);
    Ok(response)
}

impl Pieces {
    fn write(&mut self, record: &Record) -> Result<(), Error> {
        record.body.write_json(&mut self.out, record.revision, self.typed)
    }

    /// Encodes the next chunk; the last one includes the end of the list.
    fn fill(&mut self) -> Result<Bytes, Error> {
        while self.out.len() < PIECE {
            let Some(record) = self.records.next() else {
                self.out.extend_from_slice(b"]}");
                self.ended = true;
                break;
            };
            self.out.push(b',');
            self.write(&record)?;
        }
        let room = Vec::with_capacity(if self.ended { 0 } else { self.out.len() });
        Ok(std::mem::replace(&mut self.out, room).into())
    }
}

impl Iterator for Pieces {
    type Item = Result<Bytes, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let piece = self.fill();
        if let Err(error) = &piece {
            tracing::error!(%error, "cannot complete a list response");
            self.ended = true;
        }
        Some(piece)
    }
}
