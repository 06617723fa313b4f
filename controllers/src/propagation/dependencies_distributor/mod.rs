//! Dependencies distributor: propagates the dependencies of a template to the clusters of its binding, with one
//! attached binding per dependency.

mod dependency_index;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use crowsnest_api::constants::{annotation, event, finalizer, label};
use crowsnest_api::keys::BindingKey;
use crowsnest_api::names::binding_reference_key;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_api::permanent_id;
use crowsnest_api::work::ResourceBinding;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_apimachinery::unstructured;
use futures::TryStreamExt;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::Error;
use crate::cache::{CachedObject, Change};
use crate::runtime::context::{Context, new_id};
use crate::runtime::dynamic_client::Resource;
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Trigger, Watch, WellKnownKinds};
use crate::shared::bindings::binding_key_of;
use crate::shared::templates::template_of;
use crowsnest_interpreter::default::dependencies::format_like_go;
use crowsnest_plan::dependencies::{self, AttachmentPlan, DependencySettings, Parent};
use crowsnest_plan::dependencies::{Dependency, DependencyList};
use crowsnest_plan::propagation::binding::NewBinding;
use crowsnest_plan::propagation::change::Change as TemplateChange;
use dependency_index::DependencyIndex;
pub(crate) use dependency_index::is_dependency;

pub struct DependenciesDistributor {
    context: Arc<Context>,
    parents: Trigger<BindingKey>,
    /// Dependencies by parent, so that a dependency created later enqueues its parent.
    dependencies: Mutex<DependencyIndex>,
}

impl DependenciesDistributor {
    fn on_binding(&self, change: &Change) -> Requests<BindingKey> {
        let key = BindingKey::from_object(change.object());
        if change.deleted {
            self.dependencies.lock().remove(&key);
        }
        let may_have = change.deleted || may_have_dependencies(change.object());
        Requests::one_if(change.is_generation_or_labels_changed() && may_have, || key.clone())
    }

    /// Bindings that depend on an object, by its labels before or after the change.
    fn on_object(&self, change: &Change) -> Requests<BindingKey> {
        let object = change.object();
        let is_binding = change.resource.gvr == self.context.kinds.resource_binding.gvr;
        if is_binding || unstructured::namespace(object).is_empty() || change.template_change() == TemplateChange::None
        {
            return Requests::none();
        }
        let labels = unstructured::labels(object);
        let before = change.old.as_ref().map(|old| &old.header.labels).filter(|before| **before != labels);
        let labels: Vec<_> = [&labels].into_iter().chain(before).collect();
        self.dependencies.lock().parents_of(object, &labels).into_iter().collect()
    }
}

impl Controller for DependenciesDistributor {
    type Key = BindingKey;
    const NAME: &'static str = "dependencies-distributor";
    const SWITCH: Switch = Switch::Always;

    fn new(setup: &Setup) -> Self {
        let parents = setup.trigger::<Self>();
        DependenciesDistributor { context: setup.context(), parents, dependencies: Mutex::default() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::control_plane([&kinds.resource_binding]).map(Self::on_binding),
            Source::AllOfControlPlane.map(Self::on_object),
        ]
    }

    async fn keys(&self) -> Result<Vec<BindingKey>, Error> {
        let key_if_enabled = |binding: &Value| {
            let propagates = unstructured::at(binding, &["spec", "propagateDeps"]).and_then(Value::as_bool);
            propagates.unwrap_or_default().then(|| BindingKey::from_object(binding))
        };
        self.context.filter_map(&self.context.kinds.resource_binding, None, key_if_enabled).await
    }

    /// Enqueues bindings that were deleted while changes were missed, so that their dependencies are detached.
    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>) {
        if cluster.is_control_plane() && *resource == self.context.kinds.resource_binding {
            let deleted = self.dependencies.lock().remove_deleted(|key| keys.contains(key.as_namespaced_name()));
            deleted.into_iter().for_each(|key| self.parents.add(key));
        }
    }

    async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let context = &self.context;
        let resource = &context.kinds.resource_binding;
        let Some((binding, typed)) = context.binding(&key).await? else {
            self.detach_except(&key, &BTreeSet::new(), None).await?;
            return Ok(Outcome::Done);
        };
        let finalizer = finalizer::BINDING_DEPENDENCIES_DISTRIBUTOR;
        if unstructured::is_terminating(&binding) || !typed.spec.propagate_deps || !context.config.gates.propagate_deps
        {
            self.dependencies.lock().remove(&key);
            let has_finalizer = unstructured::has_finalizer(&binding, finalizer);
            self.detach_except(&key, &BTreeSet::new(), None).await?;
            if has_finalizer {
                context.remove_finalizer(resource, &binding, finalizer).await?;
            }
            return Ok(Outcome::Done);
        }
        let Some((_, template)) = template_of(context, &binding).await? else {
            return Err(Error::Waiting("the template does not exist".to_owned()));
        };
        let dependencies = match context.interpreter.dependencies(&template).await {
            Ok(Some(dependencies)) => dependencies,
            Ok(None) => return Ok(Outcome::Done),
            Err(error) => {
                let message = error.to_string();
                context.events.record(&template, Severity::Warning, event::GET_DEPENDENCIES_FAILED, message);
                return Err(error.into());
            }
        };
        self.dependencies.lock().insert(&key, dependencies.list());
        let synced = self.sync(&key, &binding, &typed, &dependencies).await;
        match &synced {
            Ok(false) => {}
            Ok(true) => {
                let message = "Sync schedule results to dependencies succeed.";
                context.events.record(&binding, Severity::Normal, event::SYNC_SCHEDULE_RESULT_SUCCEED, message);
            }
            Err(error) if error.is_conflict() || error.is_waiting() => {}
            Err(error) => {
                let message = error.message();
                context.events.record(&binding, Severity::Warning, event::SYNC_SCHEDULE_RESULT_FAILED, message);
            }
        }
        synced.map(|_| Outcome::Done)
    }
}

