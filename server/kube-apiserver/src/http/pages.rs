//! Lists of objects that are sent as they are stored, without parsing them. A large one is written while it is sent, as far as the
//! client takes it: it costs the server one piece of memory, whatever its size.

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

/// Bytes from which a piece is sent.
const PIECE: usize = 64 * 1024;

/// On answers that are sent in pieces.
#[derive(Debug, Clone, Copy)]
pub(super) struct InPieces;

/// What is still to be written.
struct Pieces {
    records: std::vec::IntoIter<Record>,
    typed: bool,
    /// Written and not sent.
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
    // The head of the answer has gone by the time a later piece cannot be written: the client sees that it breaks off.
    let pieces = std::iter::once(Ok(first)).chain(pieces);
    let mut response = respond::bytes(200, respond::JSON, Body::from_stream(stream::iter(pieces)));
    response.extensions_mut().insert(InPieces);
    Ok(response)
}

impl Pieces {
    fn write(&mut self, record: &Record) -> Result<(), Error> {
        record.body.write_json(&mut self.out, record.revision, self.typed)
    }

    /// The next piece; the last one has the end of the list.
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
            tracing::error!(%error, "a list cannot be written to its end");
            self.ended = true;
        }
        Some(piece)
    }
}
