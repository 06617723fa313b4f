//! Reports that a quota rejected the update of a binding, in a condition of the binding.

use crowsnest_api::constants::{condition, event};
use crowsnest_api::work::ResourceBinding;
use serde_json::{Value, json};

use super::ResourceDetector;
use crate::Error;
use crate::runtime::context::decode;
use crate::runtime::dynamic_client::Resource;
use crate::runtime::event_recorder::Severity;
use crowsnest_plan::conditions;

impl ResourceDetector {
    /// Sets the Scheduled condition of a binding to false if `error` is the rejection of its update by a quota, as the
    /// scheduler does for its own writes. If that fails, the next attempt to update the binding reports it again.
    pub(super) async fn report_quota_rejection(&self, resource: &Resource, binding: &Value, error: &Error) {
        if error.code() != Some(403) || error.reason() != condition::SCHEDULED_QUOTA_EXCEEDED {
            return;
        }
        if let Err(write_error) = self.write_quota_condition(resource, binding, &error.message()).await {
            tracing::warn!(error = %write_error, "cannot report a quota rejection in the status of the binding");
        }
    }

    async fn write_quota_condition(&self, resource: &Resource, binding: &Value, message: &str) -> Result<(), Error> {
        let typed: ResourceBinding = decode(binding)?;
        self.context.record_quota_rejection(&typed, &typed.spec.clusters, message).await?;
        let mut conditions = typed.status.conditions.clone();
        let reason = condition::SCHEDULED_QUOTA_EXCEEDED;
        if !conditions::set(
            &mut conditions,
            conditions::condition(condition::SCHEDULED, false, reason, message, self.context.now()),
        ) {
            return Ok(());
        }
        let patch = json!({"status": {"conditions": conditions}});
        self.context.merge_status(resource, binding, patch).await?;
        let events = &self.context.events;
        events.record_with_template(binding, &typed.spec, Severity::Warning, event::SCHEDULE_BINDING_FAILED, message);
        Ok(())
    }
}
