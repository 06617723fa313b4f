//! The admission chain: what may still change or refuse a write after authorisation.

use async_trait::async_trait;
use serde_json::Value;

use crate::registry::resource::ResourceRef;
use crate::registry::strategy::RequestContext;
use crate::status::ApiResult;

/// `CREATE`, `UPDATE`, `DELETE`, `CONNECT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

/// One write under admission.
#[derive(Debug)]
pub struct Attributes<'a> {
    pub ctx: &'a RequestContext,
    pub resource: &'a ResourceRef,
    pub operation: Operation,
    pub name: &'a str,
    /// Absent on create.
    pub old: Option<&'a Value>,
    /// `CreateOptions`, `UpdateOptions`, `PatchOptions`, `DeleteOptions` as the client sent them.
    pub options: &'a Value,
}

/// A step of the chain. `object` is absent on delete. Warnings go to the answer's `Warning` headers.
#[async_trait]
pub trait Admission: Send + Sync {
    /// May change the object.
    async fn mutate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&mut Value>,
        _warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        Ok(())
    }

    /// May only refuse.
    async fn validate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&Value>,
        _warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        Ok(())
    }
}
