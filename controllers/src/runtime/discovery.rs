//! Discovery of the control plane: periodic, and after a change of a CustomResourceDefinition or APIService until
//! discovery shows the change. The second is needed because an API server reports a kind as established shortly before
//! it serves the kind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::unstructured;
use crowsnest_component_base::retry::Backoff;
use crowsnest_members::ApiResources;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::cache::Change;
use crate::propagation::detector::ResourceDetector;
use crate::runtime::Setup;
use crate::runtime::context::Context;

/// Delay between requests to discovery while a change is expected.
const EXPECTED_CHANGE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
/// Delay between attempts of the first discovery.
const FIRST_DISCOVERY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Time for which discovery is repeated quickly for an expected change. Afterwards, the periodic discovery finds it.
const EXPECTED_TIMEOUT: Duration = Duration::from_secs(30);

/// Resources that discovery must show after a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ExpectedChange {
    served: Vec<Gvr>,
    removed: Vec<Gvr>,
    /// `group/version`s of aggregated APIs.
    groups_served: Vec<String>,
    groups_removed: Vec<String>,
}

impl ExpectedChange {
    fn from_definition(definition: &Value, deleted: bool) -> Option<Self> {
        if !deleted && !has_condition(definition, "Established") {
            return None;
        }
        let group = unstructured::text(definition, &["spec", "group"]);
        let plural = unstructured::text(definition, &["spec", "names", "plural"]);
        let versions = unstructured::at(definition, &["spec", "versions"]).and_then(Value::as_array);
        let mut expected = ExpectedChange::default();
        for version in versions.into_iter().flatten() {
            let served = !deleted && version.get("served").and_then(Value::as_bool).unwrap_or_default();
            let gvr = Gvr::new(group, unstructured::text(version, &["name"]), plural);
            if served { expected.served.push(gvr) } else { expected.removed.push(gvr) }
        }
        Some(expected)
    }

    fn from_api_service(service: &Value, deleted: bool) -> Option<Self> {
        // Local APIServices have no service and follow from the CustomResourceDefinitions.
        unstructured::at(service, &["spec", "service"]).filter(|service| service.is_object())?;
        let group = unstructured::text(service, &["spec", "group"]);
        let group_version = format!("{group}/{}", unstructured::text(service, &["spec", "version"]));
        match deleted {
            true => Some(ExpectedChange { groups_removed: vec![group_version], ..ExpectedChange::default() }),
            false if has_condition(service, "Available") => {
                Some(ExpectedChange { groups_served: vec![group_version], ..ExpectedChange::default() })
            }
            false => None,
        }
    }

    fn is_met(&self, served: &ApiResources) -> bool {
        let has_group = |group_version: &String| {
            !served.stale.contains(group_version)
                && served.resources.iter().any(|resource| resource.gvr.api_version() == *group_version)
        };
        self.served.iter().all(|gvr| served.get(gvr).is_some())
            && self.removed.iter().all(|gvr| served.get(gvr).is_none())
            && self.groups_served.iter().all(has_group)
            && !self.groups_removed.iter().any(has_group)
    }
}

fn has_condition(object: &Value, kind: &str) -> bool {
    let conditions = unstructured::at(object, &["status", "conditions"]).and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| {
        unstructured::text(condition, &["type"]) == kind && unstructured::text(condition, &["status"]) == "True"
    })
}

/// Updates the REST mapper and the detector's template resources from discovery.
pub struct Discoverer {
    context: Arc<Context>,
    detector: Arc<ResourceDetector>,
    expected: Mutex<BTreeMap<(String, String), (ExpectedChange, Instant)>>,
    /// Wakes the discovery loop after a change.
    wake: Notify,
}

impl Discoverer {
    pub fn new(setup: &Setup) -> Self {
        Discoverer {
            context: setup.context(),
            detector: setup.controller(),
            expected: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Runs discovery periodically, and after a change until discovery shows it.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<(), String> {
        let period = self.context.config.periods.discovery;
        let mut attempts = 0;
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = self.wait_until_due(period, &mut attempts) => {}
            }
            if let Err(error) = self.discover().await {
                tracing::warn!(%error, "discovery failed");
            }
        }
    }

    /// Returns once discovery has succeeded.
    pub async fn wait_for_discovery(&self) {
        let mut delays = FIRST_DISCOVERY_BACKOFF.delays();
        while let Err(error) = self.discover().await {
            tracing::warn!(%error, "discovery failed");
            tokio::time::sleep(delays.next_delay()).await;
        }
    }

