//! A case as bytes of HTTP/1.1, and what is answered.

use std::time::Duration;

use crate::table::Case;
use crate::wire::{self, Framing, Wire, lossy};

/// How long an answer may take to begin.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long its body is read, and more is waited for that nobody should say.
const LINGER: Duration = Duration::from_millis(250);

/// What came back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0: the connection (or the stream) was closed without one.
    pub status: u16,
    pub head: Vec<u8>,
    pub body: Vec<u8>,
}

/// The bytes of a request.
pub fn request(case: &Case) -> Vec<u8> {
    let mut bytes = case.first_line();
    for line in case.header_lines() {
        bytes.extend(line);
        // A line that ends itself may be folded or ended wrongly.
        if !bytes.ends_with(b"\n") {
            bytes.extend(b"\r\n");
        }
    }
    bytes.extend(b"\r\n");
    bytes.extend(case.body());
    bytes
}

/// Sends it and reads the answer. A server that hangs up in the middle of it has answered, too.
pub async fn exchange(mut wire: Wire, request: &[u8]) -> Answer {
    // What a server refuses it need not read.
    wire.write(request).await.ok();
    let mut answer = Answer::default();
    loop {
        let head = tokio::time::timeout(ANSWER_WITHIN, wire.until(b"\r\n\r\n")).await;
        let Ok(Ok(Some(head))) = head else { return answer };
        let status = lossy(&head).split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
        if status == 100 {
            continue;
        }
        answer = Answer { status, head, body: Vec::new() };
        break;
    }
    let framing = match answer.status {
        101 | 204 | 304 => Framing::None,
        _ => wire::framing(&answer.head).unwrap_or(Framing::None),
    };
    // A watch goes on: its beginning is enough.
    tokio::time::timeout(2 * LINGER, wire.body(framing, &mut answer.body)).await.ok();
    answer.body.extend(wire.rest(LINGER).await);
    answer
}
