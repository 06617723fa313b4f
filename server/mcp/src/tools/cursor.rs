//! Cursors: opaque text that continues a call with the same arguments.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::arguments::Arguments;
use crate::message::RpcError;

/// Position at which a call continues a previous one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Position {
    /// Number of rows to skip.
    #[serde(rename = "o")]
    Offset(usize),
    /// Continuation token of an API.
    #[serde(rename = "t")]
    Token(String),
    /// Within a page of an API: after its first rows.
    #[serde(rename = "w")]
    Within(PagePosition),
}

/// A place in an API's page, between two rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PagePosition {
    /// Continuation token of the page; empty for the first one.
    #[serde(rename = "t")]
    pub token: String,
    /// Number of rows that were shown.
    #[serde(rename = "r")]
    pub rows: usize,
    /// Hash of the object of the last shown row, by which it is found if rows before it were added or removed.
    #[serde(rename = "l")]
    pub last: u64,
    /// Hash of the object of the first row that was not shown, by which the place is found if the last shown row has moved.
    #[serde(rename = "n")]
    pub next: u64,
}

/// A position, with the tool and a hash of the arguments that it belongs to.
#[derive(Serialize, Deserialize)]
pub(crate) struct Cursor(String, u64, Position);

impl Cursor {
    /// Encodes a position as opaque text.
    pub fn encode(tool: &str, arguments: &Arguments<'_>, position: Position) -> String {
        let json = serde_json::to_vec(&Self(tool.to_owned(), hash(arguments), position)).unwrap_or_default();
        URL_SAFE_NO_PAD.encode(json)
    }

    /// Parses the text of a cursor. Fails if it is not a cursor of this tool for these arguments.
    pub fn parse(text: &str, tool: &str, arguments: &Arguments<'_>) -> Result<Position, RpcError> {
        let decoded = URL_SAFE_NO_PAD.decode(text).ok();
        let cursor = decoded.and_then(|json| serde_json::from_slice::<Self>(&json).ok());
        match cursor {
            Some(Self(cursor_tool, arguments_hash, position))
                if cursor_tool == tool && arguments_hash == hash(arguments) =>
            {
                Ok(position)
            }
            _ => Err(RpcError::invalid_params("invalid cursor: it belongs to another tool or to other arguments")),
        }
    }
}

fn hash(arguments: &Arguments<'_>) -> u64 {
    // Maps of serde_json are sorted by key.
    let arguments: Vec<_> = arguments.without_paging().collect();
    xxh3_64(&serde_json::to_vec(&arguments).unwrap_or_default())
}
