//! Reports: explains where an object is placed and why, and where it would be placed after a change.
//!
//! Reports are computed on request from the current state and are not stored. The stored form of a proposed object is
//! obtained by a dry run against the control plane.

mod affected_templates;
mod assumed_state;
mod attached_bindings;
mod cluster_plan;
mod explanation;
mod planner;
mod proposal;

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::keys::{BindingKey, WorkKey};
use crowsnest_api::names::{cluster_of_execution_namespace, execution_namespace, is_reserved_namespace};
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_api::policy::{OverrideSpec, PropagationSpec};
use crowsnest_api::work::{ResourceBinding, ResourceBindingSpec, TargetCluster};
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::unstructured;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use self::affected_templates::AffectedTemplate;
pub use self::planner::Planner;
pub use self::proposal::{Proposal, ProposedObject, ProposedOperation, Role};

use crate::Error;
use crate::cache::CachedObject;
use crate::propagation::detector::is_template_resource;
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::Resource;
use crate::scheduling::scheduler::{Scheduler, SimulatedScheduling, planner_binding};
use crate::shared::bindings::binding_key_of;
use crowsnest_interpreter::Interpreter;
use crowsnest_plan::estimation::Estimator;
use crowsnest_plan::estimation::bounds::LimitingFactor;
use crowsnest_plan::overriding::OverridePolicy;
use crowsnest_plan::overriding::trace::{self, OverrideTrace};
use crowsnest_plan::propagation::Policy;
use crowsnest_plan::report::SchedulingReport;
use crowsnest_plan::scheduling::{Plan, SchedulingContext, explain, is_placed_as_set};
use crowsnest_plan::work::construct::BindingIdentity;
use crowsnest_plan::work::owner::binding_of_work;

/// Computes explanations and plans.
#[derive(Clone)]
pub struct Reports {
    context: Arc<Context>,
    scheduler: Arc<Scheduler>,
}

/// A propagation policy read from the cache, or proposed.
struct PolicyObject {
    object: Arc<Value>,
    spec: PropagationSpec,
}

impl PolicyObject {
    fn policy(&self) -> Policy<'_> {
        Policy::new(&self.object, &self.spec)
    }
}

/// Policies that apply to templates of a namespace.
struct ApplicablePolicies {
    policies: Vec<PolicyObject>,
    overrides: OverrideObjects,
}

/// Override policies that apply to a namespace.
struct OverrideObjects {
    cluster_wide: Vec<(String, OverrideSpec)>,
    namespaced: Vec<(String, OverrideSpec)>,
}

impl OverrideObjects {
    fn apply(&self, manifest: &mut Value, cluster: &Cluster) -> OverrideTrace {
        fn override_policies(policies: &[(String, OverrideSpec)]) -> Vec<OverridePolicy<'_>> {
            policies.iter().map(|(name, spec)| OverridePolicy { name, spec }).collect()
        }
        trace::apply(manifest, cluster, &override_policies(&self.cluster_wide), &override_policies(&self.namespaced))
    }

    /// Override policies that a propagation policy depends on and that do not exist.
    fn find_missing(&self, policy: &Policy<'_>) -> Vec<String> {
        let existing = if policy.namespace.is_empty() { &self.cluster_wide } else { &self.namespaced };
        let dependent_overrides = policy.spec.dependent_overrides.iter();
        dependent_overrides.filter(|expected| !existing.iter().any(|(name, _)| name == *expected)).cloned().collect()
    }
}

impl Reports {
    pub(crate) fn new(context: Arc<Context>, scheduler: Arc<Scheduler>) -> Self {
        Reports { context, scheduler }
    }

    /// The template resource with this name, such as `deployments.apps`.
    pub fn template_resource(&self, group_resource: &str) -> Option<Arc<Resource>> {
        let resources = self.context.cache.resources(&self.context.control_plane);
        resources
            .into_iter()
            .find(|resource| is_template_resource(&resource.gvr) && resource.gvr.group_resource() == group_resource)
    }

    /// The resource of a kind in the control plane.
    pub async fn find_resource(&self, api_version: &str, kind: &str) -> Result<Resource, Error> {
        self.context.rest_mapper.find(&self.context.control_plane, api_version, kind).await
    }

    /// The resource of bindings of a scope.
    pub fn binding_resource(&self, scope: crowsnest_api::Scope) -> &Resource {
        self.context.kinds.binding(scope)
    }

