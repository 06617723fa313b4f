//! Reports: why an object is where it is, and where it would be after a change.
//!
//! Reports are computed on request from the current state and write nothing, so a restart loses nothing. The stored form of a
//! proposed object comes from a dry run of the control plane.

mod affecting;
mod attaching;
mod explaining;
mod planning;
mod proposing;
mod supposing;
mod targeting;

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

pub use self::affecting::Affected;
pub use self::planning::Planning;
pub use self::proposing::{Proposal, Proposed, Role, Wish};

use crate::Error;
use crate::cache::Cached;
use crate::propagation::detector::is_template_resource;
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::Resource;
use crate::scheduling::scheduler::{Imagined, Scheduler, view};
use crate::shared::bindings::binding_key_of;
use crowsnest_interpreter::Interpreter;
use crowsnest_plan::estimation::Estimator;
use crowsnest_plan::estimation::bounds::Bound;
use crowsnest_plan::overriding::OverridePolicy;
use crowsnest_plan::overriding::traced::{self, Traced};
use crowsnest_plan::propagation::Policy;
use crowsnest_plan::report::SchedulingReport;
use crowsnest_plan::scheduling::{Plan, World, explain, is_placed_as_set};
use crowsnest_plan::work::construct::BindingIdentity;

/// Answers questions about propagation.
#[derive(Clone)]
pub struct Reports {
    context: Arc<Context>,
    scheduling: Arc<Scheduler>,
}

/// A propagation policy read from the cache, or proposed.
struct PolicyObject {
    object: Arc<Value>,
    spec: PropagationSpec,
}

impl PolicyObject {
    fn policy(&self) -> Policy<'_> {
        Policy::of(&self.object, &self.spec)
    }
}

/// What the templates of one namespace are measured by.
struct Scope {
    policies: Vec<PolicyObject>,
    overrides: OverrideObjects,
}

/// Override policies of both scopes, as they are for one namespace.
struct OverrideObjects {
    cluster_wide: Vec<(String, OverrideSpec)>,
    namespaced: Vec<(String, OverrideSpec)>,
}

impl OverrideObjects {
    fn apply(&self, manifest: &mut Value, cluster: &Cluster) -> Traced {
        fn as_plan(policies: &[(String, OverrideSpec)]) -> Vec<OverridePolicy<'_>> {
            policies.iter().map(|(name, spec)| OverridePolicy { name, spec }).collect()
        }
        traced::apply(manifest, cluster, &as_plan(&self.cluster_wide), &as_plan(&self.namespaced))
    }

    /// Those a propagation policy waits for that are not there.
    fn missing(&self, policy: &Policy<'_>) -> Vec<String> {
        let of_scope = if policy.namespace.is_empty() { &self.cluster_wide } else { &self.namespaced };
        let wanted = policy.spec.dependent_overrides.iter();
        wanted.filter(|wanted| !of_scope.iter().any(|(name, _)| name == *wanted)).cloned().collect()
    }
}

impl Reports {
    pub(crate) fn new(context: Arc<Context>, scheduling: Arc<Scheduler>) -> Self {
        Reports { context, scheduling }
    }

    /// The resource of templates that is called so (`deployments.apps`).
    pub fn template_resource(&self, group_resource: &str) -> Option<Arc<Resource>> {
        let resources = self.context.cache.resources(&self.context.control_plane);
        resources
            .into_iter()
            .find(|resource| is_template_resource(&resource.gvr) && resource.gvr.group_resource() == group_resource)
    }

    /// The resource of a kind in the control plane.
    pub async fn resource_of(&self, api_version: &str, kind: &str) -> Result<Resource, Error> {
        self.context.catalog.find(&self.context.control_plane, api_version, kind).await
    }

    /// The resource of bindings of a scope.
    pub fn binding_resource(&self, scope: crowsnest_api::Scope) -> &Resource {
        self.context.kinds.binding(scope)
    }

    /// Key of a template's binding, also before there is one.
    pub async fn binding_key(&self, template: &ObjectIdentity<'_>) -> Result<BindingKey, Error> {
        binding_key_of(&self.context, template).await
    }

    /// All objects of a collection as they would be: what is proposed stands in the place of what is there.
    async fn as_proposed(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        proposal: &Proposal,
    ) -> Result<Vec<Arc<Value>>, Error> {
        let listed = self.context.list(resource, namespace).await?;
        let mut objects: BTreeMap<NamespacedName, Arc<Value>> = BTreeMap::new();
        for cached in &listed {
            objects.insert(unstructured::key(cached.view()), shared(cached));
        }
        let meant = |one: &&Proposed| {
            one.resource == *resource
                && namespace.is_none_or(|namespace| unstructured::namespace(one.seen()) == namespace)
        };
        for one in proposal.objects.iter().filter(meant) {
            match &one.after {
                Some(after) => objects.insert(unstructured::key(after), Arc::new(after.clone())),
                None => objects.remove(&unstructured::key(one.seen())),
            };
        }
        Ok(objects.into_values().collect())
    }

    async fn scope(&self, namespace: &str, proposal: &Proposal) -> Result<Scope, Error> {
        let policies = self.policies(namespace, proposal).await?;
        Ok(Scope { policies, overrides: self.overrides(namespace, proposal).await? })
    }

    /// Policies that could select a template of this namespace.
    async fn policies(&self, namespace: &str, proposal: &Proposal) -> Result<Vec<PolicyObject>, Error> {
        let kinds = &self.context.kinds;
        let mut objects = self.as_proposed(&kinds.cluster_propagation_policy, None, proposal).await?;
        if !namespace.is_empty() {
            objects.extend(self.as_proposed(&kinds.propagation_policy, Some(namespace), proposal).await?);
        }
        let read = |object: Arc<Value>| Some(PolicyObject { spec: spec_of(&object)?, object });
        Ok(objects.into_iter().filter_map(read).collect())
    }

