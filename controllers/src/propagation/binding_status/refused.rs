//! Statuses of templates that the API server refused, so that they are neither written nor reported again unchanged.

use std::collections::HashMap;
use std::time::Duration;

use crowsnest_api::keys::BindingKey;
use crowsnest_apimachinery::unstructured;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;

/// Time after which a refused status is written again: the schema or the version of the API server may have changed.
pub(super) const RETRY_AFTER: Duration = Duration::from_mins(10);

/// A status for a template, with the properties of the template that its validation depends on.
#[derive(PartialEq)]
struct StatusWrite {
    uid: String,
    generation: i64,
    stored: Value,
    /// The new status in JSON without the current time, which new conditions contain.
    status: String,
}

impl StatusWrite {
    fn new(template: &Value, status: &Value, now: Timestamp) -> Self {
        Self {
            uid: unstructured::uid(template).to_owned(),
            generation: unstructured::generation(template),
            stored: template.get("status").cloned().unwrap_or_default(),
            status: status.to_string().replace(&now.to_string(), ""),
        }
    }
}

/// The last refused status of each binding's template. It is forgotten when another status was accepted, and does not
/// apply after the template or its aggregated status has changed, or after [`RETRY_AFTER`].
#[derive(Default)]
pub(super) struct RefusedStatuses(Mutex<HashMap<BindingKey, (StatusWrite, Timestamp)>>);

impl RefusedStatuses {
    /// Time until this status may be written again. `None` if the API server has not refused it for the unchanged
    /// template, or long ago.
    pub(super) fn retry_delay(
        &self,
        key: &BindingKey,
        template: &Value,
        status: &Value,
        now: Timestamp,
    ) -> Option<Duration> {
        let refused = self.0.lock();
        let (write, since) = refused.get(key)?;
        let elapsed = Duration::try_from(now.duration_since(*since)).unwrap_or_default();
        let delay = RETRY_AFTER.saturating_sub(elapsed);
        (!delay.is_zero() && *write == StatusWrite::new(template, status, now)).then_some(delay)
    }

    pub(super) fn insert(&self, key: &BindingKey, template: &Value, status: &Value, now: Timestamp) {
        self.0.lock().insert(key.clone(), (StatusWrite::new(template, status, now), now));
    }

    pub(super) fn remove(&self, key: &BindingKey) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    const NOW: &str = "2026-01-01T00:00:00Z";
    const LATER: &str = "2026-01-01T00:01:00Z";

    fn time(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    fn template(uid: &str, generation: i64, stored: Value) -> Value {
        json!({"metadata": {"name": "web", "uid": uid, "generation": generation}, "status": stored})
    }

    fn status(count: i64, time: &str) -> Value {
        json!({"count": count, "conditions": [{"type": "Failed", "lastTransitionTime": time}]})
    }

    #[rstest]
    #[case::unchanged(template("u", 1, json!({"count": 1})), status(9, LATER), true)]
    #[case::other_status(template("u", 1, json!({"count": 1})), status(8, LATER), false)]
    #[case::changed_spec(template("u", 2, json!({"count": 1})), status(9, LATER), false)]
    #[case::changed_stored_status(template("u", 1, json!({"count": 2})), status(9, LATER), false)]
    #[case::created_again(template("v", 1, json!({"count": 1})), status(9, LATER), false)]
    fn a_refused_status_is_recognized_later(
        #[case] template_later: Value,
        #[case] status_later: Value,
        #[case] expected: bool,
    ) {
        let (refused, key) = (RefusedStatuses::default(), BindingKey::new("shop", "web-deployment"));
        let contains =
            |key: &BindingKey| refused.retry_delay(key, &template_later, &status_later, time(LATER)).is_some();
        refused.insert(&key, &template("u", 1, json!({"count": 1})), &status(9, NOW), time(NOW));
        assert_eq!(contains(&key), expected);
        assert!(!contains(&BindingKey::new("shop", "other")));
        refused.remove(&key);
        assert!(!contains(&key));
    }

    #[rstest]
    #[case::at_once("2026-01-01T00:00:00Z", Some(Duration::from_mins(10)))]
    #[case::soon("2026-01-01T00:09:00Z", Some(Duration::from_mins(1)))]
    #[case::after_a_while("2026-01-01T00:10:00Z", None)]
    #[case::clock_set_back("2025-12-31T00:00:00Z", Some(Duration::from_mins(10)))]
    fn a_refused_status_is_written_again_after_a_while(#[case] later: &str, #[case] expected: Option<Duration>) {
        let (refused, key, template) =
            (RefusedStatuses::default(), BindingKey::new("shop", "web-deployment"), template("u", 1, json!({})));
        refused.insert(&key, &template, &status(9, NOW), time(NOW));
        assert_eq!(refused.retry_delay(&key, &template, &status(9, later), time(later)), expected);
    }
}
