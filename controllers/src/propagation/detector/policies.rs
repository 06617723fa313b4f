//! Templates that a changed policy enqueues: those that it claims, those that it names, and unclaimed ones that it
//! selects.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use crowsnest_api::constants::finalizer;
use crowsnest_api::keys::PolicyKey;
use crowsnest_api::policy::PropagationSpec;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_apimachinery::unstructured;
use serde::Deserialize;
use serde_json::Value;

use super::{ResourceDetector, is_template_resource};
use crate::Error;
use crate::cache::{CachedObject, Change, Header};
use crate::runtime::dynamic_client::Resource;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crowsnest_plan::propagation::Policy;
use crowsnest_plan::selector::{ObjectFields, best_precision_of_fields};

/// A policy as last dispatched by the informer.
pub struct PolicyRecord {
    object: CachedObject,
    spec: PropagationSpec,
}

impl PolicyRecord {
    pub fn policy(&self) -> Policy<'_> {
        Policy::new(self.object.view(), &self.spec)
    }

    pub fn is_record_of(&self, policy: &Policy<'_>) -> bool {
        let recorded = self.object.view();
        (unstructured::namespace(recorded), unstructured::name(recorded)) == (policy.namespace, policy.name)
    }

    pub fn resource_version(&self) -> &str {
        unstructured::resource_version(self.object.view())
    }
}

impl ResourceDetector {
    fn on_policy(&self, change: &Change) -> Requests<PolicyKey> {
        let key = PolicyKey::from_object(change.object());
        let Some(policy) = change.current() else {
            self.policies.write().remove(&key);
            return Requests::none();
        };
        match PropagationSpec::deserialize(policy.get("spec").unwrap_or(&Value::Null)) {
            Ok(spec) => {
                let record = PolicyRecord { object: change.object.clone(), spec };
                self.policies.write().insert(key.clone(), Arc::new(record));
            }
            Err(error) => tracing::warn!(?key, %error, "cannot decode a policy"),
        }
        Requests::one_if(change.is_generation_or_labels_changed(), || key)
    }

    /// Policies that wait for an OverridePolicy to be created.
    fn on_override(&self, change: &Change) -> Requests<PolicyKey> {
        let key = PolicyKey::from_object(change.object());
        let depends = |policy: &PolicyKey, spec: &PropagationSpec| {
            policy.namespace == key.namespace && spec.dependent_overrides.contains(&key.name)
        };
        match change.old.is_none() && !change.deleted {
            true => self.find_policies(depends),
            false => Requests::none(),
        }
    }

    /// Policies that wait for a PriorityClass to be created.
    fn on_priority_class(&self, change: &Change) -> Requests<PolicyKey> {
        let name = unstructured::name(change.object());
        let names = |spec: &PropagationSpec| {
            spec.schedule_priority.as_ref().is_some_and(|priority| priority.priority_class_name == name)
        };
        match change.old.is_none() && !change.deleted && !change.initial {
            true => self.find_policies(|_, spec| names(spec)),
            false => Requests::none(),
        }
    }

    fn find_policies(&self, predicate: impl Fn(&PolicyKey, &PropagationSpec) -> bool) -> Requests<PolicyKey> {
        let policies = self.policies.read();
        let matching = policies.iter().filter(|(key, record)| predicate(key, &record.spec));
        matching.map(|(key, _)| key.clone()).collect()
    }

    /// Policies that can select templates in a namespace, or cluster-scoped templates.
    pub(super) fn policies_for(&self, namespace: &str) -> Vec<Arc<PolicyRecord>> {
        let policies = self.policies.read();
        let in_scope = |scope: &str| {
            let (from, scope) = (PolicyKey::new(scope, ""), scope.to_owned());
            policies
                .range(from..)
                .take_while(move |(key, _)| key.namespace == scope)
                .map(|(_, record)| Arc::clone(record))
        };
        match namespace {
            "" => in_scope("").collect(),
            namespace => in_scope("").chain(in_scope(namespace)).collect(),
        }
    }

    async fn reconcile_policy(&self, key: PolicyKey) -> Result<Outcome, Error> {
        let Some(record) = self.policies.read().get(&key).cloned() else { return Ok(Outcome::Done) };
        let policy = record.policy();
        if policy.is_terminating {
            self.release_claims(&policy).await?;
            let kinds = &self.context.kinds;
            let (resource, finalizer) = match policy.namespace {
                "" => (&kinds.cluster_propagation_policy, finalizer::CLUSTER_PROPAGATION_POLICY_CONTROLLER),
                _ => (&kinds.propagation_policy, finalizer::PROPAGATION_POLICY_CONTROLLER),
            };
            self.context.remove_finalizer(resource, record.object.view(), finalizer).await?;
            return Ok(Outcome::Done);
        }
        let resources: Vec<Arc<Resource>> = self.template_resources().collect();
        // The reconciliation of each enqueued template decides if anything changes.
        let mut affected = self.find_selectable_templates(&policy, &resources);
        for resource in &resources {
            let claimed = self.context.headers_with_id(resource, policy.id_label(), policy.permanent_id).await?;
            for template in claimed {
                match is_selected(&policy, resource, &template) {
                    true => {
                        affected.insert((Arc::clone(resource), template.namespace, template.name));
                    }
                    false => self.release_unselected(&policy, resource, &template).await?,
                }
            }
        }
        affected.into_iter().for_each(|(resource, namespace, name)| self.enqueue(&resource, namespace, name));
        Ok(Outcome::Done)
    }