impl DependenciesDistributor {
    /// Attaches the parent's dependencies, and detaches former ones. Returns true if a binding was written. A failure
    /// of one dependency does not affect the others.
    async fn sync(
        &self,
        key: &BindingKey,
        binding: &Arc<Value>,
        typed: &ResourceBinding,
        dependencies: &DependencyList,
    ) -> Result<bool, Error> {
        let binding = self.write_dependencies(&self.context.kinds.resource_binding, binding, dependencies).await?;
        if typed.spec.clusters.is_empty() && !self.is_scheduled(&binding) {
            return Ok(false);
        }
        let parent = Parent {
            namespace: &key.namespace,
            name: &key.name,
            permanent_id: permanent_id::binding_id(&binding),
            clusters: &typed.spec.clusters,
            settings: DependencySettings::from_spec(&typed.spec),
            suspension: typed.spec.suspension.as_ref(),
        };
        let mut attached = BTreeSet::new();
        let mut written = false;
        let mut last_error = None;
        let mut all_found = true;
        for dependency in dependencies.list() {
            let templates = match self.find_templates(dependency, &key.namespace).await {
                Ok(templates) => templates,
                Err(error) => {
                    all_found = false;
                    last_error = Some(error);
                    continue;
                }
            };
            for template in &templates {
                let template = template.view();
                let attached_key = binding_key_of(&self.context, &ObjectIdentity::from_object(template)).await?;
                attached.insert(attached_key.name.clone());
                match self.attach(&parent, template, &attached_key).await {
                    Ok(is_written) => written |= is_written,
                    Err(error) => last_error = Some(error),
                }
            }
        }
        if all_found {
            self.detach_except(key, &attached, Some(&parent)).await?;
        }
        last_error.map_or(Ok(written), Err)
    }

    fn is_scheduled(&self, binding: &Value) -> bool {
        unstructured::annotation(binding, annotation::APPLIED_PLACEMENT).is_some()
    }

    /// Records the dependencies on the parent, and adds its finalizer.
    async fn write_dependencies(
        &self,
        resource: &Resource,
        binding: &Arc<Value>,
        dependencies: &DependencyList,
    ) -> Result<Arc<Value>, Error> {
        let finalizer = finalizer::BINDING_DEPENDENCIES_DISTRIBUTOR;
        let annotations = dependencies::annotation(dependencies);
        let text = annotations.get(annotation::DEPENDENCIES).and_then(Value::as_str);
        if unstructured::annotation(binding, annotation::DEPENDENCIES) == text
            && unstructured::has_finalizer(binding, finalizer)
        {
            return Ok(Arc::clone(binding));
        }
        let mut finalizers: Vec<&str> = unstructured::finalizers(binding).collect();
        if !finalizers.contains(&finalizer) {
            finalizers.push(finalizer);
        }
        let patch = json!({"metadata": {"annotations": annotations, "finalizers": finalizers}});
        let recorded = self.context.merge(resource, binding, patch).await?;
        if let Some((_, template)) = template_of(&self.context, &recorded).await? {
            let message = format!("Get dependencies({}) succeed.", format_like_go(dependencies.list()));
            self.context.events.record(&template, Severity::Normal, event::GET_DEPENDENCIES_SUCCEED, message);
        }
        Ok(Arc::new(recorded))
    }

