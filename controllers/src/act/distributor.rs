//! The dependencies distributor: what a propagated object needs beside it gets a binding of its own, attached to the
//! parent's clusters.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::pin::pin;
use std::sync::Arc;

use crowsnest_api::constants::{annotation, event, finalizer, label};
use crowsnest_api::names::{binding_name, binding_reference_key};
use crowsnest_api::work::ResourceBinding;
use futures::TryStreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::context::{Context, decode, new_id};
use super::events::Severity;
use super::objects::Resource;
use super::queue::{Outcome, Queue};
use super::scheduling::BindingKey;
use super::templates::template_of;
use super::world::{Cached, Change};
use crate::Error;
use crate::plan::dependencies::{self, AttachedPlan, Parent};
use crate::plan::interpreter::dependencies::Dependency;
use crate::plan::object;
use crate::plan::propagation::change::Change as TemplateChange;
use crate::plan::selector::labels_match;

pub struct Distributor {
    context: Arc<Context>,
    pub parents: Queue<BindingKey>,
    /// What each parent depends on, so that a dependency that comes later finds it.
    wanted: Mutex<BTreeMap<BindingKey, Vec<Dependency>>>,
}

impl Distributor {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Distributor { context, parents: Queue::new("dependencies"), wanted: Mutex::default() })
    }

    pub fn on_change(&self, change: &Change) {
        let object = change.object();
        let key = change.key();
        if change.resource.gvr == self.context.kinds.resource_binding.gvr {
            if change.deleted {
                self.wanted.lock().remove(&key);
            }
            if change.is_marked() {
                self.parents.add(key);
            }
            return;
        }
        if !key.0.is_empty() && change.of_template() != TemplateChange::None {
            let wanted = self.wanted.lock();
            let depending = wanted.iter().filter(|(_, wanted)| wanted.iter().any(|wanted| means(wanted, object)));
            depending.for_each(|(parent, _)| self.parents.add(parent.clone()));
        }
    }

    /// The bindings are only these; what the others depended on is let go.
    pub fn told_again(&self, resource: &Resource, keys: &HashSet<BindingKey>) {
        if *resource == self.context.kinds.resource_binding {
            let mut wanted = self.wanted.lock();
            wanted.keys().filter(|key| !keys.contains(*key)).for_each(|key| self.parents.add(key.clone()));
            wanted.retain(|key, _| keys.contains(key));
        }
    }

    pub async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let context = &self.context;
        let resource = &context.kinds.resource_binding;
        let binding = context.get(resource, &key.0, &key.1).await?;
        let Some(binding) = binding else {
            self.detach_all(&key, &BTreeSet::new()).await?;
            return Ok(Outcome::Done);
        };
        let typed: ResourceBinding = decode(&binding)?;
        let finalizer = finalizer::BINDING_DEPENDENCIES_DISTRIBUTOR;
        if object::is_terminating(&binding) || !typed.spec.propagate_deps || !context.config.gates.propagate_deps {
            self.wanted.lock().remove(&key);
            let had = object::has_finalizer(&binding, finalizer);
            self.detach_all(&key, &BTreeSet::new()).await?;
            if had {
                context.remove_finalizer(resource, &binding, finalizer).await?;
            }
            return Ok(Outcome::Done);
        }
        let Some((_, template)) = template_of(context, &binding).await? else {
            return Err(Error::Waiting("the template does not exist".to_owned()));
        };
        let dependencies = match context.interpreter.dependencies(&template) {
            Ok(Some(dependencies)) => dependencies,
            Ok(None) => return Ok(Outcome::Done),
            Err(error) => {
                let message = error.message();
                context.events.note(&binding, Severity::Warning, event::GET_DEPENDENCIES_FAILED, message);
                return Err(error);
            }
        };
        self.wanted.lock().insert(key.clone(), dependencies.clone());
        let binding = self.record(resource, &binding, &dependencies).await?;
        if typed.spec.clusters.is_empty() && !self.is_scheduled(&binding) {
            return Ok(Outcome::Done);
        }
        let parent = Parent {
            namespace: &key.0,
            name: &key.1,
            permanent_id: object::label(&binding, label::RESOURCE_BINDING_PERMANENT_ID).unwrap_or_default(),
            clusters: &typed.spec.clusters,
            conflict_resolution: typed.spec.conflict_resolution.as_ref(),
            preserve_resources_on_deletion: typed.spec.preserve_resources_on_deletion,
        };
        let mut attached = BTreeSet::new();
        for dependency in &dependencies {
            for template in self.templates(dependency, &key.0).await? {
                let template = template.view();
                attached.insert(binding_name(object::kind(template), object::name(template)));
                self.attach(&parent, template).await?;
            }
        }
        self.detach_all(&key, &attached).await?;
        Ok(Outcome::Done)
    }

    fn is_scheduled(&self, binding: &Value) -> bool {
        object::annotation(binding, annotation::APPLIED_PLACEMENT).is_some()
    }

    /// Notes the dependencies on the parent and holds it until they are let go.
    async fn record(
        &self,
        resource: &Resource,
        binding: &Arc<Value>,
        dependencies: &[Dependency],
    ) -> Result<Arc<Value>, Error> {
        let finalizer = finalizer::BINDING_DEPENDENCIES_DISTRIBUTOR;
        let wanted = dependencies::annotation(dependencies);
        let text = wanted.get(annotation::DEPENDENCIES).and_then(Value::as_str);
        if object::annotation(binding, annotation::DEPENDENCIES) == text && object::has_finalizer(binding, finalizer) {
            return Ok(Arc::clone(binding));
        }
        let mut finalizers: Vec<&str> = object::finalizers(binding).collect();
        if !finalizers.contains(&finalizer) {
            finalizers.push(finalizer);
        }
        let patch = json!({"metadata": {"annotations": wanted, "finalizers": finalizers}});
        Ok(Arc::new(self.context.merge(resource, binding, patch).await?))
    }

    /// The objects a dependency names or selects, in the parent's namespace.
    async fn templates(&self, dependency: &Dependency, namespace: &str) -> Result<Vec<Cached>, Error> {
        let control_plane = &self.context.control_plane;
        let found = self.context.catalog.find(control_plane, &dependency.api_version, &dependency.kind).await;
        let resource = match found {
            Ok(resource) => resource,
            Err(Error::UnknownKind { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        if !dependency.name.is_empty() {
            return Ok(self.context.glance(&resource, namespace, &dependency.name).await?.into_iter().collect());
        }
        let all = self.context.stream(&resource, Some(namespace));
        all.try_filter(|template| std::future::ready(means(dependency, template.view()))).try_collect().await
    }

    async fn attach(&self, parent: &Parent<'_>, template: &Value) -> Result<(), Error> {
        let resource = &self.context.kinds.resource_binding;
        let name = binding_name(object::kind(template), object::name(template));
        let existing = self.context.get(resource, parent.namespace, &name).await?;
        match dependencies::attach(parent, template, existing.as_deref(), &new_id()) {
            AttachedPlan::Keep => Ok(()),
            AttachedPlan::Create(binding) => self.context.create(resource, &binding).await.map(|_| ()),
            AttachedPlan::Update(binding) => self.context.replace(resource, &binding).await.map(|_| ()),
            AttachedPlan::WaitForGarbageCollection => {
                Err(Error::Waiting("an earlier dependency of that name is being collected".to_owned()))
            }
        }
    }

    /// Takes the parent out of every attached binding that isn't in `keep`.
    async fn detach_all(&self, parent: &BindingKey, keep: &BTreeSet<String>) -> Result<(), Error> {
        let resource = &self.context.kinds.resource_binding;
        let depended = format!("{}{}", label::DEPENDED_BY_PREFIX, binding_reference_key(&parent.0, &parent.1));
        let world = &self.context.world;
        let bindings = world.labelled(&self.context.control_plane, &resource.gvr, &depended, None).await?;
        let leaving = bindings
            .iter()
            .map(Cached::view)
            .filter(|binding| object::namespace(binding) == parent.0 && !keep.contains(object::name(binding)));
        for binding in leaving {
            let mut parents: BTreeMap<BindingKey, Cached> = BTreeMap::new();
            for (namespace, name) in dependencies::parents(binding) {
                if let Some(found) = self.context.glance(resource, &namespace, &name).await? {
                    parents.insert((namespace, name), found);
                }
            }
            let parent_of =
                |namespace: &str, name: &str| parents.get(&(namespace.to_owned(), name.to_owned())).map(Cached::view);
            if let Some(updated) = dependencies::detach(&parent.0, &parent.1, binding, parent_of) {
                self.context.replace(resource, &updated).await?;
            }
        }
        Ok(())
    }

    pub async fn full_pass(&self) -> Result<(), Error> {
        let mut bindings = pin!(self.context.stream(&self.context.kinds.resource_binding, None));
        while let Some(binding) = bindings.try_next().await? {
            let binding = binding.view();
            let propagates = object::at(binding, &["spec", "propagateDeps"]).and_then(Value::as_bool);
            if propagates.unwrap_or_default() {
                self.parents.add((object::namespace(binding).to_owned(), object::name(binding).to_owned()));
            }
        }
        Ok(())
    }
}

/// Whether a dependency means this object.
fn means(dependency: &Dependency, object: &Value) -> bool {
    if dependency.api_version != object::api_version(object)
        || dependency.kind != object::kind(object)
        || dependency.namespace != object::namespace(object)
    {
        return false;
    }
    if !dependency.name.is_empty() {
        return dependency.name == object::name(object);
    }
    let selector = dependency.label_selector.clone().and_then(|selector| serde_json::from_value(selector).ok());
    selector.is_some_and(|selector: LabelSelector| labels_match(&selector, &object::labels(object)))
}
