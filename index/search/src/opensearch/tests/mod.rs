//! Snapshot tests, property tests of all parts together, and comparisons with real engines.

mod comparison;
mod documents;
mod engines;
pub mod interpreter;
mod queries;
pub mod samples;

use super::document::EngineDocument;
use crate::document::Document;
use crowsnest_store::fixtures::stored;
use serde_json::Value;

/// The engine's document of an object.
fn engine_document(cluster: &str, id: u64, object: &Value) -> EngineDocument {
    EngineDocument::from_document(&Document::from_object(&stored(cluster, id, object)).unwrap())
}
