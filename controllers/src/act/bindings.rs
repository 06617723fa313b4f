//! Bindings become Works: one per target cluster, with that cluster's replicas and overrides.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::constants::{event, finalizer, label};
use crowsnest_api::names::{ClusterName, EXECUTION_NAMESPACE_PREFIX, binding_name};
use crowsnest_api::policy::OverrideSpec;
use crowsnest_api::work::{ResourceBinding, ResourceBindingSpec, TargetCluster};
use futures::TryStreamExt;
use serde::Deserialize;
use serde_json::Value;

use super::context::{Context, decode, new_id};
use super::events::Severity;
use super::queue::{Outcome, Queue};
use super::scheduling::BindingKey;
use super::templates::{is_template_resource, template_of};
use super::world::{Cached, Change, Header};
use crate::Error;
use crate::plan::object;
use crate::plan::overriding::{self, OverridePolicy};
use crate::plan::propagation::change::Change as TemplateChange;
use crate::plan::selector::best_precision;
use crate::plan::work::construct::{self, BindingIdentity, DesiredWork, WorkPlan};

pub struct Bindings {
    context: Arc<Context>,
    pub bindings: Queue<BindingKey>,
}

/// While Works must leave a cluster before others may be made.
const PURGE_WAIT: Duration = Duration::from_secs(1);

/// The member an execution namespace stands for.
pub fn cluster_of(namespace: &str) -> Option<&str> {
    namespace.strip_prefix(EXECUTION_NAMESPACE_PREFIX).filter(|cluster| !cluster.is_empty())
}

/// Override policies read out of the world.
pub struct Overrides {
    policies: Vec<(String, OverrideSpec)>,
}

impl Overrides {
    pub async fn of(context: &Context, namespace: Option<&str>) -> Result<Self, Error> {
        let resource = match namespace {
            None => &context.kinds.cluster_override_policy,
            Some(_) => &context.kinds.override_policy,
        };
        let read = |policy: &Value| match OverrideSpec::deserialize(policy.get("spec").unwrap_or(&Value::Null)) {
            Ok(spec) => Some((object::name(policy).to_owned(), spec)),
            Err(error) => {
                tracing::warn!(policy = object::name(policy), %error, "override policy cannot be read");
                None
            }
        };
        let policies = context.list(resource, namespace).await?;
        let staying = policies.iter().map(Cached::view).filter(|policy| !object::is_terminating(policy));
        Ok(Overrides { policies: staying.filter_map(read).collect() })
    }

    pub fn as_plan(&self) -> Vec<OverridePolicy<'_>> {
        self.policies.iter().map(|(name, spec)| OverridePolicy { name, spec }).collect()
    }
}

