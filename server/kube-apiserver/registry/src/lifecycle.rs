//! `NamespaceLifecycle` admission: rejects creates in missing or terminating namespaces, and the deletion of system
//! namespaces.

use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use crowsnest_apimachinery::status::{ApiError, ApiResult, Cause};
use lru::LruCache;
use parking_lot::Mutex;

use crate::Registry;
use crate::admission::{Admission, Mutation, Operation};
use crate::object::Object;
use crate::storage::Revision;
use crowsnest_apimachinery::names::Gvr;

/// Namespaces that cannot be deleted.
const UNDELETABLE_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Maximum number of namespaces whose state is cached.
const MAX_CACHED_NAMESPACES: NonZeroUsize = NonZeroUsize::new(1024).expect("a constant above zero");

/// The `NamespaceLifecycle` admission plugin.
pub struct NamespaceLifecycle {
    registry: Weak<Registry>,
    /// True for terminating namespaces, with the revision of the check.
    cache: Mutex<LruCache<String, (Revision, bool)>>,
}

impl NamespaceLifecycle {
    pub fn new(registry: &Arc<Registry>) -> Self {
        Self { registry: Arc::downgrade(registry), cache: Mutex::new(LruCache::new(MAX_CACHED_NAMESPACES)) }
    }

    async fn is_terminating(&self, name: &str) -> ApiResult<bool> {
        let Some(registry) = self.registry.upgrade() else { return Ok(false) };
        let Some(namespaces) = registry.catalog.get(&Gvr::new("", "v1", "namespaces")) else { return Ok(false) };
        let record = registry.record(&namespaces, "", name)?;
        let revision = record.revision;
        if let Some((_, terminating)) = self.cache.lock().get(name).filter(|(cached, _)| *cached == revision) {
            return Ok(*terminating);
        }
        let namespace = registry.decode(&namespaces, record).await?;
        let terminating = namespace["status"]["phase"] == "Terminating" || namespace.is_deleting();
        self.cache.lock().put(name.to_owned(), (revision, terminating));
        Ok(terminating)
    }
}

#[async_trait]
impl Admission for NamespaceLifecycle {
    async fn mutate(&self, Mutation { attributes: a, object, .. }: Mutation<'_>) -> ApiResult<()> {
        let is_namespace = a.resource.gvr.group.is_empty() && &*a.resource.gvr.resource == "namespaces";
        if is_namespace && a.operation == Operation::Delete && UNDELETABLE_NAMESPACES.contains(&a.name) {
            return Err(ApiError::forbidden("", "namespaces", a.name, "this namespace may not be deleted"));
        }
        if !a.resource.namespaced || a.operation != Operation::Create {
            return Ok(());
        }
        // Access reviews are allowed in terminating namespaces.
        if a.is_for("authorization.k8s.io", "localsubjectaccessreviews") {
            return Ok(());
        }
        let name = &a.ctx.namespace;
        if !self.is_terminating(name).await? {
            return Ok(());
        }
        let message = format!("unable to create new content in namespace {name} because it is being terminated");
        let object_name = object.as_deref().map(|o| o.name().to_owned()).unwrap_or_default();
        let mut error = ApiError::forbidden(&a.resource.gvr.group, &a.resource.gvr.resource, &object_name, message);
        if let Some(details) = &mut error.details {
            details.causes.push(Cause {
                reason: "NamespaceTerminating".into(),
                message: format!("namespace {name} is being terminated"),
                field: "metadata.namespace".into(),
            });
        }
        Err(error)
    }
}
