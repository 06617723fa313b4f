//! Resource interpreter. Interpreters in order of precedence: user-defined Lua scripts, webhooks, the rules of
//! third-party kinds, and the rules of Kubernetes' kinds.
//!
//! The customizations are the control plane's ResourceInterpreterCustomizations, which the controllers keep up to
//! date. If several customizations for a kind have a script for an operation, the first by name is used. Scripts are
//! pure functions of their arguments. Webhooks ([`customized::webhook`]) are called over the network, so results are
//! fetched before a plan that needs them is computed.

pub mod customized;
pub mod default;
mod error;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_api::config::{
    InterpreterOperation as Operation, ResourceInterpreterCustomization, ResourceInterpreterWebhookConfiguration,
};
use crowsnest_api::work::AggregatedStatusItem;
use crowsnest_apimachinery::unstructured;
use parking_lot::RwLock;
use serde_json::Value;

use customized::declarative;
use customized::declarative::pool::{self, ScriptPermits};

pub use customized::declarative::ScriptError;
pub use error::Error;

use crate::default::dependencies;
use crate::default::native::{self, NativeKind};
use crate::default::replicas;
use crate::default::status::{MemberStatus, reflect_full_status};
use crate::default::thirdparty::{self, RuleError, ThirdPartyKind};
use crowsnest_plan::dependencies::DependencyList;
use crowsnest_plan::gates::Gates;
use crowsnest_plan::propagation::binding::ReplicaFacts;
use customized::webhook::{Services, Webhook, Webhooks};

/// Scripts of one customization.
struct Customization {
    api_version: String,
    kind: String,
    scripts: Vec<(Operation, Arc<str>)>,
    permits: ScriptPermits,
}

/// A script and its customization.
struct Script {
    customization: String,
    text: Arc<str>,
    permits: ScriptPermits,
}

impl Script {
    /// Runs a script on a thread of the script pool.
    async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&str) -> Result<T, ScriptError> + Send + 'static,
    ) -> Result<T, Error> {
        let text = Arc::clone(&self.text);
        let result = pool::run(&self.permits, move || call(&text)).await;
        result.map_err(|source| Error::Script { customization: self.customization.clone(), source })
    }
}

/// The interpreter that applies to an operation on objects of a kind.
enum OperationInterpreter {
    /// The script to run, and the scripts of other customizations. The others are run for dependencies only.
    Script(Script, Vec<Script>),
    Webhook(Arc<Webhook>),
    BuiltIn,
}

/// Interprets objects of any kind for the controllers.
pub struct Interpreter {
    gates: Gates,
    customizations: RwLock<BTreeMap<String, Customization>>,
    webhooks: Webhooks,
}

fn find_native(object: &Value) -> Option<&'static NativeKind> {
    native::find(unstructured::api_version(object), unstructured::kind(object))
}

