//! Interpreter configuration: updates the resource interpreter from ResourceInterpreterCustomizations and
//! ResourceInterpreterWebhookConfigurations, and enqueues objects whose interpretation changed.

use crowsnest_apimachinery::unstructured;
use std::collections::HashSet;
use std::sync::Arc;

use crowsnest_api::keys::BindingKey;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};

use crate::Error;
use crate::cache::Change;
use crate::propagation::binding::BindingController;
use crate::propagation::binding_status::BindingStatusController;
use crate::propagation::dependencies_distributor::DependenciesDistributor;
use crate::propagation::detector::{ResourceDetector, is_template_resource};
use crate::propagation::execution::ExecutionController;
use crate::runtime::context;
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::Resource;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Resync, Setup, Source, Switch, Trigger, Watch, WellKnownKinds};

/// A kind with a changed customization.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CustomizedKind {
    api_version: String,
    kind: String,
}

pub struct InterpreterConfiguration {
    context: Arc<Context>,
    detector: Arc<ResourceDetector>,
    execution: Arc<ExecutionController>,
    dependencies: Trigger<BindingKey>,
    bindings: Trigger<BindingKey>,
    statuses: Trigger<BindingKey>,
    resync: Resync,
}

impl InterpreterConfiguration {
    fn update_customization(&self, change: &Change) -> Requests<CustomizedKind> {
        let interpreter = &self.context.interpreter;
        let name = unstructured::name(change.object());
        let before = interpreter.customization_target(name);
        match change.current().map(context::decode).transpose() {
            Ok(customization) => interpreter.set_customization(name, customization.as_ref()),
            Err(error) => {
                tracing::warn!(name, %error, "cannot decode a ResourceInterpreterCustomization; the previous version stays in use");
            }
        }
        let after = interpreter.customization_target(name).filter(|after| Some(after) != before.as_ref());
        let affected = before.into_iter().chain(after).filter(|_| !change.initial);
        affected.map(|(api_version, kind)| CustomizedKind { api_version, kind }).collect()
    }

    fn set_webhooks(&self, change: &Change) -> Requests<CustomizedKind> {
        let name = unstructured::name(change.object());
        match change.current().map(context::decode).transpose() {
            Ok(configuration) => self.context.interpreter.set_webhooks(name, configuration.as_ref()),
            Err(error) => {
                tracing::warn!(name, %error, "cannot decode a ResourceInterpreterWebhookConfiguration; the previous version stays in use");
            }
        }
        if !change.initial {
            self.resync.request();
        }
        Requests::none()
    }
}

impl Controller for InterpreterConfiguration {
    type Key = CustomizedKind;
    const NAME: &'static str = "interpreter-configuration";
    const SWITCH: Switch = Switch::Always;

    fn new(setup: &Setup) -> Self {
        InterpreterConfiguration {
            context: setup.context(),
            detector: setup.controller(),
            execution: setup.controller(),
            dependencies: setup.trigger::<DependenciesDistributor>(),
            bindings: setup.trigger::<BindingController>(),
            statuses: setup.trigger::<BindingStatusController>(),
            resync: setup.resync.clone(),
        }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::control_plane([&kinds.interpreter_customization]).map(Self::update_customization),
            Source::control_plane([&kinds.interpreter_webhook]).map(Self::set_webhooks),
        ]
    }

    /// No keys: a resync of the detector, the binding controllers and the execution controller covers all objects of
    /// customized kinds.
    async fn keys(&self) -> Result<Vec<CustomizedKind>, Error> {
        Ok(Vec::new())
    }

    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>) {
        let (kinds, interpreter) = (&self.context.kinds, &self.context.interpreter);
        let exists = |name: &str| keys.contains(&NamespacedName::cluster_scoped(name));
        if cluster.is_control_plane() && *resource == kinds.interpreter_customization {
            interpreter.retain_customizations(exists);
        } else if cluster.is_control_plane() && *resource == kinds.interpreter_webhook {
            interpreter.retain_webhooks(exists);
        }
    }

    /// Enqueues the templates of a kind, their bindings and their Works.
    async fn reconcile(
        self: Arc<Self>,
        CustomizedKind { api_version, kind }: CustomizedKind,
    ) -> Result<Outcome, Error> {
        let resources = self.context.cache.resources(&self.context.control_plane);
        let is_of_kind = |resource: &&Arc<Resource>| {
            resource.kind == kind && resource.gvr.api_version() == api_version && is_template_resource(&resource.gvr)
        };
        if let Some(resource) = resources.iter().find(is_of_kind) {
            for NamespacedName { namespace, name } in self.context.keys(resource).await? {
                let template = ObjectIdentity::new(&api_version, &kind, &namespace, &name);
                for binding in self.context.hash_suffixed_bindings.candidates(&template) {
                    if !namespace.is_empty() {
                        self.dependencies.add(binding.clone());
                    }
                    self.bindings.add(binding.clone());
                    self.statuses.add(binding);
                }
                self.detector.enqueue(resource, namespace, name);
            }
        }
        self.execution.enqueue_kind(&api_version, &kind);
        Ok(Outcome::Done)
    }
}
