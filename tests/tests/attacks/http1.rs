//! Encodes a case as HTTP/1.1 and reads the response.

use std::time::Duration;

use crate::attacks::table::Case;
use crate::attacks::wire::{self, Framing, Wire, lossy};

/// Time limit for the start of a response, and for a body of a known length.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for unexpected bytes after a response; a body of unknown length may take twice as long.
const BODY_TIMEOUT: Duration = Duration::from_millis(250);

/// Response to a case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Response {
    /// 0: the connection (or stream) was closed without a response.
    pub status: u16,
    pub head: Vec<u8>,
    pub body: Vec<u8>,
}

/// The bytes of a request.
pub fn request(case: &Case) -> Vec<u8> {
    let mut bytes = case.first_line();
    for line in case.header_lines() {
        bytes.extend(line);
        // Rows with folded or wrongly terminated lines contain their own line endings.
        if !bytes.ends_with(b"\n") {
            bytes.extend(b"\r\n");
        }
    }
    bytes.extend(b"\r\n");
    bytes.extend(case.body());
    bytes
}

/// Sends a request and reads the response. A closed connection counts as a response.
pub async fn exchange(mut wire: Wire, request: &[u8]) -> Response {
    // A server need not read a request that it refuses.
    wire.write(request).await.ok();
    let mut response = Response::default();
    loop {
        let head = tokio::time::timeout(RESPONSE_TIMEOUT, wire.read_until(b"\r\n\r\n")).await;
        let Ok(Ok(Some(head))) = head else { return response };
        let status = lossy(&head).split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
        if status == 100 {
            continue;
        }
        response = Response { status, head, body: Vec::new() };
        break;
    }
    let framing = match response.status {
        101 | 204 | 304 => Framing::None,
        _ => wire::framing(&response.head).unwrap_or(Framing::None),
    };
    // A body of a known length ends. A watch does not, so its beginning is sufficient, and a response to HEAD has no body.
    let body_timeout = match framing {
        Framing::Length(_) if !request.starts_with(b"HEAD ") => RESPONSE_TIMEOUT,
        _ => 2 * BODY_TIMEOUT,
    };
    tokio::time::timeout(body_timeout, wire.read_body(framing, &mut response.body)).await.ok();
    response.body.extend(wire.read_rest(BODY_TIMEOUT).await);
    response
}
