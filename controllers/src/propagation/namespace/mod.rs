//! Namespace sync controller: creates every namespace of the control plane in every member, except reserved ones.

use std::sync::Arc;

use crowsnest_api::constants::{annotation, label};
use crowsnest_api::names::is_reserved_namespace;
use crowsnest_api::policy::{OverrideSpec, ResourceSelector};
use crowsnest_apimachinery::unstructured;
use futures::FutureExt;
use serde::Deserialize;
use serde_json::Value;

use crate::Error;
use crate::cache::{Change, Header};
use crate::propagation::binding::Overrides;
use crate::runtime::context::Context;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crate::shared::works::write_work;
use crowsnest_plan::overriding;
use crowsnest_plan::propagation::binding::controller_reference;
use crowsnest_plan::propagation::change::Change as TemplateChange;
use crowsnest_plan::selector::{ObjectFields, best_precision_of_fields};
use crowsnest_plan::work::construct::{self, WorkOptions};

pub struct NamespaceController {
    context: Arc<Context>,
}

impl NamespaceController {
    fn on_namespace(&self, change: &Change) -> Requests<String> {
        Requests::one_if(change.template_change() != TemplateChange::None, || change.name())
    }

    /// Enqueues the namespace of a deleted Work, so that the Work is created again.
    fn on_work(&self, change: &Change) -> Requests<String> {
        let owners = unstructured::at(change.object(), &["metadata", "ownerReferences"]).and_then(Value::as_array);
        let is_namespace = |owner: &&Value| unstructured::kind(owner) == "Namespace";
        let owner = owners.into_iter().flatten().find(is_namespace).filter(|_| change.deleted);
        owner.map(|owner| unstructured::text(owner, &["name"]).to_owned()).into()
    }

    /// Namespaces that an override policy selects, before or after the change. All namespaces, if the previous
    /// selectors are unknown.
    async fn on_override(&self, change: &Change) -> Result<Requests<String>, Error> {
        if change.initial {
            return Ok(Requests::none());
        }
        if change.is_previous_unknown() && !change.deleted {
            return Ok(Requests::all());
        }
        let versions = [change.old(), Some(change.object())].into_iter().flatten();
        let specs: Vec<OverrideSpec> =
            versions.filter_map(|policy| OverrideSpec::deserialize(policy.get("spec")?).ok()).collect();
        let is_selected = |namespace: &Header| {
            let namespace_fields =
                ObjectFields { api_version: "v1", kind: "Namespace", namespace: "", name: &namespace.name };
            let selects = |spec: &OverrideSpec| {
                spec.resource_selectors.is_empty()
                    || best_precision_of_fields(&spec.resource_selectors, namespace_fields, &namespace.labels).is_some()
            };
            specs.iter().any(selects)
        };
        let selectors = || specs.iter().flat_map(|spec| &spec.resource_selectors);
        let is_by_name = specs.iter().all(|spec| !spec.resource_selectors.is_empty())
            && selectors().all(|selector| !selects_namespaces(selector) || !selector.name.is_empty());
        if is_by_name {
            let namespace_selectors = selectors().filter(|selector| selects_namespaces(selector));
            return Ok(namespace_selectors.map(|selector| selector.name.clone()).collect());
        }
        let Context { cache, control_plane, kinds, .. } = self.context.as_ref();
        let namespaces = cache.headers(control_plane, &kinds.namespace.gvr, None).await?;
        Ok(namespaces.into_iter().filter(is_selected).map(|namespace| namespace.name).collect())
    }

    fn should_sync(&self, namespace: &Value) -> bool {
        let name = unstructured::name(namespace);
        let is_skipped = unstructured::label(namespace, label::NAMESPACE_SKIP_AUTO_PROPAGATION)
            .is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let is_system = name == "default" || is_reserved_namespace(name);
        !is_skipped && !is_system && !self.context.config.skipped_namespaces.contains(name)
    }
}

impl Controller for NamespaceController {
    type Key = String;
    const NAME: &'static str = "namespace-sync-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["namespace"]);

    fn new(setup: &Setup) -> Self {
        NamespaceController { context: setup.context() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::control_plane([&kinds.namespace]).map(Self::on_namespace),
            Source::control_plane([&kinds.cluster_override_policy])
                .find(|controller, change| controller.on_override(change).boxed()),
            Source::clusters(kinds).map(|_, change| Requests::all_if(change.old.is_none() && !change.initial)),
            Source::control_plane([&kinds.work]).map(Self::on_work),
        ]
    }

    async fn keys(&self) -> Result<Vec<String>, Error> {
        self.context.names(&self.context.kinds.namespace).await
    }

    async fn reconcile(self: Arc<Self>, name: String) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(namespace) = context.get_full(&context.kinds.namespace, "", &name).await? else {
            return Ok(Outcome::Done);
        };
        if unstructured::is_terminating(&namespace) || !self.should_sync(&namespace) {
            return Ok(Outcome::Done);
        }
        let overrides = Overrides::list_cluster_wide(context).await?;
        let mut last_error = None;
        for cluster in context.active_cluster_names().await? {
            if let Err(error) = self.sync_to_cluster(&namespace, cluster.as_str(), &overrides).await {
                last_error = Some(error);
            }
        }
        last_error.map_or(Ok(Outcome::Done), Err)
    }
}

impl NamespaceController {
    async fn sync_to_cluster(&self, namespace: &Value, cluster: &str, overrides: &Overrides) -> Result<(), Error> {
        let execution_namespace = crowsnest_api::names::execution_namespace(cluster);
        if !self.context.exists(&self.context.kinds.namespace, "", &execution_namespace).await? {
            return Err(Error::Waiting(format!("namespace {execution_namespace} does not exist")));
        }
        let Some(member) = self.context.cluster(cluster).await? else { return Ok(()) };
        let mut manifest = namespace.clone();
        let applied: overriding::AppliedOverrides =
            overriding::apply(&mut manifest, &member, &overrides.to_policies(), &[])?;
        let (cluster_wide, _) = applied.annotations();
        let annotations =
            cluster_wide.map(|text| (annotation::APPLIED_CLUSTER_OVERRIDES.to_owned(), text)).into_iter().collect();
        let mut desired = construct::wrap(cluster, manifest, Default::default(), annotations, WorkOptions::default());
        desired.owner = Some(controller_reference(namespace));
        write_work(&self.context, &desired).await.map(drop)
    }
}

fn selects_namespaces(selector: &ResourceSelector) -> bool {
    selector.api_version == "v1" && selector.kind == "Namespace"
}
