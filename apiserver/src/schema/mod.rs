//! The one typed schema: server-side apply, strategic merge, unknown fields, defaulting, pruning and OpenAPI all read it.

use std::sync::Arc;

/// A node of a typed schema. (Shape owned by this module.)
#[derive(Debug)]
pub struct Schema {}

/// Shared handle to the schema of one kind.
pub type SchemaRef = Arc<Schema>;
