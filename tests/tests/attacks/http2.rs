//! Encodes a case as HTTP/2 frames by hand, because a library refuses to send most of them.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::attacks::http1::Response;
use crate::attacks::table::Case;
use crate::attacks::wire::Wire;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Default maximum size of a frame's payload (SETTINGS_MAX_FRAME_SIZE, RFC 9113, section 6.5.2).
const MAX_FRAME_BYTES: usize = 16_384;
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

// Frame types (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

// Flags of frames.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

fn encode_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Appends an uncompressed HPACK string.
fn encode_string(bytes: &[u8], out: &mut Vec<u8>) {
    let mut rest = bytes.len();
    if rest < 127 {
        out.push(rest as u8);
    } else {
        out.push(127);
        rest -= 127;
        while rest >= 128 {
            out.push((rest % 128) as u8 | 128);
            rest /= 128;
        }
        out.push(rest as u8);
    }
    out.extend(bytes);
}

/// Header fields as literals without indexing.
fn encode_fields(fields: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        encode_string(name, &mut out);
        encode_string(value, &mut out);
    }
    out
}

/// HEADERS and CONTINUATION frames of stream 1.
fn encode_headers(fields: &[(Vec<u8>, Vec<u8>)], is_last: bool) -> Vec<u8> {
    let block = encode_fields(fields);
    let mut parts = block.chunks(MAX_FRAME_BYTES).peekable();
    let mut bytes = Vec::new();
    let mut kind = HEADERS;
    while let Some(part) = parts.next() {
        let mut flags = if parts.peek().is_none() { END_HEADERS } else { 0 };
        if is_last && kind == HEADERS {
            flags |= END_STREAM;
        }
        bytes.extend(encode_frame(kind, flags, 1, part));
        kind = CONTINUATION;
    }
    bytes
}

/// Bytes of a connection with one request.
pub fn request(case: &Case) -> Vec<u8> {
    let mut bytes = PREFACE.to_vec();
    // No header table in responses, no server push.
    bytes.extend(encode_frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]));
    let (body, trailers) = (case.body(), case.trailers());
    bytes.extend(encode_headers(&case.fields(), body.is_empty() && trailers.is_empty()));
    if !body.is_empty() {
        bytes.extend(encode_frame(DATA, if trailers.is_empty() { END_STREAM } else { 0 }, 1, &body));
    }
    if !trailers.is_empty() {
        bytes.extend(encode_headers(&trailers, true));
    }
    bytes
}

/// Sends the request and reads the response; the status is 0 if the stream is reset or refused.
pub async fn exchange(mut wire: Wire, request: &[u8]) -> Response {
    wire.write(request).await.ok();
    let mut response = Response::default();
    // An error ends the response like the end of the connection.
    let reading = read_response(&mut wire, &mut response);
    tokio::time::timeout(RESPONSE_TIMEOUT, reading).await.ok();
    response
}

async fn read_response(wire: &mut Wire, response: &mut Response) -> Result<()> {
    loop {
        let head = wire.read_exactly(9).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes([head[5] & 127, head[6], head[7], head[8]]);
        let payload = wire.read_exactly(length).await?;
        match (kind, stream) {
            (SETTINGS, _) if flags & ACK == 0 => wire.write(&encode_frame(SETTINGS, ACK, 0, b"")).await?,
            (PING, _) if flags & ACK == 0 => wire.write(&encode_frame(PING, ACK, 0, &payload)).await?,
            (HEADERS, 1) if response.status < 200 => response.status = decode_status(&payload)?,
            (DATA, 1) => response.body.extend(&payload),
            (RESET, 1) | (GOAWAY, _) => return Ok(()),
            _ => {}
        }
        if stream == 1 && matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 && response.status >= 200 {
            return Ok(());
        }
    }
}

/// Decodes the status from a header block, whose first field it must be.
fn decode_status(block: &[u8]) -> Result<u16> {
    let mut rest = block;
    while let Some(byte) = rest.first().filter(|byte| **byte & 0xe0 == 0x20) {
        // A larger header table was not allowed.
        if *byte == 0x3f {
            bail!("the response resizes the header table");
        }
        rest = &rest[1..];
    }
    let first = *rest.first().context("the header block is empty")?;
    if first & 0x80 != 0 {
        // Entries 8 to 14 of the static table (RFC 7541, appendix A).
        let static_statuses = [200, 204, 206, 304, 400, 404, 500];
        return static_statuses.get((first & 0x7f) as usize - 8).copied().context("the first field is not the status");
    }
    let length = *rest.get(1).context("the status has no value")?;
    let value = rest.get(2..2 + (length & 0x7f) as usize).context("the value of the status is incomplete")?;
    let digits = if length & 0x80 == 0 { value.to_vec() } else { decode_huffman(value) };
    Ok(String::from_utf8(digits)?.parse()?)
}

/// Decodes Huffman-coded digits of a status: `0` to `2` have five bits, the others six.
fn decode_huffman(bytes: &[u8]) -> Vec<u8> {
    let bits: Vec<u8> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |nth| byte >> nth & 1)).collect();
    let value_of = |bits: &[u8]| bits.iter().fold(0, |all, bit| all << 1 | bit);
    let (mut digits, mut at) = (Vec::new(), 0);
    while at + 5 <= bits.len() {
        let short = value_of(&bits[at..at + 5]);
        if short <= 2 {
            digits.push(b'0' + short);
            at += 5;
            continue;
        }
        let Some(long) = bits.get(at..at + 6).map(value_of).filter(|long| (25..=31).contains(long)) else { break };
        digits.push(b'3' + long - 25);
        at += 6;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(&[0x88], 200)]
    #[case(&[0x20, 0x8d], 404)]
    #[case(&[0x08, 3, b'4', b'0', b'3'], 403)]
    // RFC 7541, C.6.1.
    #[case(&[0x48, 0x82, 0x64, 0x02], 302)]
    #[case(&[0x48, 0x83, 0x64, 0x0e, 0xff], 307)]
    fn statuses_are_decoded(#[case] block: &[u8], #[case] expected: u16) {
        assert_eq!(decode_status(block).unwrap(), expected);
    }
}