    /// Key of a template's binding, whether or not it exists.
    pub async fn binding_key(&self, template: &ObjectIdentity<'_>) -> Result<BindingKey, Error> {
        binding_key_of(&self.context, template).await
    }

    /// Objects of a collection, with those of the proposal in place of the stored ones.
    async fn list_proposed(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        proposal: &Proposal,
    ) -> Result<Vec<Arc<Value>>, Error> {
        let listed = self.context.list(resource, namespace).await?;
        let mut objects: BTreeMap<NamespacedName, Arc<Value>> = BTreeMap::new();
        for cached in &listed {
            objects.insert(unstructured::key(cached.view()), to_shared(cached));
        }
        let is_selected = |object: &&ProposedObject| {
            object.resource == *resource
                && namespace.is_none_or(|namespace| unstructured::namespace(object.object()) == namespace)
        };
        for object in proposal.objects.iter().filter(is_selected) {
            match &object.after {
                Some(after) => objects.insert(unstructured::key(after), Arc::new(after.clone())),
                None => objects.remove(&unstructured::key(object.object())),
            };
        }
        Ok(objects.into_values().collect())
    }

    /// Policies and override policies of a namespace, with those of the proposal.
    async fn find_applicable_policies(
        &self,
        namespace: &str,
        proposal: &Proposal,
    ) -> Result<ApplicablePolicies, Error> {
        let policies = self.policies(namespace, proposal).await?;
        Ok(ApplicablePolicies { policies, overrides: self.overrides(namespace, proposal).await? })
    }

    /// Policies that could select a template of this namespace.
    async fn policies(&self, namespace: &str, proposal: &Proposal) -> Result<Vec<PolicyObject>, Error> {
        let kinds = &self.context.kinds;
        let mut objects = self.list_proposed(&kinds.cluster_propagation_policy, None, proposal).await?;
        if !namespace.is_empty() {
            objects.extend(self.list_proposed(&kinds.propagation_policy, Some(namespace), proposal).await?);
        }
        let decode_policy = |object: Arc<Value>| Some(PolicyObject { spec: spec_of(&object)?, object });
        Ok(objects.into_iter().filter_map(decode_policy).collect())
    }

    async fn overrides(&self, namespace: &str, proposal: &Proposal) -> Result<OverrideObjects, Error> {
        let kinds = &self.context.kinds;
        let decode_overrides = |objects: Vec<Arc<Value>>| {
            let active = objects.into_iter().filter(|policy| !unstructured::is_terminating(policy));
            active.filter_map(|policy| Some((unstructured::name(&policy).to_owned(), spec_of(&policy)?))).collect()
        };
        let cluster_wide = decode_overrides(self.list_proposed(&kinds.cluster_override_policy, None, proposal).await?);
        let namespaced = match namespace {
            "" => Vec::new(),
            namespace => decode_overrides(self.list_proposed(&kinds.override_policy, Some(namespace), proposal).await?),
        };
        Ok(OverrideObjects { cluster_wide, namespaced })
    }

    /// True for kinds, namespaces and objects that the detector ignores.
    fn is_never_propagated(&self, resource: &Resource, namespace: &str, name: &str) -> bool {
        let is_skipped = !namespace.is_empty()
            && (is_reserved_namespace(namespace) || self.context.config.skipped_namespaces.contains(namespace));
        let is_authentication_config = namespace == "kube-system" && name == "extension-apiserver-authentication";
        is_skipped || is_authentication_config || !is_template_resource(&resource.gvr)
    }

    /// The binding of a template.
    async fn binding(&self, template: &Value) -> Result<Option<Arc<Value>>, Error> {
        let key = self.binding_key(&ObjectIdentity::from_object(template)).await?;
        self.context.get_full(self.binding_resource(key.scope()), &key.namespace, &key.name).await
    }