    /// The objects that a dependency names or selects, in the parent's namespace.
    async fn find_templates(&self, dependency: &Dependency, namespace: &str) -> Result<Vec<CachedObject>, Error> {
        let control_plane = &self.context.control_plane;
        let found = self.context.rest_mapper.find(control_plane, &dependency.api_version, &dependency.kind).await;
        let resource = match found {
            Ok(resource) => resource,
            Err(Error::UnknownKind { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        // Before the first list it is unknown which objects exist, and missing ones would be detached.
        let cache = &self.context.cache;
        let is_listed = cache.is_synced(control_plane, &resource.gvr);
        if !is_listed && cache.is_collected(control_plane, &resource.gvr) {
            return Err(Error::Waiting(format!("{} are not listed yet", resource.gvr.resource)));
        }
        if !dependency.name.is_empty() {
            return Ok(self.context.get_redacted(&resource, namespace, &dependency.name).await?.into_iter().collect());
        }
        let all = self.context.stream(&resource, Some(namespace));
        let is_selected = |template: &CachedObject| {
            let template = template.view();
            std::future::ready(is_dependency(dependency, template, &unstructured::labels(template)))
        };
        all.try_filter(is_selected).try_collect().await
    }

    /// Creates or updates the attached binding of a dependency. Returns true if it was written.
    async fn attach(&self, parent: &Parent<'_>, template: &Value, attached_key: &BindingKey) -> Result<bool, Error> {
        let resource = &self.context.kinds.resource_binding;
        let existing = self.context.get_full(resource, &attached_key.namespace, &attached_key.name).await?;
        let parents = match &existing {
            None => BTreeMap::new(),
            Some(existing) => self.existing_parents(existing).await?,
        };
        let new = NewBinding { name: &attached_key.name, permanent_id: &new_id() };
        let attached = dependencies::attach(parent, template, existing.as_deref(), parent_lookup(&parents), new);
        let binding = match attached.plan {
            AttachmentPlan::Keep => None,
            AttachmentPlan::Create(binding) => Some(self.context.create(resource, &binding).await?),
            AttachmentPlan::Update(binding) => Some(self.context.replace(resource, &binding).await?),
            AttachmentPlan::WaitForGarbageCollection => {
                return Err(Error::Waiting(
                    "the binding of a deleted dependency of the same name is being garbage-collected".to_owned(),
                ));
            }
        };
        if let (Some(message), Some(binding)) = (attached.conflict, binding.as_ref().or(existing.as_deref())) {
            self.context.events.record(binding, Severity::Warning, event::DEPENDENCY_POLICY_CONFLICT, message);
        }
        Ok(binding.is_some())
    }

    /// The existing parents of an attached binding.
    async fn existing_parents(&self, attached: &Value) -> Result<BTreeMap<BindingKey, CachedObject>, Error> {
        let mut parents = BTreeMap::new();
        let resource = &self.context.kinds.resource_binding;
        for parent in dependencies::parents(attached) {
            if let Some(found) = self.context.get_redacted(resource, &parent.namespace, &parent.name).await? {
                parents.insert(parent, found);
            }
        }
        Ok(parents)
    }

    /// Detaches the parent from all attached bindings that are not in `keep`. With `parent`, which is given if it still
    /// propagates dependencies, they stay attached for clusters to which dispatching is suspended.
    async fn detach_except(
        &self,
        key: &BindingKey,
        keep: &BTreeSet<String>,
        parent: Option<&Parent<'_>>,
    ) -> Result<(), Error> {
        let resource = &self.context.kinds.resource_binding;
        let label = format!("{}{}", label::DEPENDED_BY_PREFIX, binding_reference_key(&key.namespace, &key.name));
        let cache = &self.context.cache;
        let bindings = cache.list_by_label(&self.context.control_plane, &resource.gvr, &label, None).await?;
        let detached = bindings.iter().map(CachedObject::view).filter(|binding| {
            unstructured::namespace(binding) == key.namespace && !keep.contains(unstructured::name(binding))
        });
        for binding in detached {
            let parents = self.existing_parents(binding).await?;
            let updated = match parent {
                Some(parent) => dependencies::release(parent, binding, parent_lookup(&parents)),
                None => dependencies::detach(&key.namespace, &key.name, binding, parent_lookup(&parents)),
            };
            if let Some(updated) = updated {
                self.context.replace(resource, &updated).await?;
            }
        }
        Ok(())
    }
}

/// True if a binding has dependencies, or had some and still has the finalizer.
fn may_have_dependencies(binding: &Value) -> bool {
    let propagates = unstructured::at(binding, &["spec", "propagateDeps"]).and_then(Value::as_bool).unwrap_or_default();
    propagates || unstructured::has_finalizer(binding, finalizer::BINDING_DEPENDENCIES_DISTRIBUTOR)
}

/// Finds parents by namespace and name.
fn parent_lookup<'a>(parents: &'a BTreeMap<BindingKey, CachedObject>) -> impl Fn(&str, &str) -> Option<&'a Value> {
    move |namespace, name| parents.get(&BindingKey::new(namespace, name)).map(CachedObject::view)
}
