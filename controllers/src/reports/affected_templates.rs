//! Templates that a proposed change may affect.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use crowsnest_api::apps::WorkloadRebalancer;
use crowsnest_api::cluster::Cluster;
use crowsnest_api::config::ResourceInterpreterCustomization;
use crowsnest_api::constants::condition;
use crowsnest_api::permanent_id;
use crowsnest_api::policy::{OverrideSpec, PropagationSpec, ResourceSelector};
use crowsnest_api::work::ResourceBinding;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::unstructured;
use futures::TryStreamExt;
use serde_json::Value;

use super::{Proposal, ProposedObject, Reports, Role, spec_of};
use crate::Error;
use crate::propagation::detector::is_template_resource;
use crate::runtime::context::{Context, decode};
use crate::runtime::dynamic_client::Resource;
use crate::scheduling::scheduler::planner_binding;
use crowsnest_plan::conditions;
use crowsnest_plan::scheduling::is_affected_by_cluster;
use crowsnest_plan::selector::{best_precision, precision_of};
use crowsnest_plan::work::construct;

/// A template that a proposed change may affect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AffectedTemplate {
    pub resource: Resource,
    pub namespace: String,
    pub name: String,
}

/// Search for the templates that proposed changes may affect.
struct AffectedTemplateSearch<'r> {
    reports: &'r Reports,
    context: &'r Context,
    found: BTreeSet<AffectedTemplate>,
}

impl Reports {
    /// All templates that a proposal may affect.
    pub async fn find_affected_templates(&self, proposal: &Proposal) -> Result<BTreeSet<AffectedTemplate>, Error> {
        let mut search = AffectedTemplateSearch { reports: self, context: &self.context, found: BTreeSet::new() };
        for object in &proposal.objects {
            match object.role {
                Role::Template => search.add(&object.resource, object.object()),
                Role::Policy => search.add_selected_by_policy(object).await?,
                Role::Override => search.add_selected_by_override(object).await?,
                Role::Customization => search.add_of_customized_kind(object).await?,
                Role::Cluster => search.add_of_cluster(object).await?,
                Role::Quota => search.add_rejected_by_quota(object).await?,
                Role::Rebalancer => search.add_of_rebalancer(object).await?,
            }
        }
        Ok(search.found)
    }
}

