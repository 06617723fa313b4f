//! Texts of failed requests to an API server.

use std::error::Error;

/// The reason why a request failed: the message of the API server, or the innermost causes where none answered.
pub fn reason(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => innermost(other),
    }
}

/// The innermost causes of an error. Those around them only name the layers that it passed.
fn innermost(error: &kube::Error) -> String {
    let (mut causes, mut next) = (Vec::new(), error.source());
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    match causes.as_slice() {
        [] => error.to_string(),
        [one] => one.clone(),
        [_, inner @ ..] => inner.join(": "),
    }
}
