//! Error messages of client-go for unsuccessful HTTP responses. API servers report failed webhook calls with them.

use serde_json::Value;

/// The message of an unsuccessful response: that of its Status, otherwise the default of its code. `is_text` is true if
/// the body is plain text.
pub fn error_message(code: u16, is_text: bool, body: &[u8]) -> String {
    let status: Option<Value> = serde_json::from_slice(body).ok();
    if let Some(message) = status.as_ref().filter(|s| s["kind"] == "Status").and_then(|s| s["message"].as_str()) {
        return message.to_owned();
    }
    let text = if is_text { String::from_utf8_lossy(body).trim().to_owned() } else { "unknown".to_owned() };
    match code {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 => text,
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        406 if text.is_empty() || text == "unknown" => {
            "the server was unable to respond with a content type that the client supports".to_owned()
        }
        // The body names the supported media types.
        406 | 415 => text,
        409 => "the server reported a conflict".to_owned(),
        422 => "the server rejected our request due to an error in our request".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
                .to_owned()
        }
        500.. => format!("an error on the server ({text:?}) has prevented the request from succeeding"),
        _ => format!("the server responded with the status code {code} but did not return more information"),
    }
}