impl AffectedTemplateSearch<'_> {
    /// Adds a template, unless it is never propagated.
    fn add(&mut self, resource: &Resource, template: &Value) {
        let NamespacedName { namespace, name } = unstructured::key(template);
        if !self.reports.is_never_propagated(resource, &namespace, &name) {
            self.found.insert(AffectedTemplate { resource: resource.clone(), namespace, name });
        }
    }

    /// Adds the templates that a policy selects, selected, or has claimed. A deleted policy affects only those it has
    /// claimed.
    async fn add_selected_by_policy(&mut self, policy: &ProposedObject) -> Result<(), Error> {
        let policy_namespace = unstructured::namespace(policy.object());
        let resources = self.context.cache.resources(&self.context.control_plane);
        let versions = policy.versions().filter(|_| policy.after.is_some());
        let specs: Vec<PropagationSpec> = versions.filter_map(spec_of).collect();
        for selector in specs.iter().flat_map(|spec| &spec.resource_selectors) {
            let of_kind = |resource: &&Arc<Resource>| {
                resource.kind == selector.kind && resource.gvr.api_version() == selector.api_version
            };
            let Some(resource) = resources.iter().find(of_kind) else { continue };
            let namespace = match (policy_namespace, selector.namespace.as_str()) {
                ("", "") => None,
                ("", namespace) | (namespace, _) => Some(namespace),
            };
            if !selector.name.is_empty() && namespace.is_some() {
                let template =
                    self.context.get_redacted(resource, namespace.unwrap_or_default(), &selector.name).await?;
                template.iter().for_each(|template| self.add(resource, template.view()));
                continue;
            }
            let mut templates = pin!(self.context.stream(resource, namespace));
            while let Some(template) = templates.try_next().await? {
                if precision_of(selector, template.view()).is_some() {
                    self.add(resource, template.view());
                }
            }
        }
        let label = permanent_id::policy_label(crowsnest_api::Scope::from_namespace(policy_namespace));
        let id = policy.before.as_deref().map(permanent_id::policy_id).unwrap_or_default();
        for resource in resources.iter().filter(|resource| is_template_resource(&resource.gvr)) {
            for template in self.context.list_with_id(resource, label, id).await? {
                self.add(resource, template.view());
            }
        }
        Ok(())
    }

    /// Adds the templates with a binding that an override policy selects or selected.
    async fn add_selected_by_override(&mut self, policy: &ProposedObject) -> Result<(), Error> {
        let versions = policy.versions();
        let selectors: Vec<Vec<ResourceSelector>> = versions
            .filter_map(|version| spec_of::<OverrideSpec>(version).map(|spec| spec.resource_selectors))
            .collect();
        let namespace = Some(unstructured::namespace(policy.object())).filter(|namespace| !namespace.is_empty());
        let of_kind = |_: &Value, reference: &Value| {
            let (api_version, kind) = (unstructured::api_version(reference), unstructured::kind(reference));
            let is_of_kind = |selector: &ResourceSelector| selector.api_version == api_version && selector.kind == kind;
            selectors.iter().any(|selectors| selectors.is_empty() || selectors.iter().any(is_of_kind))
        };
        let selects = |template: &Value| {
            selectors.iter().any(|selectors| selectors.is_empty() || best_precision(selectors, template).is_some())
        };
        self.add_of_bindings(namespace, of_kind, selects).await
    }

    /// Adds the templates with a binding, of the kind that a customization targets.
    async fn add_of_customized_kind(&mut self, customization: &ProposedObject) -> Result<(), Error> {
        let typed =
            customization.versions().map(decode::<ResourceInterpreterCustomization>).collect::<Result<Vec<_>, _>>()?;
        let of_kind = |_: &Value, reference: &Value| {
            let (api_version, kind) = (unstructured::api_version(reference), unstructured::kind(reference));
            typed.iter().any(|customization| {
                customization.spec.target.api_version == api_version && customization.spec.target.kind == kind
            })
        };
        self.add_of_bindings(None, of_kind, |_| true).await
    }

    /// Adds the templates that are in a cluster or may be scheduled to it.
    async fn add_of_cluster(&mut self, cluster: &ProposedObject) -> Result<(), Error> {
        let name = unstructured::name(cluster.object());
        let versions = cluster.versions().map(decode::<Cluster>).collect::<Result<Vec<_>, _>>()?;
        let may_affect = |binding: &Value, _: &Value| {
            let Ok(typed) = decode::<ResourceBinding>(binding) else { return false };
            let is_target = construct::targets(&typed.spec).iter().any(|target| target.name == name);
            let binding = planner_binding(binding, &typed);
            is_target || versions.iter().any(|cluster| is_affected_by_cluster(&binding, cluster))
        };
        self.add_of_bindings(None, may_affect, |_| true).await
    }

    /// Adds the templates whose scheduling a quota of the namespace has rejected.
    async fn add_rejected_by_quota(&mut self, quota: &ProposedObject) -> Result<(), Error> {
        let is_rejected = |binding: &Value, _: &Value| {
            let Ok(typed) = decode::<ResourceBinding>(binding) else { return false };
            let scheduled = conditions::find(&typed.status.conditions, condition::SCHEDULED);
            scheduled.is_some_and(|scheduled| scheduled.reason == condition::SCHEDULED_QUOTA_EXCEEDED)
        };
        self.add_of_bindings(Some(unstructured::namespace(quota.object())), is_rejected, |_| true).await
    }

    /// Adds the templates that a rebalancer lists. Deleting a rebalancer affects none.
    async fn add_of_rebalancer(&mut self, rebalancer: &ProposedObject) -> Result<(), Error> {
        let Some(rebalancer) = rebalancer.after.as_ref().map(decode::<WorkloadRebalancer>).transpose()? else {
            return Ok(());
        };
        for workload in &rebalancer.spec.workloads {
            let resource = self.context.rest_mapper.find_cached(
                &self.context.control_plane,
                &workload.api_version,
                &workload.kind,
            );
            let Some(resource) = resource else { continue };
            if let Some(template) = self.context.get_redacted(&resource, &workload.namespace, &workload.name).await? {
                self.add(&resource, template.view());
            }
        }
        Ok(())
    }

    /// Adds the templates that `selects` accepts, of the bindings that `accepts` accepts. `accepts` receives a binding
    /// and its resource reference.
    async fn add_of_bindings(
        &mut self,
        namespace: Option<&str>,
        accepts: impl Fn(&Value, &Value) -> bool,
        selects: impl Fn(&Value) -> bool,
    ) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        let scopes: &[&Resource] = match namespace {
            None => &[&kinds.resource_binding, &kinds.cluster_resource_binding],
            Some(_) => &[&kinds.resource_binding],
        };
        for scope in scopes {
            let mut bindings = pin!(self.context.stream(scope, namespace));
            while let Some(binding) = bindings.try_next().await? {
                let reference = unstructured::at(binding.view(), &["spec", "resource"]).unwrap_or(&Value::Null);
                let (api_version, kind) = (unstructured::api_version(reference), unstructured::kind(reference));
                if !accepts(binding.view(), reference) {
                    continue;
                }
                let Some(resource) =
                    self.context.rest_mapper.find_cached(&self.context.control_plane, api_version, kind)
                else {
                    continue;
                };
                let (namespace, name) =
                    (unstructured::text(reference, &["namespace"]), unstructured::text(reference, &["name"]));
                if let Some(template) = self.context.get_redacted(&resource, namespace, name).await?
                    && selects(template.view())
                {
                    self.add(&resource, template.view());
                }
            }
        }
        Ok(())
    }
}
