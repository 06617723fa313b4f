//! Planned bindings of dependencies, as the dependencies distributor would write them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crowsnest_api::constants::{annotation, label};
use crowsnest_api::keys::BindingKey;
use crowsnest_api::names::binding_reference_key;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_api::work::{ObjectReference, ResourceBinding, Suspension, TargetCluster};
use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use super::{AffectedTemplate, Planner};
use crate::Error;
use crate::propagation::dependencies_distributor::is_dependency;
use crate::shared::bindings::binding_key_of;
use crowsnest_plan::dependencies::Dependency;
use crowsnest_plan::dependencies::{self, AttachmentPlan, DependencySettings, Parent};
use crowsnest_plan::propagation::binding::NewBinding;
use crowsnest_plan::whatif::UNKNOWN_ID;

/// Planned bindings of dependencies, and the bindings that require them.
#[derive(Default)]
pub(super) struct AttachedBindings {
    /// Planned state of the bindings that have, had, or would have dependencies.
    parents: BTreeMap<BindingKey, PlannedParent>,
    /// Bindings of dependencies that would change.
    attached: BTreeMap<BindingKey, Arc<Value>>,
}

/// A binding with the dependencies of its template.
struct PlannedParent {
    permanent_id: String,
    clusters: Vec<TargetCluster>,
    settings: DependencySettings,
    suspension: Option<Suspension>,
    dependencies: Vec<Dependency>,
    /// The binding itself. `None` if it would be deleted.
    binding: Option<Arc<Value>>,
}

impl PlannedParent {
    fn as_parent<'a>(&'a self, key: &'a BindingKey) -> Parent<'a> {
        Parent {
            namespace: &key.namespace,
            name: &key.name,
            permanent_id: &self.permanent_id,
            clusters: &self.clusters,
            settings: self.settings,
            suspension: self.suspension.as_ref(),
        }
    }
}

impl AttachedBindings {
    /// The planned binding of a dependency, if it would change.
    pub(super) fn planned_binding(&self, key: &BindingKey) -> Option<Arc<Value>> {
        self.attached.get(key).cloned()
    }

    /// Records that a binding is deleted, and with it its dependencies.
    pub(super) fn record_deletion(&mut self, key: &BindingKey) {
        let deleted = PlannedParent {
            permanent_id: String::new(),
            clusters: Vec::new(),
            settings: DependencySettings::default(),
            suspension: None,
            dependencies: Vec::new(),
            binding: None,
        };
        self.parents.insert(key.clone(), deleted);
    }
}