impl Bindings {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Bindings { context, bindings: Queue::new("bindings") })
    }

    pub async fn on_change(&self, change: &Change) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        let gvr = &change.resource.gvr;
        let object = change.object();
        if *gvr == kinds.resource_binding.gvr || *gvr == kinds.cluster_resource_binding.gvr {
            if change.is_marked() {
                self.bindings.add(change.key());
            }
        } else if *gvr == kinds.override_policy.gvr || *gvr == kinds.cluster_override_policy.gvr {
            self.ask_overridden(change).await?;
        } else if *gvr == kinds.work.gvr {
            self.on_work(change);
        } else if !change.initial && is_template_resource(gvr) && change.of_template() != TemplateChange::None {
            // Whether there is such a binding is seen when it is looked at.
            let name = binding_name(object::kind(object), object::name(object));
            self.bindings.add((object::namespace(object).to_owned(), name));
        }
        Ok(())
    }

    /// A Work that somebody edited or deleted is put right again.
    fn on_work(&self, change: &Change) {
        let is_new = change.old.is_none() && !change.deleted;
        if !is_new
            && change.is_moved()
            && let Some(key) = binding_of_work(change.object())
        {
            self.bindings.add(key);
        }
    }

    /// Bindings whose template an override policy selects, before or after its change; all of them when it isn't known
    /// any more what it selected before.
    async fn ask_overridden(&self, change: &Change) -> Result<(), Error> {
        if change.initial {
            return Ok(());
        }
        let kinds = &self.context.kinds;
        let namespace = object::namespace(change.object()).to_owned();
        let versions = [change.old(), Some(change.object())].into_iter().flatten();
        let specs: Vec<OverrideSpec> =
            versions.filter_map(|policy| OverrideSpec::deserialize(policy.get("spec")?).ok()).collect();
        let all = change.is_old_forgotten() && !change.deleted;
        let scopes: &[_] = match namespace.as_str() {
            "" => &[(&kinds.resource_binding, None), (&kinds.cluster_resource_binding, None)],
            namespace => &[(&kinds.resource_binding, Some(namespace))],
        };
        for (resource, namespace) in scopes {
            let mut bindings = pin!(self.context.stream(resource, *namespace));
            while let Some(binding) = bindings.try_next().await? {
                let binding = binding.view();
                let reference = object::at(binding, &["spec", "resource"]).unwrap_or(&Value::Null);
                let template = self.template_or(reference).await?;
                let selected = specs.iter().any(|spec| {
                    spec.resource_selectors.is_empty()
                        || best_precision(&spec.resource_selectors, template.view()).is_some()
                });
                if all || selected {
                    self.bindings.add((object::namespace(binding).to_owned(), object::name(binding).to_owned()));
                }
            }
        }
        Ok(())
    }

    /// The template, or as much of it as the reference says.
    async fn template_or(&self, reference: &Value) -> Result<Cached, Error> {
        let (api_version, kind) = (object::api_version(reference), object::kind(reference));
        let (namespace, name) = (object::text(reference, &["namespace"]), object::text(reference, &["name"]));
        if let Some(resource) = self.context.catalog.known(&self.context.control_plane, api_version, kind)
            && let Some(template) = self.context.glance(&resource, namespace, name).await?
        {
            return Ok(template);
        }
        Ok(Cached::live(serde_json::json!({
            "apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace, "name": name},
        })))
    }

    pub async fn full_pass(&self) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        for resource in [&kinds.resource_binding, &kinds.cluster_resource_binding] {
            self.context.keys(resource).await?.into_iter().for_each(|key| self.bindings.add(key));
        }
        Ok(())
    }

    pub async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let context = &self.context;
        let resource = context.kinds.binding(&key.0);
        let Some(binding) = context.get(resource, &key.0, &key.1).await? else { return Ok(Outcome::Done) };
        let typed: ResourceBinding = decode(&binding)?;
        let works = self.works_of(&binding).await?;
        if object::is_terminating(&binding) {
            for work in &works {
                self.delete_work(&binding, work).await?;
            }
            let finalizer = match key.0.as_str() {
                "" => finalizer::CLUSTER_RESOURCE_BINDING_CONTROLLER,
                _ => finalizer::BINDING_CONTROLLER,
            };
            context.remove_finalizer(resource, &binding, finalizer).await?;
            return Ok(Outcome::Done);
        }
        let cluster = |work: &Header| cluster_of(&work.namespace).unwrap_or_default().to_owned();
        for orphan in works.iter().filter(|work| !construct::is_expected_in(&typed.spec, &cluster(work))) {
            self.delete_work(&binding, orphan).await?;
        }
        let purged = construct::purged_directly(&typed.spec);
        if works.iter().any(|work| purged.contains(&cluster(work).as_str())) {
            return Ok(Outcome::Again(PURGE_WAIT));
        }
        let Some((_, template)) = template_of(context, &binding).await? else { return Ok(Outcome::Done) };
        if object::is_terminating(&template) {
            return Ok(Outcome::Done);
        }
        self.await_agreement(&binding, &typed.spec, &template).await?;
        self.sync(&binding, &typed.spec, &template).await?;
        Ok(Outcome::Done)
    }

    /// Where quotas are enforced, they are on bindings: a template that needs more than its binding says is not carried
    /// on before the binding says so too, which a quota may deny. A binding no policy holds any more never will.
    async fn await_agreement(
        &self,
        binding: &Value,
        spec: &ResourceBindingSpec,
        template: &Value,
    ) -> Result<(), Error> {
        if !self.context.config.gates.federated_quota_enforcement || !is_claimed(binding) {
            return Ok(());
        }
        match construct::is_agreed(spec, &self.context.interpreter.replicas(template).await?) {
            true => Ok(()),
            false => Err(Error::Waiting("the binding does not allow what the template needs".to_owned())),
        }
    }

    async fn works_of(&self, binding: &Value) -> Result<Vec<Header>, Error> {
        let key = id_label(object::namespace(binding));
        let id = object::label(binding, key).unwrap_or_default();
        self.context.headers_with_id(&self.context.kinds.work, key, id).await
    }

    async fn delete_work(&self, binding: &Value, work: &Header) -> Result<(), Error> {
        if work.terminating {
            return Ok(());
        }
        let deleted = self.context.delete(&self.context.kinds.work, &work.namespace, &work.name).await;
        if let Err(error) = &deleted {
            let events = &self.context.events;
            events.note(binding, Severity::Warning, event::CLEANUP_WORK_FAILED, error.message());
        }
        deleted
    }

    /// Brings every target's Work up to date; one cluster's failure doesn't keep the others waiting.
    async fn sync(&self, binding: &Value, spec: &ResourceBindingSpec, template: &Value) -> Result<(), Error> {
        let targets = construct::targets(spec);
        let completions = construct::job_completions(spec, template, &targets);
        let identity = BindingIdentity {
            namespace: object::namespace(binding),
            name: object::name(binding),
            permanent_id: object::label(binding, id_label(object::namespace(binding))).unwrap_or_default(),
        };
        let cluster_wide = Overrides::of(&self.context, None).await?;
        let namespaced = match object::namespace(template) {
            "" => None,
            namespace => Some(Overrides::of(&self.context, Some(namespace)).await?),
        };
        let mut failed = None;
        for target in &targets {
            let manifest = self.share_of(target, spec, template, completions.get(&target.name).copied()).await;
            let done = self
                .sync_one(&target.name, manifest, &cluster_wide, namespaced.as_ref(), |manifest, overrides| {
                    construct::for_binding(
                        spec,
                        identity,
                        &target.name,
                        manifest,
                        overrides,
                        targets.len() == 1,
                        self.context.config.gates.stateful_failover_injection,
                    )
                })
                .await;
            if let Err(error) = done {
                if !error.is_conflict() && !error.is_waiting() {
                    let events = &self.context.events;
                    events.note(binding, Severity::Warning, event::SYNC_WORK_FAILED, error.message());
                    events.note(template, Severity::Warning, event::SYNC_WORK_FAILED, error.message());
                }
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The template with what one cluster runs of it.
    async fn share_of(
        &self,
        target: &TargetCluster,
        spec: &ResourceBindingSpec,
        template: &Value,
        completions: Option<i32>,
    ) -> Result<Value, Error> {
        let mut manifest = template.clone();
        if spec.is_workload() {
            self.context.interpreter.revise_replicas(&mut manifest, target.replicas).await?;
        }
        if let Some(completions) = completions {
            object::set(&mut manifest, &["spec", "completions"], serde_json::json!(completions));
        }
        Ok(manifest)
    }

    async fn sync_one(
        &self,
        cluster: &str,
        manifest: Result<Value, Error>,
        cluster_wide: &Overrides,
        namespaced: Option<&Overrides>,
        construct: impl FnOnce(Value, &overriding::Report) -> DesiredWork,
    ) -> Result<(), Error> {
        let Some(member) = self.context.cluster(cluster).await? else {
            return Err(Error::Waiting(format!("cluster {cluster} does not exist")));
        };
        let own = namespaced.map(Overrides::as_plan).unwrap_or_default();
        let mut manifest = manifest?;
        let overrides = overriding::apply(&mut manifest, &member, &cluster_wide.as_plan(), &own)?;
        write_work(&self.context, &construct(manifest, &overrides)).await.map(drop)
    }
}

/// Creates or updates a Work, unless it is as it should be; whether it was written.
pub async fn write_work(context: &Context, desired: &DesiredWork) -> Result<bool, Error> {
    let resource = &context.kinds.work;
    let existing = context.get(resource, &desired.namespace, &desired.name).await?;
    match desired.plan(existing.as_deref(), &new_id()) {
        WorkPlan::Keep => Ok(false),
        WorkPlan::Create(work) => context.create(resource, &work).await.map(|_| true),
        WorkPlan::Update(work) => context.replace(resource, &work).await.map(|_| true),
        WorkPlan::WaitForDeletion => {
            Err(Error::Waiting(format!("work {}/{} is being deleted", desired.namespace, desired.name)))
        }
    }
}

/// Whether a policy holds the binding.
fn is_claimed(binding: &Value) -> bool {
    let ids = [label::PROPAGATION_POLICY_PERMANENT_ID, label::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID];
    ids.iter().any(|id| object::label(binding, id).is_some_and(|id| !id.is_empty()))
}

fn id_label(namespace: &str) -> &'static str {
    match namespace {
        "" => label::CLUSTER_RESOURCE_BINDING_PERMANENT_ID,
        _ => label::RESOURCE_BINDING_PERMANENT_ID,
    }
}

/// The binding a Work was made for, as its annotations say.
pub fn binding_of_work(work: &Value) -> Option<BindingKey> {
    use crowsnest_api::constants::annotation as keys;
    if let Some(name) = object::annotation(work, keys::RESOURCE_BINDING_NAME) {
        let namespace = object::annotation(work, keys::RESOURCE_BINDING_NAMESPACE).unwrap_or_default();
        return Some((namespace.to_owned(), name.to_owned()));
    }
    object::annotation(work, keys::CLUSTER_RESOURCE_BINDING_NAME).map(|name| (String::new(), name.to_owned()))
}

/// Parses a cluster's name out of an execution namespace.
pub fn member_of(namespace: &str) -> Option<ClusterName> {
    cluster_of(namespace).and_then(|cluster| ClusterName::parse(cluster).ok())
}
