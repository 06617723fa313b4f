//! Parses the response to a bulk request.

use super::request::{DocumentChange, Marker};
use crate::opensearch::client::{ClientError, ErrorBody, ErrorResponse};
use serde::Deserialize;

/// State of one change after a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Written, or deleted, even if there was nothing to delete.
    Written,
    /// The engine has this version or a newer one.
    Superseded,
    /// The engine refuses the document permanently; a retry does not help.
    Poisoned(ErrorResponse),
    /// The engine cannot accept it at present.
    Retry(ErrorResponse),
    /// The index is missing, closed or blocked, or the caller has no permission to it.
    Unavailable(ErrorResponse),
    /// The response has no item for it.
    Missing,
}

/// A parsed response, with the outcomes in the order of the changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BulkResponse {
    /// The marker was written again, so the request reached another index than earlier requests.
    pub replaced: bool,
    pub outcomes: Vec<Outcome>,
}

/// Class of a request that failed completely: determines the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestFailure {
    /// Pause, then send it again.
    Retry,
    /// One change may be the cause: send the request as two, each with half of the changes.
    Halve,
    /// The only change in it is the cause.
    Poisoned,
    /// The index, the permissions or the connection are the cause: check these.
    Unavailable,
}

#[derive(Deserialize)]
struct ResponseBody {
    #[serde(default)]
    items: Vec<Item>,
}

/// Result of one action: exactly one of the fields is set.
#[derive(Deserialize)]
struct Item {
    index: Option<ItemResult>,
    delete: Option<ItemResult>,
}

#[derive(Deserialize)]
struct ItemResult {
    #[serde(rename = "_id")]
    id: String,
    status: u16,
    error: Option<ErrorBody>,
}

/// Reads a response to a request of `changes` after the marker. Items are matched by position, action and id; those after
/// the first mismatch count as missing, so that they are sent again.
pub fn parse_response(body: &[u8], marker: &Marker, changes: &[DocumentChange]) -> Result<BulkResponse, ClientError> {
    let response: ResponseBody = serde_json::from_slice(body)
        .map_err(|source| ClientError::Unreadable { operation: "a bulk request", source })?;
    let mut items = response.items.into_iter();
    let Some(first) = items.next().and_then(|item| item.index).filter(|item| item.id == marker.id()) else {
        return Ok(BulkResponse { replaced: false, outcomes: vec![Outcome::Missing; changes.len()] });
    };
    let replaced = first.status < 300;
    if !replaced && first.status != 409 {
        // Every index that Crowsnest created accepts the marker, so the index or the alias is the cause, not a
        // document.
        let error_response = ErrorResponse::new(first.status, first.error);
        let outcome = if error_response.is_retryable() {
            Outcome::Retry(error_response)
        } else {
            Outcome::Unavailable(error_response)
        };
        return Ok(BulkResponse { replaced, outcomes: vec![outcome; changes.len()] });
    }
    let mut outcomes: Vec<Outcome> = changes
        .iter()
        .zip(items)
        .map_while(|(change, item)| {
            let result = if change.document.is_some() { item.index } else { item.delete };
            result.filter(|result| result.id == change.id).map(|result| outcome(result, change.document.is_none()))
        })
        .collect();
    outcomes.resize(changes.len(), Outcome::Missing);
    Ok(BulkResponse { replaced, outcomes })
}

fn outcome(result: ItemResult, deleted: bool) -> Outcome {
    let ItemResult { status, error, .. } = result;
    if status < 300 || deleted && status == 404 && error.is_none() {
        return Outcome::Written;
    }
    if status == 409 {
        return Outcome::Superseded;
    }
    let error_response = ErrorResponse::new(status, error);
    if error_response.is_retryable() {
        Outcome::Retry(error_response)
    } else if error_response.is_about_index() {
        Outcome::Unavailable(error_response)
    } else if status >= 500 {
        Outcome::Retry(error_response)
    } else {
        Outcome::Poisoned(error_response)
    }
}

/// Classifies the failure of a request with this number of changes.
pub fn classify_failure(error: &ClientError, items: usize) -> RequestFailure {
    let Some(error_response) = error.error_response() else {
        // The response to fewer changes may be small enough, or readable.
        let by_size = matches!(error, ClientError::TooLarge { .. } | ClientError::Unreadable { .. });
        return match (error.is_retryable(), by_size && items > 1) {
            (_, true) => RequestFailure::Halve,
            (true, false) => RequestFailure::Retry,
            (false, false) => RequestFailure::Unavailable,
        };
    };
    if error_response.is_retryable() {
        RequestFailure::Retry
    } else if error_response.is_about_index() || error_response.status == 404 {
        RequestFailure::Unavailable
    } else {
        match (error_response.status, items) {
            (_, 2..) => RequestFailure::Halve,
            (400 | 413, _) => RequestFailure::Poisoned,
            (500.., _) => RequestFailure::Retry,
            _ => RequestFailure::Unavailable,
        }
    }
}
