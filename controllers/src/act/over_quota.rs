//! Bindings and FederatedResourceQuotas: writes of this process take turns where a quota limits them, and what a quota refuses is noted.
//!
//! Admission counts what is stored, so of two bindings that are admitted at once neither sees the other. Here they are written one
//! after another: the API server has stored the first before the second is admitted.

use crowsnest_api::work::{ResourceBinding, TargetCluster};
use tokio::sync::OwnedMutexGuard;

use super::context::Context;
use super::objects::Resource;
use crate::Error;
use crate::plan::journal::workloads::quota_denied;
use crate::plan::object;
use crate::plan::quota::Exceeded;

impl Context {
    /// The turn to write a binding, where its namespace has a quota.
    pub(super) async fn quota_turn(
        &self,
        resource: &Resource,
        namespace: &str,
    ) -> Result<Option<OwnedMutexGuard<()>>, Error> {
        let counts = self.config.gates.federated_quota_enforcement && *resource == self.kinds.resource_binding;
        let kind = &self.kinds.federated_resource_quota;
        if !counts || self.headers(kind, namespace).await?.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.binding_turns.take(namespace).await))
    }

    /// Notes in the journal that the API server refused a binding its `wanted` clusters because of a quota, in the `message` of its
    /// refusal.
    pub(super) async fn note_quota_denied(
        &self,
        binding: &ResourceBinding,
        wanted: &[TargetCluster],
        message: &str,
    ) -> Result<(), Error> {
        let Some(mut exceeded) = Exceeded::read(message) else { return Ok(()) };
        let (kind, of) = (&self.kinds.federated_resource_quota, &exceeded.quota);
        if let Some(quota) = self.glance(kind, &of.namespace, &of.name).await? {
            exceeded.quota.uid = object::uid(quota.view()).to_owned();
        }
        self.journal.note(quota_denied(binding, wanted, &exceeded, self.now())).await;
        Ok(())
    }
}