    async fn discover(&self) -> Result<(), Error> {
        let served = self.context.rest_mapper.refresh(&self.context.control_plane).await?;
        self.detector.update_template_resources(&served);
        self.remove_met_expectations(&served);
        Ok(())
    }

    /// Expects the effect of a change of a CustomResourceDefinition or APIService.
    pub fn on_change(&self, change: &Change) {
        let expected = match change.resource.kind.as_str() {
            "CustomResourceDefinition" => ExpectedChange::from_definition(change.object(), change.deleted),
            "APIService" => ExpectedChange::from_api_service(change.object(), change.deleted),
            _ => return,
        };
        if let Some(expected) = expected.filter(|_| !change.initial) {
            let key = (change.resource.kind.clone(), unstructured::name(change.object()).to_owned());
            self.expected.lock().insert(key, (expected, Instant::now() + EXPECTED_TIMEOUT));
            self.wake.notify_one();
        }
    }

    /// Removes expected changes that discovery shows.
    fn remove_met_expectations(&self, served: &ApiResources) {
        let now = Instant::now();
        self.expected.lock().retain(|(kind, name), (expected, until)| {
            let is_met = expected.is_met(served);
            if !is_met && *until <= now {
                tracing::warn!(kind, name, "discovery does not show an expected change");
            }
            !is_met && *until > now
        });
    }

    /// Waits until the next discovery: after `period`, sooner while a change is expected. `attempts` counts
    /// unsuccessful attempts.
    async fn wait_until_due(&self, period: Duration, attempts: &mut u32) {
        let delay = match self.expected.lock().is_empty() {
            true => period,
            false => EXPECTED_CHANGE_BACKOFF.delay(attempts.saturating_add(1)),
        };
        tokio::select! {
            () = tokio::time::sleep(delay) => *attempts = attempts.saturating_add(1),
            () = self.wake.notified() => *attempts = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_members::ApiResource;
    use rstest::rstest;
    use serde_json::json;

    fn definition(established: &str) -> Value {
        json!({
            "spec": {"group": "g.io", "names": {"plural": "things"}, "versions": [
                {"name": "v1", "served": true}, {"name": "v1alpha1", "served": false},
            ]},
            "status": {"conditions": [{"type": "Established", "status": established}]},
        })
    }

    fn served(versions: &[&str]) -> ApiResources {
        let resource = |version: &&str| ApiResource {
            gvr: Gvr::new("g.io", version, "things"),
            kind: "Thing".to_owned(),
            namespaced: true,
            singular: String::new(),
            short_names: Vec::new(),
            categories: Vec::new(),
            verbs: Default::default(),
            subresources: Default::default(),
            preferred: true,
        };
        ApiResources { resources: versions.iter().map(resource).collect(), ..ApiResources::default() }
    }

    #[rstest]
    #[case::not_yet_established("False", false, &[], None)]
    #[case::established("True", false, &[], Some(false))]
    #[case::served("True", false, &["v1"], Some(true))]
    #[case::unserved_version_in_discovery("True", false, &["v1", "v1alpha1"], Some(false))]
    #[case::deleted_and_in_discovery("True", true, &["v1"], Some(false))]
    #[case::deleted("True", true, &[], Some(true))]
    fn changes_of_definitions_are_expected(
        #[case] established: &str,
        #[case] deleted: bool,
        #[case] versions: &[&str],
        #[case] met: Option<bool>,
    ) {
        let expected = ExpectedChange::from_definition(&definition(established), deleted);
        assert_eq!(expected.map(|expected| expected.is_met(&served(versions))), met);
    }

    #[rstest]
    #[case::local(json!({"group": "g.io", "version": "v1"}), false, &[], None)]
    #[case::available(json!({"group": "g.io", "version": "v1", "service": {"name": "s"}}), false, &["v1"], Some(true))]
    #[case::not_in_discovery(json!({"group": "g.io", "version": "v1", "service": {"name": "s"}}), false, &[], Some(false))]
    #[case::deleted(json!({"group": "g.io", "version": "v1", "service": {"name": "s"}}), true, &[], Some(true))]
    fn changes_of_aggregated_apis_are_expected(
        #[case] spec: Value,
        #[case] deleted: bool,
        #[case] versions: &[&str],
        #[case] met: Option<bool>,
    ) {
        let service = json!({"spec": spec, "status": {"conditions": [{"type": "Available", "status": "True"}]}});
        let expected = ExpectedChange::from_api_service(&service, deleted);
        assert_eq!(expected.map(|expected| expected.is_met(&served(versions))), met);
    }
}
