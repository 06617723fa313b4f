//! What a kind means to the loops: its users' scripts first, then the rules of `plan` for kinds of other projects, then
//! those for built-in kinds.
//!
//! The customizations are the control plane's ResourceInterpreterCustomizations, told by `act` as they change. Of several
//! for one kind the first by name that has a script for an operation is asked. A call is pure: the same script, the
//! same objects, the same answer.

pub mod lua;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_api::config::{InterpreterOperation as Operation, ResourceInterpreterCustomization};
use crowsnest_api::work::{AggregatedStatusItem, Component};
use parking_lot::RwLock;
use serde_json::Value;
use tokio::runtime::{Handle, RuntimeFlavor};

pub use lua::ScriptError;

use crate::Error;
use crate::plan::gates::Gates;
use crate::plan::interpreter::dependencies::{self, Dependency};
use crate::plan::interpreter::native::{self, NativeKind};
use crate::plan::interpreter::replicas;
use crate::plan::interpreter::status::{MemberStatus, reflect_whole};
use crate::plan::interpreter::thirdparty::{self, NoAnswer, ThirdPartyKind};
use crate::plan::object;
use crate::plan::propagation::binding::Interpreted;

/// The scripts of one customization.
struct Customization {
    api_version: String,
    kind: String,
    scripts: Vec<(Operation, Arc<str>)>,
}

/// A script and the customization it is of.
struct Script {
    customization: String,
    text: Arc<str>,
}

impl Script {
    /// Runs it without keeping the runtime's other tasks waiting.
    fn ask<T>(&self, call: impl FnOnce(&str) -> Result<T, ScriptError>) -> Result<T, Error> {
        let threaded = Handle::try_current().is_ok_and(|now| now.runtime_flavor() == RuntimeFlavor::MultiThread);
        let answer = match threaded {
            true => tokio::task::block_in_place(|| call(&self.text)),
            false => call(&self.text),
        };
        answer.map_err(|source| Error::Script { customization: self.customization.clone(), source })
    }
}

/// Answers what the loops ask about objects of any kind.
pub struct Interpreter {
    gates: Gates,
    customizations: RwLock<BTreeMap<String, Customization>>,
}

fn native_of(object: &Value) -> Option<&'static NativeKind> {
    native::find(object::api_version(object), object::kind(object))
}