impl Planner<'_> {
    /// Records the dependencies of a planned binding, and returns references to them. The name in a reference is `*`
    /// for a label selector.
    pub(super) async fn record_dependencies(
        &mut self,
        binding: &Value,
        template: &Value,
        typed: &ResourceBinding,
    ) -> Result<Vec<ObjectReference>, Error> {
        if !self.reports.context.config.gates.propagate_deps {
            return Ok(Vec::new());
        }
        let key = BindingKey::from_object(binding);
        let dependencies = match typed.spec.propagate_deps {
            true => self.interpreter().dependencies(template).await?.unwrap_or_default().0.unwrap_or_default(),
            false => Vec::new(),
        };
        let references = dependencies.iter().map(reference).collect();
        // Cluster-scoped bindings have no dependencies, and neither have bindings that were never scheduled.
        let is_scheduled = unstructured::annotation(binding, annotation::APPLIED_PLACEMENT).is_some();
        if !key.is_cluster_scoped() && (is_scheduled || !typed.spec.clusters.is_empty()) {
            let permanent_id = unstructured::label(binding, label::RESOURCE_BINDING_PERMANENT_ID).unwrap_or(UNKNOWN_ID);
            let planned_parent = PlannedParent {
                permanent_id: permanent_id.to_owned(),
                clusters: typed.spec.clusters.clone(),
                settings: DependencySettings::from_spec(&typed.spec),
                suspension: typed.spec.suspension.clone().filter(|_| typed.spec.propagate_deps),
                dependencies,
                binding: Some(Arc::new(binding.clone())),
            };
            self.attached_bindings.parents.insert(key, planned_parent);
        }
        Ok(references)
    }

    /// Attaches the dependencies of all planned bindings, and detaches former ones. Returns the templates whose binding
    /// would change by that, which must be planned as well.
    pub async fn attach_dependencies(&mut self) -> Result<BTreeSet<AffectedTemplate>, Error> {
        let mut affected = BTreeSet::new();
        let parents = std::mem::take(&mut self.attached_bindings.parents);
        for (key, planned_parent) in &parents {
            let kept_names = self.attach_all(key, planned_parent, &parents, &mut affected).await?;
            self.detach_others(key, &kept_names, &parents, &mut affected).await?;
        }
        self.attached_bindings.parents = parents;
        Ok(affected)
    }

    /// Attaches all dependencies. Returns the names of their bindings.
    async fn attach_all(
        &mut self,
        key: &BindingKey,
        planned_parent: &PlannedParent,
        parents: &BTreeMap<BindingKey, PlannedParent>,
        affected: &mut BTreeSet<AffectedTemplate>,
    ) -> Result<BTreeSet<String>, Error> {
        let mut kept_names = BTreeSet::new();
        for dependency in &planned_parent.dependencies {
            for template in self.find_dependencies(dependency, &key.namespace).await? {
                let attached_key =
                    binding_key_of(&self.reports.context, &ObjectIdentity::from_object(&template)).await?;
                let existing = self.planned_dependency_binding(&attached_key).await?;
                let others = self.find_parents(existing.as_deref(), parents).await?;
                let parent = planned_parent.as_parent(key);
                let new = NewBinding { name: &attached_key.name, permanent_id: UNKNOWN_ID };
                let planned =
                    dependencies::attach(&parent, &template, existing.as_deref(), parent_lookup(&others), new);
                kept_names.insert(attached_key.name.clone());
                if let AttachmentPlan::Create(binding) | AttachmentPlan::Update(binding) = planned.plan {
                    self.record_planned(attached_key, binding, affected);
                }
            }
        }
        Ok(kept_names)
    }

    /// Detaches bindings that are no longer dependencies.
    async fn detach_others(
        &mut self,
        key: &BindingKey,
        kept_names: &BTreeSet<String>,
        parents: &BTreeMap<BindingKey, PlannedParent>,
        affected: &mut BTreeSet<AffectedTemplate>,
    ) -> Result<(), Error> {
        let Some(planned_parent) = parents.get(key) else { return Ok(()) };
        let parent = planned_parent.as_parent(key);
        let context = &self.reports.context;
        let label = format!("{}{}", label::DEPENDED_BY_PREFIX, binding_reference_key(&key.namespace, &key.name));
        let bindings = &context.kinds.resource_binding.gvr;
        for found in context.cache.list_by_label(&context.control_plane, bindings, &label, None).await? {
            let attached_key = BindingKey::from_object(found.view());
            if attached_key.namespace != key.namespace || kept_names.contains(&attached_key.name) {
                continue;
            }
            let Some(existing) = self.planned_dependency_binding(&attached_key).await? else { continue };
            let others = self.find_parents(Some(&existing), parents).await?;
            if let Some(updated) = dependencies::release(&parent, &existing, parent_lookup(&others)) {
                self.record_planned(attached_key, updated, affected);
            }
        }
        Ok(())
    }

    fn record_planned(&mut self, key: BindingKey, binding: Value, affected: &mut BTreeSet<AffectedTemplate>) {
        let reference = unstructured::at(&binding, &["spec", "resource"]).unwrap_or(&Value::Null);
        let (api_version, kind) = (unstructured::api_version(reference), unstructured::kind(reference));
        let context = &self.reports.context;
        if let Some(resource) = context.rest_mapper.find_cached(&context.control_plane, api_version, kind) {
            let name = unstructured::text(reference, &["name"]).to_owned();
            affected.insert(AffectedTemplate { resource, namespace: key.namespace.clone(), name });
        }
        self.attached_bindings.attached.insert(key, Arc::new(binding));
    }

    /// The planned objects that a dependency refers to.
    async fn find_dependencies(&self, dependency: &Dependency, namespace: &str) -> Result<Vec<Arc<Value>>, Error> {
        let found = self.reports.find_resource(&dependency.api_version, &dependency.kind).await;
        let resource = match found {
            Ok(resource) => resource,
            Err(Error::UnknownKind { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        if !dependency.name.is_empty() {
            let found = match self.proposal.find(&resource, namespace, &dependency.name) {
                Some(proposed) => proposed.after.clone().map(Arc::new),
                None => self
                    .reports
                    .context
                    .get_redacted(&resource, namespace, &dependency.name)
                    .await?
                    .map(|found| super::to_shared(&found)),
            };
            return Ok(found.into_iter().collect());
        }
        let mut all = self.reports.list_proposed(&resource, Some(namespace), self.proposal).await?;
        all.retain(|template| is_dependency(dependency, template, &unstructured::labels(template)));
        Ok(all)
    }

    /// The planned binding of a dependency.
    async fn planned_dependency_binding(&self, key: &BindingKey) -> Result<Option<Arc<Value>>, Error> {
        match self.attached_bindings.planned_binding(key) {
            Some(binding) => Ok(Some(binding)),
            None => {
                let context = &self.reports.context;
                context.get_full(&context.kinds.resource_binding, &key.namespace, &key.name).await
            }
        }
    }

    /// The planned bindings that require a dependency.
    async fn find_parents(
        &self,
        attached: Option<&Value>,
        parents: &BTreeMap<BindingKey, PlannedParent>,
    ) -> Result<BTreeMap<BindingKey, Arc<Value>>, Error> {
        let mut others = BTreeMap::new();
        let context = &self.reports.context;
        for key in attached.map(dependencies::parents).unwrap_or_default() {
            let binding = match parents.get(&key) {
                Some(planned) => planned.binding.clone(),
                None => context.get_full(&context.kinds.resource_binding, &key.namespace, &key.name).await?,
            };
            others.extend(binding.map(|binding| (key, binding)));
        }
        Ok(others)
    }
}

fn reference(dependency: &Dependency) -> ObjectReference {
    let name = if dependency.name.is_empty() { "*" } else { &dependency.name };
    ObjectReference::new(&dependency.api_version, &dependency.kind, &dependency.namespace, name)
}

fn parent_lookup<'a>(others: &'a BTreeMap<BindingKey, Arc<Value>>) -> impl Fn(&str, &str) -> Option<&'a Value> {
    move |namespace, name| others.get(&BindingKey::new(namespace, name)).map(Arc::as_ref)
}
