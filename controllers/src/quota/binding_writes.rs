//! Writes of bindings in namespaces with a FederatedResourceQuota: serializes those of this process, and records
//! requests that a quota rejected.
//!
//! Admission counts stored bindings, so two bindings that are admitted concurrently do not count each other. This
//! module writes them one after another: the first is stored before the second is admitted.

use crowsnest_api::work::{ResourceBinding, TargetCluster};
use crowsnest_apimachinery::unstructured;
use tokio::sync::OwnedMutexGuard;

use crate::Error;
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::Resource;
use crowsnest_plan::journal::workloads::quota_denied_entry;
use crowsnest_plan::quota::ExceededQuota;

impl Context {
    /// Acquires the lock for writing a binding if its namespace has a quota.
    pub(crate) async fn lock_quota(
        &self,
        resource: &Resource,
        namespace: &str,
    ) -> Result<Option<OwnedMutexGuard<()>>, Error> {
        let is_enforced = self.config.gates.federated_quota_enforcement && *resource == self.kinds.resource_binding;
        let kind = &self.kinds.federated_resource_quota;
        if !is_enforced || self.headers(kind, namespace).await?.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.quota_locks.lock(namespace).await))
    }

    /// Records in the journal that a quota rejected `clusters` as targets of a binding, from the `message` of the API
    /// server.
    pub(crate) async fn record_quota_rejection(
        &self,
        binding: &ResourceBinding,
        clusters: &[TargetCluster],
        message: &str,
    ) -> Result<(), Error> {
        let Some(mut exceeded) = ExceededQuota::parse(message) else { return Ok(()) };
        let (kind, key) = (&self.kinds.federated_resource_quota, &exceeded.quota);
        if let Some(quota) = self.get_redacted(kind, &key.namespace, &key.name).await? {
            exceeded.quota.uid = unstructured::uid(quota.view()).to_owned();
        }
        self.journal.add(quota_denied_entry(binding, clusters, &exceeded, self.now())).await;
        Ok(())
    }
}
