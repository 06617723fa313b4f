//! Error responses and texts for failed requests to an API server.

use std::error::Error;

use crowsnest_apimachinery::status::{ApiError, Cause, Details};

/// Converts a failed request to the control plane to an error response: its `Status`, or 503 if it cannot be reached.
pub fn api_error(error: kube::Error) -> ApiError {
    let kube::Error::Api(status) = error else {
        return ApiError::unavailable(format!("cannot reach the control plane: {error}"));
    };
    let continue_token = status.metadata.and_then(|metadata| metadata.continue_).map(String::into_boxed_str);
    let details = status.details.map(|details| {
        let causes = details.causes.into_iter();
        let causes = causes.map(|cause| Cause { reason: cause.reason, message: cause.message, field: cause.field });
        Box::new(Details {
            name: details.name,
            group: details.group,
            kind: details.kind,
            uid: details.uid,
            causes: causes.collect(),
            retry_after_seconds: (details.retry_after_seconds > 0).then_some(details.retry_after_seconds),
        })
    });
    ApiError { code: status.code, reason: status.reason, message: status.message, details, continue_token }
}

/// The cause of a failed request: the message of the API server, or the innermost errors if there was no response.
pub fn describe_cause(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => describe_innermost_causes(other),
    }
}

/// Joins the innermost errors of a chain of sources. The outer two only name the layers of the client.
fn describe_innermost_causes(error: &kube::Error) -> String {
    let (mut causes, mut next) = (Vec::new(), error.source());
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    match causes.as_slice() {
        [] => error.to_string(),
        [cause] => cause.clone(),
        [_, inner @ ..] => inner.join(": "),
    }
}