    pub(super) fn template_resources(&self) -> impl Iterator<Item = Arc<Resource>> + use<> {
        let resources = self.context.cache.resources(&self.context.control_plane);
        resources.into_iter().filter(|resource| is_template_resource(&resource.gvr))
    }

    /// Releases all templates of a policy that is being deleted.
    async fn release_claims(&self, policy: &Policy<'_>) -> Result<(), Error> {
        for resource in self.template_resources() {
            let claimed = self.context.list_with_id(&resource, policy.id_label(), policy.permanent_id).await?;
            for template in &claimed {
                self.release(&resource, template.view(), policy.permanent_id).await?;
            }
        }
        Ok(())
    }

    async fn release_unselected(
        &self,
        policy: &Policy<'_>,
        resource: &Resource,
        template: &Header,
    ) -> Result<(), Error> {
        match self.context.get_redacted(resource, &template.namespace, &template.name).await? {
            Some(template) => self.release(resource, template.view(), policy.permanent_id).await,
            None => Ok(()),
        }
    }

    /// Templates that a policy could claim: those it names, and unclaimed ones that it selects.
    fn find_selectable_templates(
        &self,
        policy: &Policy<'_>,
        resources: &[Arc<Resource>],
    ) -> BTreeSet<(Arc<Resource>, String, String)> {
        let mut selected = BTreeSet::new();
        for selector in &policy.spec.resource_selectors {
            let of_kind = |resource: &&Arc<Resource>| {
                resource.kind == selector.kind && resource.gvr.api_version() == selector.api_version
            };
            let Some(resource) = resources.iter().find(of_kind) else { continue };
            let namespace = policy.selector_namespace(selector);
            // Cluster-scoped objects are in no namespace.
            if namespace.is_some() && !resource.namespaced {
                continue;
            }
            let has_one_scope = namespace.is_some() || !resource.namespaced;
            if has_one_scope && !selector.name.is_empty() {
                let namespace = namespace.unwrap_or_default().to_owned();
                selected.insert((Arc::clone(resource), namespace, selector.name.clone()));
                continue;
            }
            let unclaimed = self.unclaimed.find_matching(resource, namespace, selector).into_iter();
            selected.extend(unclaimed.map(|key| (Arc::clone(resource), key.namespace, key.name)));
        }
        selected
    }
}

/// Controller of policies.
pub struct PolicyDetector {
    detector: Arc<ResourceDetector>,
}

impl Controller for PolicyDetector {
    type Key = PolicyKey;
    const NAME: &'static str = "propagationPolicy reconciler";
    const SWITCH: Switch = Switch::Always;

    fn new(setup: &Setup) -> Self {
        PolicyDetector { detector: setup.controller() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        let policies = Source::control_plane(kinds.policies());
        let overrides = Source::control_plane([&kinds.override_policy, &kinds.cluster_override_policy]);
        vec![
            policies.map(|controller: &Self, change| controller.detector.on_policy(change)),
            overrides.map(|controller: &Self, change| controller.detector.on_override(change)),
            Source::control_plane([&kinds.priority_class])
                .map(|controller: &Self, change| controller.detector.on_priority_class(change)),
        ]
    }

    async fn keys(&self) -> Result<Vec<PolicyKey>, Error> {
        Ok(self.detector.policies.read().keys().cloned().collect())
    }

    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>) {
        if cluster.is_control_plane() && self.detector.context.kinds.is_policy(resource) {
            let exists = |key: &PolicyKey| {
                key.is_cluster_scoped() == resource.namespaced || keys.contains(key.as_namespaced_name())
            };
            self.detector.policies.write().retain(|key, _| exists(key));
        }
    }

    async fn reconcile(self: Arc<Self>, key: PolicyKey) -> Result<Outcome, Error> {
        self.detector.reconcile_policy(key).await
    }
}

fn is_selected(policy: &Policy<'_>, resource: &Resource, template: &Header) -> bool {
    let api_version = resource.gvr.api_version();
    let template_fields = ObjectFields {
        api_version: &api_version,
        kind: &resource.kind,
        namespace: &template.namespace,
        name: &template.name,
    };
    best_precision_of_fields(&policy.spec.resource_selectors, template_fields, &template.labels).is_some()
}