/// Applies the rule of a third-party kind to an object. `None` for other kinds and for operations without a rule.
fn apply_third_party_rule<T>(
    object: &Value,
    apply_rule: impl FnOnce(&'static ThirdPartyKind) -> Option<Result<T, RuleError>>,
) -> Result<Option<T>, Error> {
    let Some(row) = thirdparty::find(unstructured::api_version(object), unstructured::kind(object)) else {
        return Ok(None);
    };
    let to_error = |source| Error::ThirdParty { api_version: row.api_version, kind: row.kind, source };
    apply_rule(row).transpose().map_err(to_error)
}

impl Interpreter {
    pub fn new(gates: Gates) -> Self {
        Interpreter { gates, customizations: RwLock::default(), webhooks: Webhooks::default() }
    }

    /// Sets the store of Services that webhooks refer to.
    pub fn with_services(self, services: Arc<dyn Services>) -> Self {
        Interpreter { webhooks: Webhooks::new(services), ..self }
    }

    /// An interpreter with the same webhooks and without customizations, to which a preview adds proposed ones.
    pub fn without_customizations(&self) -> Self {
        Interpreter { gates: self.gates, customizations: RwLock::default(), webhooks: self.webhooks.snapshot() }
    }

    /// Removes all webhook configurations that do not satisfy the predicate.
    pub fn retain_webhooks(&self, should_keep: impl Fn(&str) -> bool) {
        self.webhooks.retain(should_keep);
    }

    /// Adds or updates a webhook configuration, or removes it (`None`).
    pub fn set_webhooks(&self, name: &str, configuration: Option<&ResourceInterpreterWebhookConfiguration>) {
        self.webhooks.set_configuration(name, configuration);
    }

    /// Removes all customizations that do not satisfy the predicate.
    pub fn retain_customizations(&self, should_keep: impl Fn(&str) -> bool) {
        self.customizations.write().retain(|name, _| should_keep(name));
    }

    /// Adds or updates a customization, or removes it (`None`).
    pub fn set_customization(&self, name: &str, customization: Option<&ResourceInterpreterCustomization>) {
        let Some(customization) = customization else {
            self.customizations.write().remove(name);
            return;
        };
        let spec = &customization.spec;
        let scripts = spec.customizations.scripts().into_iter();
        let entry = Customization {
            api_version: spec.target.api_version.clone(),
            kind: spec.target.kind.clone(),
            scripts: scripts.filter_map(|(operation, script)| Some((operation, Arc::from(script?)))).collect(),
            permits: ScriptPermits::default(),
        };
        self.customizations.write().insert(name.to_owned(), entry);
    }

    /// apiVersion and kind of a customization's target.
    pub fn customization_target(&self, name: &str) -> Option<(String, String)> {
        self.customizations
            .read()
            .get(name)
            .map(|customization| (customization.api_version.clone(), customization.kind.clone()))
    }

    /// Scripts for an operation on objects of this kind, in order.
    fn find_scripts(&self, object: &Value, operation: &Operation) -> Vec<Script> {
        let (api_version, kind) = (unstructured::api_version(object), unstructured::kind(object));
        let customizations = self.customizations.read();
        let matching = customizations
            .iter()
            .filter(|(_, customization)| customization.kind == kind && customization.api_version == api_version);
        let script = |(name, customization): (&String, &Customization)| {
            let (_, text) = customization.scripts.iter().find(|(script_operation, _)| script_operation == operation)?;
            Some(Script { customization: name.clone(), text: Arc::clone(text), permits: customization.permits.clone() })
        };
        matching.filter_map(script).collect()
    }

    /// Finds the interpreter of an operation: a customization, otherwise a webhook, otherwise the built-in rules. A
    /// failure of the interpreter is final; no other one is tried.
    fn find_interpreter(&self, object: &Value, operation: &Operation) -> OperationInterpreter {
        let mut scripts = self.find_scripts(object, operation).into_iter();
        if let Some(first) = scripts.next() {
            return OperationInterpreter::Script(first, scripts.collect());
        }
        self.webhooks.find(object, operation).map_or(OperationInterpreter::BuiltIn, OperationInterpreter::Webhook)
    }

    /// Source of the scripts for an operation on objects of this kind, in order.
    pub fn script_sources(&self, object: &Value, operation: &Operation) -> Vec<Arc<str>> {
        self.find_scripts(object, operation).into_iter().map(|script| script.text).collect()
    }

    /// True if any interpreter has a rule for an operation on objects of this kind.
    pub fn is_interpreted(&self, object: &Value, operation: &Operation) -> bool {
        // The status of every kind is reflected.
        *operation == Operation::InterpretStatus
            || match self.find_interpreter(object, operation) {
                OperationInterpreter::Script(..) | OperationInterpreter::Webhook(_) => true,
                OperationInterpreter::BuiltIn => {
                    let third_party_kind =
                        thirdparty::find(unstructured::api_version(object), unstructured::kind(object));
                    third_party_kind.is_some_and(|kind| kind.has_rule_for(operation))
                        || find_native(object).is_some_and(|kind| kind.has_rule_for(operation))
                }
            }
    }

    /// True if a template is interpreted as several components instead of replicas.
    pub fn has_components(&self, template: &Value) -> bool {
        self.gates.multiple_pod_templates_scheduling && self.is_interpreted(template, &Operation::InterpretComponent)
    }

    /// Replicas of a template and their requirements. Empty for kinds without replicas.
    pub async fn replicas(&self, template: &Value) -> Result<ReplicaFacts, Error> {
        if self.gates.multiple_pod_templates_scheduling {
            let from_components = |components| ReplicaFacts { components, ..ReplicaFacts::default() };
            match self.find_interpreter(template, &Operation::InterpretComponent) {
                OperationInterpreter::Script(script, _) => {
                    let template = template.clone();
                    return script.run(move |text| declarative::components(text, &template)).await.map(from_components);
                }
                OperationInterpreter::Webhook(hook) => return hook.components(template).await.map(from_components),
                OperationInterpreter::BuiltIn => {
                    let components = |kind: &ThirdPartyKind| Some((kind.components?)(template, self.gates));
                    if let Some(components) = apply_third_party_rule(template, components)? {
                        return Ok(from_components(components));
                    }
                }
            }
        }
        let (replicas, requirements) = match self.find_interpreter(template, &Operation::InterpretReplica) {
            OperationInterpreter::Script(script, _) => {
                let template = template.clone();
                script.run(move |text| declarative::replicas(text, &template)).await?
            }
            OperationInterpreter::Webhook(hook) => hook.replicas(template).await?,
            OperationInterpreter::BuiltIn => return self.built_in_replicas(template),
        };
        let requirements =
            requirements.map(|requirements| replicas::complete_for_quota(requirements, template, self.gates));
        Ok(ReplicaFacts { replicas, requirements, components: Vec::new() })
    }

    fn built_in_replicas(&self, template: &Value) -> Result<ReplicaFacts, Error> {
        let result = apply_third_party_rule(template, |kind| Some((kind.replicas?)(template, self.gates)))?;
        if let Some((replicas, mut requirements)) = result {
            if let Some(requirements) = &mut requirements
                && requirements.namespace.is_empty()
                && self.gates.resource_quota_estimate
            {
                unstructured::namespace(template).clone_into(&mut requirements.namespace);
            }
            return Ok(ReplicaFacts { replicas, requirements, components: Vec::new() });
        }
        Ok(match find_native(template).and_then(|kind| kind.read_replicas(template)) {
            None => ReplicaFacts::default(),
            Some(replicas) => ReplicaFacts {
                replicas,
                requirements: replicas::requirements(template, self.gates),
                components: Vec::new(),
            },
        })
    }

    /// Writes the member's replicas into its manifest.
    pub async fn revise_replicas(&self, manifest: &mut Value, replicas: i32) -> Result<(), Error> {
        match self.find_interpreter(manifest, &Operation::ReviseReplica) {
            OperationInterpreter::Script(script, _) => {
                let object = manifest.clone();
                *manifest = script.run(move |text| declarative::revise(text, &object, replicas)).await?;
            }
            OperationInterpreter::Webhook(hook) => *manifest = hook.revise(manifest, replicas).await?,
            OperationInterpreter::BuiltIn => {
                if let Some(revise) = apply_third_party_rule(manifest, |kind| kind.revise.map(Ok))? {
                    revise(manifest, replicas);
                } else if let Some(kind) = find_native(manifest) {
                    kind.revise_replicas(manifest, replicas);
                }
            }
        }
        Ok(())
    }

    /// Copies the fields that the member owns from the observed object to the desired one.
    pub async fn retain(&self, desired: &mut Value, observed: &Value) -> Result<(), Error> {
        match self.find_interpreter(desired, &Operation::Retain) {
            OperationInterpreter::Script(script, _) => {
                let (manifest, observed) = (desired.clone(), observed.clone());
                *desired = script.run(move |text| declarative::retain(text, &manifest, &observed)).await?;
            }
            OperationInterpreter::Webhook(hook) => *desired = hook.retain(desired, observed).await?,
            OperationInterpreter::BuiltIn => {
                let third_party_rule = apply_third_party_rule(desired, |kind| kind.retain.map(Ok))?;
                if let Some(retain) = third_party_rule.or_else(|| find_native(desired).and_then(|kind| kind.retain)) {
                    retain(desired, observed);
                }
            }
        }
        Ok(())
    }

    /// The status to reflect from a member object. `None` if there is none.
    pub async fn reflect(&self, member: &Value) -> Result<Option<Value>, Error> {
        match self.find_interpreter(member, &Operation::InterpretStatus) {
            OperationInterpreter::Script(script, _) => {
                let member = member.clone();
                script.run(move |text| declarative::reflect(text, &member)).await.map(Some)
            }
            OperationInterpreter::Webhook(hook) => hook.reflect(member).await.map(Some),
            OperationInterpreter::BuiltIn => {
                match apply_third_party_rule(member, |kind| kind.reflect_status(member).map(Ok))? {
                    Some(status) => Ok(Some(status)),
                    None => {
                        Ok(find_native(member).map_or_else(|| reflect_full_status(member), |kind| kind.reflect(member)))
                    }
                }
            }
        }
    }

    /// True if a member object is healthy. Kinds without a rule are always healthy.
    pub async fn is_healthy(&self, member: &Value) -> Result<bool, Error> {
        match self.find_interpreter(member, &Operation::InterpretHealth) {
            OperationInterpreter::Script(script, _) => {
                let member = member.clone();
                script.run(move |text| declarative::health(text, &member)).await
            }
            OperationInterpreter::Webhook(hook) => hook.is_healthy(member).await,
            OperationInterpreter::BuiltIn => match apply_third_party_rule(member, |kind| Some((kind.health?)(member)))?
            {
                Some(healthy) => Ok(healthy),
                None => Ok(find_native(member).and_then(|kind| kind.health).is_none_or(|healthy| healthy(member))),
            },
        }
    }

    /// The template's status, aggregated from the members. `None` for kinds whose template status is unchanged.
    pub async fn aggregate(
        &self,
        template: &Value,
        items: &[AggregatedStatusItem],
        now: &str,
    ) -> Result<Option<Value>, Error> {
        let mut aggregated = match self.find_interpreter(template, &Operation::AggregateStatus) {
            OperationInterpreter::Script(script, _) => {
                let (template, items) = (template.clone(), items.to_vec());
                script.run(move |text| declarative::aggregate(text, &template, &items)).await?
            }
            OperationInterpreter::Webhook(hook) => hook.aggregate(template, items).await?,
            OperationInterpreter::BuiltIn => {
                let members: Vec<MemberStatus<'_>> = items
                    .iter()
                    .map(|item| MemberStatus {
                        cluster: &item.cluster_name,
                        status: item.status.as_ref().map(|status| &status.0),
                    })
                    .collect();
                if let Some(status) =
                    apply_third_party_rule(template, |kind| kind.aggregate_status(template, &members, now))?
                {
                    return Ok(Some(status));
                }
                return Ok(find_native(template).and_then(|kind| kind.aggregate(template, &members, now)));
            }
        };
        Ok(aggregated.get_mut("status").map(Value::take))
    }

    /// Dependencies of a template. `None` for kinds without a rule.
    pub async fn dependencies(&self, template: &Value) -> Result<Option<DependencyList>, Error> {
        match self.find_interpreter(template, &Operation::InterpretDependency) {
            OperationInterpreter::Script(first, others) => {
                let mut found = Vec::new();
                for script in std::iter::once(&first).chain(&others) {
                    let template = template.clone();
                    found.extend(script.run(move |text| declarative::dependencies(text, &template)).await?);
                }
                Ok(Some(DependencyList(Some(dependencies::sort_and_deduplicate(found)))))
            }
            OperationInterpreter::Webhook(hook) => hook.dependencies(template).await.map(Some),
            OperationInterpreter::BuiltIn => {
                if let Some(found) = apply_third_party_rule(template, |kind| kind.sorted_dependencies(template))? {
                    return Ok(Some(DependencyList(Some(found))));
                }
                let rule = find_native(template).and_then(|kind| kind.dependencies);
                Ok(rule.map(|find_dependencies| DependencyList::from_native(find_dependencies(template))))
            }
        }
    }
}
