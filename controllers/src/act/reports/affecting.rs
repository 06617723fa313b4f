//! Which templates something proposed may matter to.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use crowsnest_api::config::ResourceInterpreterCustomization;
use crowsnest_api::policy::{OverrideSpec, PropagationSpec, ResourceSelector};
use futures::TryStreamExt;
use serde_json::Value;

use super::{Proposal, Proposed, Reports, Role, policy_id_label, spec_of};
use crate::Error;
use crate::act::context::decode;
use crate::act::objects::Resource;
use crate::act::templates::is_template_resource;
use crate::plan::object;
use crate::plan::selector::{best_precision, precision_of};

/// A template something proposed may matter to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Affected {
    pub resource: Resource,
    pub namespace: String,
    pub name: String,
}

impl Reports {
    /// Every template that something proposed may matter to.
    pub async fn affected(&self, proposal: &Proposal) -> Result<BTreeSet<Affected>, Error> {
        let mut found = BTreeSet::new();
        for one in &proposal.objects {
            match one.role {
                Role::Template => self.note(&mut found, &one.resource, &one.after),
                Role::Policy => self.selected(one, &mut found).await?,
                Role::Override => self.overridden(one, &mut found).await?,
                Role::Customization => self.interpreted(one, &mut found).await?,
            }
        }
        Ok(found)
    }

    fn note(&self, found: &mut BTreeSet<Affected>, resource: &Resource, template: &Value) {
        let (namespace, name) = (object::namespace(template).to_owned(), object::name(template).to_owned());
        if !self.is_never_propagated(resource, &namespace, &name) {
            found.insert(Affected { resource: resource.clone(), namespace, name });
        }
    }

    /// Those a policy selects, selected or holds.
    async fn selected(&self, policy: &Proposed, found: &mut BTreeSet<Affected>) -> Result<(), Error> {
        let of = object::namespace(&policy.after);
        let resources = self.context.world.resources(&self.context.control_plane);
        let versions = policy.before.as_deref().into_iter().chain([&policy.after]);
        let specs: Vec<PropagationSpec> = versions.filter_map(spec_of).collect();
        for selector in specs.iter().flat_map(|spec| &spec.resource_selectors) {
            let of_kind = |resource: &&Arc<Resource>| {
                resource.kind == selector.kind && resource.gvr.api_version() == selector.api_version
            };
            let Some(resource) = resources.iter().find(of_kind) else { continue };
            let namespace = match (of, selector.namespace.as_str()) {
                ("", "") => None,
                ("", namespace) | (namespace, _) => Some(namespace),
            };
            if !selector.name.is_empty() && namespace.is_some() {
                let template = self.context.glance(resource, namespace.unwrap_or_default(), &selector.name).await?;
                template.iter().for_each(|template| self.note(found, resource, template.view()));
                continue;
            }
            let mut templates = pin!(self.context.stream(resource, namespace));
            while let Some(template) = templates.try_next().await? {
                if precision_of(selector, template.view()).is_some() {
                    self.note(found, resource, template.view());
                }
            }
        }
        let label = policy_id_label(of);
        let id = policy.before.as_deref().and_then(|before| object::label(before, label)).unwrap_or_default();
        for resource in resources.iter().filter(|resource| is_template_resource(&resource.gvr)) {
            for template in self.context.with_id(resource, label, id).await? {
                self.note(found, resource, template.view());
            }
        }
        Ok(())
    }

    /// Those with a binding that an override selects or selected.
    async fn overridden(&self, policy: &Proposed, found: &mut BTreeSet<Affected>) -> Result<(), Error> {
        let versions = policy.before.as_deref().into_iter().chain([&policy.after]);
        let selectors: Vec<Vec<ResourceSelector>> =
            versions.filter_map(|one| spec_of::<OverrideSpec>(one).map(|spec| spec.resource_selectors)).collect();
        let namespace = Some(object::namespace(&policy.after)).filter(|namespace| !namespace.is_empty());
        let of_kind = |api_version: &str, kind: &str| {
            let names = |one: &ResourceSelector| one.api_version == api_version && one.kind == kind;
            selectors.iter().any(|selectors| selectors.is_empty() || selectors.iter().any(names))
        };
        let selects = |template: &Value| {
            selectors.iter().any(|selectors| selectors.is_empty() || best_precision(selectors, template).is_some())
        };
        self.bound(namespace, of_kind, selects, found).await
    }

    /// Those with a binding whose kind a customization is about.
    async fn interpreted(&self, customization: &Proposed, found: &mut BTreeSet<Affected>) -> Result<(), Error> {
        let versions = customization.before.as_deref().into_iter().chain([&customization.after]);
        let typed = versions.map(decode::<ResourceInterpreterCustomization>).collect::<Result<Vec<_>, _>>()?;
        let of_kind = |api_version: &str, kind: &str| {
            typed.iter().any(|one| one.spec.target.api_version == api_version && one.spec.target.kind == kind)
        };
        self.bound(None, of_kind, |_| true, found).await
    }

    async fn bound(
        &self,
        namespace: Option<&str>,
        of_kind: impl Fn(&str, &str) -> bool,
        selects: impl Fn(&Value) -> bool,
        found: &mut BTreeSet<Affected>,
    ) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        let scopes: &[&Resource] = match namespace {
            None => &[&kinds.resource_binding, &kinds.cluster_resource_binding],
            Some(_) => &[&kinds.resource_binding],
        };
        for scope in scopes {
            let mut bindings = pin!(self.context.stream(scope, namespace));
            while let Some(binding) = bindings.try_next().await? {
                let reference = object::at(binding.view(), &["spec", "resource"]).unwrap_or(&Value::Null);
                let (api_version, kind) = (object::api_version(reference), object::kind(reference));
                if !of_kind(api_version, kind) {
                    continue;
                }
                let Some(resource) = self.context.catalog.known(&self.context.control_plane, api_version, kind) else {
                    continue;
                };
                let (namespace, name) = (object::text(reference, &["namespace"]), object::text(reference, &["name"]));
                if let Some(template) = self.context.glance(&resource, namespace, name).await?
                    && selects(template.view())
                {
                    self.note(found, &resource, template.view());
                }
            }
        }
        Ok(())
    }
}
