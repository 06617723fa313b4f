//! Bindings whose update was rejected by a quota: the template waits, and the binding has a condition.

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
    /// Reports on a binding that a quota rejected the current requests of its template, like the scheduler does for
    /// its own writes. A failure to report is retried with the next attempt.
    pub(super) async fn tell_refused(&self, resource: &Resource, binding: &Value, refusal: &Error) {
        if refusal.code() != Some(403) || refusal.reason() != condition::SCHEDULED_QUOTA_EXCEEDED {
            return;
        }
        if let Err(error) = self.show_over_quota(resource, binding, &refusal.message()).await {
            tracing::warn!(%error, "cannot report on a binding that a quota rejected its update");
        }
    }

    async fn show_over_quota(&self, resource: &Resource, binding: &Value, message: &str) -> Result<(), Error> {
        let typed: ResourceBinding = decode(binding)?;
        self.context.note_quota_denied(&typed, &typed.spec.clusters, message).await?;
        let mut shown = typed.status.conditions.clone();
        let reason = condition::SCHEDULED_QUOTA_EXCEEDED;
        if !conditions::set(
            &mut shown,
            conditions::condition(condition::SCHEDULED, false, reason, message, self.context.now()),
        ) {
            return Ok(());
        }
        let patch = json!({"status": {"conditions": shown}});
        self.context.merge_status(resource, binding, patch).await?;
        let events = &self.context.events;
        events.note_both(binding, &typed.spec, Severity::Warning, event::SCHEDULE_BINDING_FAILED, message);
        Ok(())
    }
}
