//! Interface of the admission chain, which can change or reject a write after authorization.
//!
//! The registry runs `mutate` of every step, then `guard`, and finally `validate` on the object to be stored. The
//! steps are set at the server's start ([`super::Registry::set_admission`]).

pub mod expression;
mod reinvocation;

use std::sync::Arc;

use async_trait::async_trait;
use crowsnest_apimachinery::names::format::validate_qualified_name;
use crowsnest_apimachinery::status::ApiResult;
use serde_json::Value;
use tokio::sync::OnceCell;

use super::resource::{ResourceRef, Subresource};
use super::strategy::RequestContext;

pub use reinvocation::Reinvocation;

/// API group of webhook configurations and admission policies.
pub const GROUP: &str = "admissionregistration.k8s.io";

/// `CREATE`, `UPDATE`, `DELETE`, `CONNECT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// The Namespace of a write, read on first use. Clones share it, so that all phases of a write can use it.
#[derive(Debug, Clone, Default)]
pub struct NamespaceCache(Arc<OnceCell<Value>>);

impl NamespaceCache {
    /// The Namespace; `None` if it does not exist. A missing Namespace is not cached: if it is created between two
    /// phases, the later phase evaluates its selectors.
    pub async fn get_or_read<E>(
        &self,
        read: impl Future<Output = Result<Option<Value>, E>>,
    ) -> Result<Option<&Value>, E> {
        if let Some(namespace) = self.0.get() {
            return Ok(Some(namespace));
        }
        let Some(namespace) = read.await? else { return Ok(None) };
        Ok(Some(self.0.get_or_init(|| std::future::ready(namespace)).await))
    }
}

/// Attributes of a write under admission.
#[derive(Debug)]
pub struct Attributes<'a> {
    pub ctx: &'a RequestContext,
    pub resource: &'a ResourceRef,
    pub operation: Operation,
    pub name: &'a str,
    /// The stored object; `None` on create.
    pub old: Option<&'a Value>,
    /// `CreateOptions`, `UpdateOptions`, `PatchOptions`, `DeleteOptions` as the client sent them.
    pub options: &'a Value,
    /// Progress of mutating admission.
    pub reinvocation: Reinvocation,
    /// The Namespace, for policies and webhooks.
    pub namespace: NamespaceCache,
}

impl<'a> Attributes<'a> {
    pub fn new(
        ctx: &'a RequestContext,
        resource: &'a ResourceRef,
        operation: Operation,
        name: &'a str,
        options: &'a Value,
    ) -> Self {
        Self {
            ctx,
            resource,
            operation,
            name,
            old: None,
            options,
            reinvocation: Reinvocation::default(),
            namespace: NamespaceCache::default(),
        }
    }

    /// The subresource of the request, if its kind differs from the kind of the resource.
    pub fn subresource_of_other_kind(&self) -> Option<&Subresource> {
        let matches = |sub: &&Subresource| sub.name == self.ctx.subresource && sub.kind != self.resource.kind;
        self.resource.subresources.iter().find(matches)
    }

    /// Adds an annotation to the audit event of the request. As in kube-apiserver, the key is a qualified name with a
    /// prefix, and its first value is kept.
    pub fn annotate(&self, key: &str, value: &str) {
        let Some(record) = &self.ctx.record else { return };
        if !key.contains('/') || !validate_qualified_name(key).is_empty() {
            tracing::warn!(key, "ignoring an audit annotation with an invalid key");
        } else if !record.annotate_once(key, value) {
            tracing::warn!(key, "ignoring another value of an audit annotation");
        }
    }

    /// True if the resource itself is written, not a subresource.
    pub fn is_for(&self, group: &str, resource: &str) -> bool {
        *self.resource.gvr.group == *group
            && *self.resource.gvr.resource == *resource
            && self.ctx.subresource.is_empty()
    }
}

/// Input of one step of the admission chain. `object` is absent on delete. Warnings are returned in `Warning` headers.
#[derive(Debug)]
pub struct Review<'r, Object> {
    pub attributes: &'r Attributes<'r>,
    pub object: Option<Object>,
    pub warnings: &'r mut Vec<String>,
}

pub type Mutation<'r> = Review<'r, &'r mut Value>;
pub type Validation<'r> = Review<'r, &'r Value>;

/// A step of the admission chain.
#[async_trait]
pub trait Admission: Send + Sync {
    /// Mutating admission: can change or reject the object.
    async fn mutate(&self, _review: Mutation<'_>) -> ApiResult<()> {
        Ok(())
    }

    /// Runs the checks that kube-apiserver makes in a kind's storage, such as privilege escalation through RBAC. It follows all mutations,
    /// precedes preparation and validation of the object, and can only reject the request.
    async fn guard(&self, _attributes: &Attributes<'_>, _object: &Value) -> ApiResult<()> {
        Ok(())
    }

    /// Validating admission: can only reject the request.
    async fn validate(&self, _review: Validation<'_>) -> ApiResult<()> {
        Ok(())
    }
}

/// Steps of an admission chain, in order.
pub type Chain = [Arc<dyn Admission>];

/// Runs the mutating admission of all steps, and again if a step has to be invoked again.
pub async fn mutate(
    chain: &Chain,
    attributes: &Attributes<'_>,
    mut object: Option<&mut Value>,
    warnings: &mut Vec<String>,
) -> ApiResult<()> {
    loop {
        for step in chain {
            step.mutate(Review { attributes, object: object.as_deref_mut(), warnings: &mut *warnings }).await?;
        }
        if !attributes.reinvocation.begin_second() {
            return Ok(());
        }
    }
}

/// Runs the validating admission of all steps.
pub async fn validate(
    chain: &Chain,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
    warnings: &mut Vec<String>,
) -> ApiResult<()> {
    for step in chain {
        step.validate(Review { attributes, object, warnings: &mut *warnings }).await?;
    }
    Ok(())
}