    /// Runs the scheduler for a binding in the current state of the clusters, or in an assumed one. Remote estimators
    /// only know the current state.
    async fn schedule(
        &self,
        binding: &Value,
        typed: &ResourceBinding,
        simulation: Option<&mut SimulatedScheduling>,
    ) -> Result<(Plan, SchedulingReport), Error> {
        let key = BindingKey::from_object(binding);
        let planner_input = planner_binding(binding, typed);
        let peers = match &simulation {
            None => self.scheduler.find_peers(&key, &typed.spec).await?,
            Some(simulation) => self.scheduler.find_simulated_peers(simulation, &key, &typed.spec).await?,
        };
        let responses = self.scheduler.query_estimators(&key, &planner_input, &peers, explain).await;
        let evaluate = |scheduling_context: &SchedulingContext<'_>, estimator: &Estimator<'_>| {
            let (plan, report) = explain(scheduling_context, &planner_input);
            let placement = typed.spec.placement.as_ref();
            let placed_as_set =
                placement.is_some_and(|placement| is_placed_as_set(scheduling_context.gates, &typed.spec, placement));
            let considered = report.terms.iter().flat_map(|term| &term.clusters);
            let suitable_clusters: Vec<&str> = considered
                .filter(|candidate| candidate.rejected.is_none())
                .map(|candidate| candidate.name.as_str())
                .collect();
            let limit = |(index, cluster): (usize, &Arc<crowsnest_plan::scheduling::ClusterFacts>)| {
                suitable_clusters.contains(&cluster.name()).then_some(())?;
                let response = responses.as_ref().and_then(|responses| responses.get(cluster.name()));
                Some((
                    cluster.name().to_owned(),
                    estimator.limiting_factor(index, &typed.spec, placed_as_set, response)?,
                ))
            };
            let bounds: BTreeMap<String, LimitingFactor> =
                scheduling_context.clusters.iter().enumerate().filter_map(limit).collect();
            let report = SchedulingReport::new(&plan, report, &bounds);
            (plan, report)
        };
        Ok(match simulation {
            None => self.scheduler.evaluate_current(&key, &peers, responses.as_ref(), evaluate),
            Some(simulation) => {
                self.scheduler.evaluate_simulated(simulation, &key, &peers, responses.as_ref(), evaluate)
            }
        })
    }

    /// The Work of a binding for a template in a cluster. Works of other bindings can have its name.
    async fn work(&self, cluster: &str, binding: &Value, template: &Value) -> Result<Option<Arc<Value>>, Error> {
        let name = ObjectIdentity::from_object(template).work_name(unstructured::name(binding));
        let key = WorkKey::new(execution_namespace(cluster), name);
        let work = self.context.get_full(&self.context.kinds.work, &key.namespace, &key.name).await?;
        Ok(work.filter(|work| binding_of_work(work) == Some(BindingKey::from_object(binding))))
    }

    /// Clusters with a Work of a binding.
    async fn work_clusters(&self, binding: &Value) -> Result<Vec<String>, Error> {
        let identity = BindingIdentity::from_binding(binding);
        let (key, id) = (identity.id_label(), identity.permanent_id);
        let works = self.context.headers_with_id(&self.context.kinds.work, key, id).await?;
        let cluster = |namespace: &str| cluster_of_execution_namespace(namespace).map(str::to_owned);
        Ok(works.iter().filter_map(|work| cluster(&work.namespace)).collect())
    }
}

/// The complete object if the cache has it, otherwise the object without secret values.
fn to_shared(cached: &CachedObject) -> Arc<Value> {
    cached.full().unwrap_or_else(|| Arc::new(cached.view().clone()))
}

/// The spec of a policy. A policy that cannot be decoded is ignored, as in the controllers.
fn spec_of<T: DeserializeOwned>(policy: &Value) -> Option<T> {
    let spec = policy.get("spec").unwrap_or(&Value::Null);
    T::deserialize(spec)
        .inspect_err(|error| tracing::warn!(policy = unstructured::name(policy), %error, "cannot decode a policy"))
        .ok()
}

/// Builds the manifest for one cluster, with its replicas and completions.
async fn manifest_for_target(
    interpreter: &Interpreter,
    spec: &ResourceBindingSpec,
    template: &Value,
    target: &TargetCluster,
    completions: Option<i32>,
) -> Result<Value, Error> {
    let mut manifest = template.clone();
    if spec.is_workload() {
        interpreter.revise_replicas(&mut manifest, target.replicas).await?;
    }
    if let Some(completions) = completions {
        unstructured::set(&mut manifest, &["spec", "completions"], json!(completions));
    }
    Ok(manifest)
}

/// The API version and kind as one text, if the cluster reports its APIs and this kind is not among them.
fn unserved_kind(cluster: &Cluster, api_version: &str, kind: &str) -> Option<String> {
    let enablements = &cluster.status.api_enablements;
    let is_served = enablements
        .iter()
        .filter(|group| group.group_version == api_version)
        .any(|group| group.resources.iter().any(|resource| resource.kind == kind));
    (!is_served && !enablements.is_empty()).then(|| format!("{api_version} {kind}"))
}