/// What the row of this kind of another project says, if there is one and it has a rule.
fn third_party<T>(
    object: &Value,
    ask: impl FnOnce(&'static ThirdPartyKind) -> Option<Result<T, NoAnswer>>,
) -> Result<Option<T>, Error> {
    let Some(row) = thirdparty::find(object::api_version(object), object::kind(object)) else { return Ok(None) };
    let of_kind = |source| Error::ThirdParty { api_version: row.api_version, kind: row.kind, source };
    ask(row).transpose().map_err(of_kind)
}

impl Interpreter {
    pub fn new(gates: Gates) -> Self {
        Interpreter { gates, customizations: RwLock::default() }
    }

    /// Customizations are only those that satisfy `stays`.
    pub fn keep(&self, stays: impl Fn(&str) -> bool) {
        self.customizations.write().retain(|name, _| stays(name));
    }

    /// A customization came, changed, or went (`None`).
    pub fn learn(&self, name: &str, customization: Option<&ResourceInterpreterCustomization>) {
        let Some(customization) = customization else {
            self.customizations.write().remove(name);
            return;
        };
        let spec = &customization.spec;
        let scripts = spec.customizations.scripts().into_iter();
        let known = Customization {
            api_version: spec.target.api_version.clone(),
            kind: spec.target.kind.clone(),
            scripts: scripts.filter_map(|(operation, script)| Some((operation, Arc::from(script?)))).collect(),
        };
        self.customizations.write().insert(name.to_owned(), known);
    }

    /// The scripts for an operation on objects of this kind, in order.
    fn scripts(&self, object: &Value, operation: &Operation) -> Vec<Script> {
        let (api_version, kind) = (object::api_version(object), object::kind(object));
        let known = self.customizations.read();
        let of_kind = known.iter().filter(|(_, known)| known.kind == kind && known.api_version == api_version);
        let script = |(name, known): (&String, &Customization)| {
            let (_, text) = known.scripts.iter().find(|(of, _)| of == operation)?;
            Some(Script { customization: name.clone(), text: Arc::clone(text) })
        };
        of_kind.filter_map(script).collect()
    }

    fn script(&self, object: &Value, operation: Operation) -> Option<Script> {
        self.scripts(object, &operation).into_iter().next()
    }

    /// The template's replicas and what they need; nothing for kinds that have none.
    pub fn replicas(&self, template: &Value) -> Result<Interpreted, Error> {
        if self.gates.multiple_pod_templates_scheduling
            && let Some(components) = self.components(template)?
        {
            return Ok(Interpreted { components, ..Interpreted::default() });
        }
        if let Some(script) = self.script(template, Operation::InterpretReplica) {
            let (replicas, requirements) = script.ask(|text| lua::replicas(text, template))?;
            let requirements = requirements.map(|needed| replicas::for_quota(needed, template, self.gates));
            return Ok(Interpreted { replicas, requirements, components: Vec::new() });
        }
        if let Some((replicas, mut requirements)) =
            third_party(template, |kind| kind.replicas.map(|count| count(template, self.gates)))?
        {
            if let Some(needed) = &mut requirements
                && needed.namespace.is_empty()
                && self.gates.resource_quota_estimate
            {
                object::namespace(template).clone_into(&mut needed.namespace);
            }
            return Ok(Interpreted { replicas, requirements, components: Vec::new() });
        }
        Ok(match native_of(template).and_then(|kind| kind.replicas_of(template)) {
            None => Interpreted::default(),
            Some(replicas) => Interpreted {
                replicas,
                requirements: replicas::requirements(template, self.gates),
                components: Vec::new(),
            },
        })
    }

    /// What each of the template's pod templates needs; `None` for kinds nobody has a rule for.
    fn components(&self, template: &Value) -> Result<Option<Vec<Component>>, Error> {
        if let Some(script) = self.script(template, Operation::InterpretComponent) {
            return script.ask(|text| lua::components(text, template)).map(Some);
        }
        third_party(template, |kind| kind.components.map(|components| components(template, self.gates)))
    }

    /// Gives a member's copy its share of the replicas.
    pub fn revise_replicas(&self, manifest: &mut Value, replicas: i32) -> Result<(), Error> {
        if let Some(script) = self.script(manifest, Operation::ReviseReplica) {
            *manifest = script.ask(|text| lua::revise(text, manifest, replicas))?;
            return Ok(());
        }
        if let Some(revise) = third_party(manifest, |kind| kind.revise.map(Ok))? {
            revise(manifest, replicas);
        } else if let Some(kind) = native_of(manifest) {
            kind.revise_replicas(manifest, replicas);
        }
        Ok(())
    }

    /// Takes over what the member decides.
    pub fn retain(&self, desired: &mut Value, observed: &Value) -> Result<(), Error> {
        if let Some(script) = self.script(desired, Operation::Retain) {
            *desired = script.ask(|text| lua::retain(text, desired, observed))?;
            return Ok(());
        }
        let known = third_party(desired, |kind| kind.retain.map(Ok))?;
        if let Some(retain) = known.or_else(|| native_of(desired).and_then(|kind| kind.retain)) {
            retain(desired, observed);
        }
        Ok(())
    }

    /// The status to report of a member's object, or `None` while there is nothing to report.
    pub fn reflect(&self, member: &Value) -> Result<Option<Value>, Error> {
        if let Some(script) = self.script(member, Operation::InterpretStatus) {
            return script.ask(|text| lua::reflect(text, member)).map(Some);
        }
        if let Some(status) = third_party(member, |kind| kind.status_of(member).map(Ok))? {
            return Ok(Some(status));
        }
        Ok(native_of(member).map_or_else(|| reflect_whole(member), |kind| kind.reflect(member)))
    }

    /// Whether a member's object is well. Kinds without a rule always are.
    pub fn is_healthy(&self, member: &Value) -> Result<bool, Error> {
        if let Some(script) = self.script(member, Operation::InterpretHealth) {
            return script.ask(|text| lua::health(text, member));
        }
        if let Some(healthy) = third_party(member, |kind| kind.health.map(|healthy| healthy(member)))? {
            return Ok(healthy);
        }
        Ok(native_of(member).and_then(|kind| kind.health).is_none_or(|healthy| healthy(member)))
    }

    /// The template's status from its members' ones; `None` for kinds whose template status is left alone.
    pub fn aggregate(
        &self,
        template: &Value,
        items: &[AggregatedStatusItem],
        now: &str,
    ) -> Result<Option<Value>, Error> {
        if let Some(script) = self.script(template, Operation::AggregateStatus) {
            let mut aggregated = script.ask(|text| lua::aggregate(text, template, items))?;
            return Ok(aggregated.get_mut("status").map(Value::take));
        }
        let members: Vec<MemberStatus<'_>> = items
            .iter()
            .map(|item| MemberStatus {
                cluster: &item.cluster_name,
                status: item.status.as_ref().map(|status| &status.0),
            })
            .collect();
        if let Some(total) = third_party(template, |kind| kind.total_of(template, &members, now))? {
            return Ok(Some(total));
        }
        Ok(native_of(template).and_then(|kind| kind.aggregate(template, &members, now)))
    }

    /// What has to go where the template goes; `None` for kinds nobody has a rule for.
    pub fn dependencies(&self, template: &Value) -> Result<Option<Vec<Dependency>>, Error> {
        let scripts = self.scripts(template, &Operation::InterpretDependency);
        if scripts.is_empty() {
            if let Some(needed) = third_party(template, |kind| kind.needs_of(template))? {
                return Ok(Some(needed));
            }
            return Ok(native_of(template).and_then(|kind| kind.dependencies).map(|needed| needed(template)));
        }
        let mut needed = Vec::new();
        for script in &scripts {
            needed.extend(script.ask(|text| lua::dependencies(text, template))?);
        }
        Ok(Some(dependencies::in_order(needed)))
    }
}
