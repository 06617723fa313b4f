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
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Number of namespaces whose state is cached.
const SEEN: NonZeroUsize = NonZeroUsize::new(1024).expect("a constant above zero");

/// The admission step.
pub struct NamespaceLifecycle {
    registry: Weak<Registry>,
    /// True for terminating namespaces, with the revision of the check.
    seen: Mutex<LruCache<String, (Revision, bool)>>,
}

impl NamespaceLifecycle {
    pub fn new(registry: &Arc<Registry>) -> Self {
        Self { registry: Arc::downgrade(registry), seen: Mutex::new(LruCache::new(SEEN)) }
    }

    async fn is_going(&self, name: &str) -> ApiResult<bool> {
        let Some(registry) = self.registry.upgrade() else { return Ok(false) };
        let Some(namespaces) = registry.catalog.get(&Gvr::new("", "v1", "namespaces")) else { return Ok(false) };
        let record = registry.record(&namespaces, "", name)?;
        let revision = record.revision;
        if let Some((_, going)) = self.seen.lock().get(name).filter(|(seen, _)| *seen == revision) {
            return Ok(*going);
        }
        let namespace = registry.decode(&namespaces, record).await?;
        let going = namespace["status"]["phase"] == "Terminating" || namespace.is_deleting();
        self.seen.lock().put(name.to_owned(), (revision, going));
        Ok(going)
    }
}

#[async_trait]
impl Admission for NamespaceLifecycle {
    async fn mutate(&self, Mutation { attributes: a, object, .. }: Mutation<'_>) -> ApiResult<()> {
        let namespaces = a.resource.gvr.group.is_empty() && &*a.resource.gvr.resource == "namespaces";
        if namespaces && a.operation == Operation::Delete && IMMORTAL.contains(&a.name) {
            return Err(ApiError::forbidden("", "namespaces", a.name, "this namespace may not be deleted"));
        }
        if !a.resource.namespaced || a.operation != Operation::Create {
            return Ok(());
        }
        // Access reviews are allowed in terminating namespaces.
        if a.is("authorization.k8s.io", "localsubjectaccessreviews") {
            return Ok(());
        }
        let name = &a.ctx.namespace;
        if !self.is_going(name).await? {
            return Ok(());
        }
        let why = format!("unable to create new content in namespace {name} because it is being terminated");
        let given = object.as_deref().map(|o| o.name().to_owned()).unwrap_or_default();
        let mut error = ApiError::forbidden(&a.resource.gvr.group, &a.resource.gvr.resource, &given, why);
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