    async fn overrides(&self, namespace: &str, proposal: &Proposal) -> Result<OverrideObjects, Error> {
        let kinds = &self.context.kinds;
        let read = |objects: Vec<Arc<Value>>| {
            let staying = objects.into_iter().filter(|policy| !unstructured::is_terminating(policy));
            staying.filter_map(|policy| Some((unstructured::name(&policy).to_owned(), spec_of(&policy)?))).collect()
        };
        let cluster_wide = read(self.as_proposed(&kinds.cluster_override_policy, None, proposal).await?);
        let namespaced = match namespace {
            "" => Vec::new(),
            namespace => read(self.as_proposed(&kinds.override_policy, Some(namespace), proposal).await?),
        };
        Ok(OverrideObjects { cluster_wide, namespaced })
    }

    /// Kinds and namespaces the detector never looks at.
    fn is_never_propagated(&self, resource: &Resource, namespace: &str, name: &str) -> bool {
        let skipped = !namespace.is_empty()
            && (is_reserved_namespace(namespace) || self.context.config.skipped_namespaces.contains(namespace));
        let authentication = namespace == "kube-system" && name == "extension-apiserver-authentication";
        skipped || authentication || !is_template_resource(&resource.gvr)
    }

    /// The binding of a template.
    async fn binding(&self, template: &Value) -> Result<Option<Arc<Value>>, Error> {
        let key = self.binding_key(&ObjectIdentity::of(template)).await?;
        self.context.get_full(self.binding_resource(key.scope()), &key.namespace, &key.name).await
    }

    /// What the scheduler says of a binding as things are now, or in an imagined fleet. Estimators elsewhere are asked of what is.
    async fn schedule(
        &self,
        binding: &Value,
        typed: &ResourceBinding,
        imagined: Option<&mut Imagined>,
    ) -> Result<(Plan, SchedulingReport), Error> {
        let key = BindingKey::of(binding);
        let subject = view(binding, typed);
        let peers = match &imagined {
            None => self.scheduling.peers(&key, &typed.spec).await?,
            Some(imagined) => self.scheduling.imagined_peers(imagined, &key, &typed.spec).await?,
        };
        let answers = self.scheduling.asked(&key, &subject, &peers, explain).await;
        let ask = |world: &World<'_>, estimator: &Estimator<'_>| {
            let (plan, report) = explain(world, &subject);
            let sets = typed.spec.placement.as_ref();
            let sets = sets.is_some_and(|placement| is_placed_as_set(world.gates, &typed.spec, placement));
            let looked_at = report.terms.iter().flat_map(|term| &term.clusters);
            let fitting: Vec<&str> =
                looked_at.filter(|one| one.rejected.is_none()).map(|one| one.name.as_str()).collect();
            let bound = |(place, cluster): (usize, &Arc<crowsnest_plan::scheduling::ClusterFacts>)| {
                fitting.contains(&cluster.name()).then_some(())?;
                let answer = answers.as_ref().and_then(|answers| answers.of(cluster.name()));
                Some((cluster.name().to_owned(), estimator.bound(place, &typed.spec, sets, answer)?))
            };
            let bounds: BTreeMap<String, Bound> = world.clusters.iter().enumerate().filter_map(bound).collect();
            let told = SchedulingReport::of(&plan, report, &bounds);
            (plan, told)
        };
        Ok(match imagined {
            None => self.scheduling.in_present(&key, &peers, answers.as_ref(), ask),
            Some(imagined) => self.scheduling.in_imagined(imagined, &key, &peers, answers.as_ref(), ask),
        })
    }

    /// The Work with which a binding takes its template to a cluster.
    async fn work(&self, cluster: &str, binding: &Value, template: &Value) -> Result<Option<Arc<Value>>, Error> {
        let name = ObjectIdentity::of(template).work_name(unstructured::name(binding));
        let key = WorkKey::new(execution_namespace(cluster), name);
        self.context.get_full(&self.context.kinds.work, &key.namespace, &key.name).await
    }

    /// Clusters with a Work of a binding.
    async fn works_in(&self, binding: &Value) -> Result<Vec<String>, Error> {
        let identity = BindingIdentity::of(binding);
        let (key, id) = (identity.id_label(), identity.permanent_id);
        let works = self.context.headers_with_id(&self.context.kinds.work, key, id).await?;
        let cluster = |namespace: &str| cluster_of_execution_namespace(namespace).map(str::to_owned);
        Ok(works.iter().filter_map(|work| cluster(&work.namespace)).collect())
    }
}

/// The object itself where the cache has all of it, else without secret values.
fn shared(cached: &Cached) -> Arc<Value> {
    cached.full().unwrap_or_else(|| Arc::new(cached.view().clone()))
}

/// The spec of a policy; one that cannot be read counts as none, as for the controllers.
fn spec_of<T: DeserializeOwned>(policy: &Value) -> Option<T> {
    let spec = policy.get("spec").unwrap_or(&Value::Null);
    T::deserialize(spec)
        .inspect_err(|error| tracing::warn!(policy = unstructured::name(policy), %error, "policy cannot be read"))
        .ok()
}

/// The template with what one cluster runs of it.
async fn share_of(
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

/// Group, version and kind where a cluster that says what it serves does not serve them.
fn unserved(cluster: &Cluster, api_version: &str, kind: &str) -> Option<String> {
    let enablements = &cluster.status.api_enablements;
    let serves = enablements
        .iter()
        .filter(|group| group.group_version == api_version)
        .any(|group| group.resources.iter().any(|resource| resource.kind == kind));
    (!serves && !enablements.is_empty()).then(|| format!("{api_version} {kind}"))
}
