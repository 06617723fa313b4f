//! ValidatingAdmissionPolicy: writes are judged by CEL expressions of policies, where bindings say so.
//!
//! Policies and bindings are read anew when one of them changed. Errors are worded as kube-apiserver words them.
//! Types are not checked beforehand (`status.typeChecking` stays empty), and expressions can't ask the `authorizer`.

mod config;
mod evaluate;
pub mod status;
#[cfg(test)]
mod tests;
pub mod validation;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use serde_json::{Value, json};

use self::config::{Binding, Policy};
use self::evaluate::{Findings, evaluate};
use super::expression::Inputs;
use super::surroundings::{self, in_version};
use super::webhook::{matching, review};
use super::{Admission, Attributes};
use crate::registry::Registry;
use crate::registry::object::Object;
use crate::registry::resource::Gvr;
use crate::status::{ApiError, ApiResult, Cause};
use crate::storage::{ResourceKey, Revision};

const GROUP: &str = "admissionregistration.k8s.io";
/// Longest value of an audit annotation.
const MAX_ANNOTATION: usize = 10 * 1024;
/// Most failures that the audit log is told of.
const MAX_FAILURES: usize = 50;

/// The policies that somebody bound, as of revisions of the two tables.
#[derive(Debug, Default)]
struct Configured {
    revisions: Option<[Revision; 2]>,
    policies: Vec<(Policy, Vec<Binding>)>,
}

/// See the module.
pub struct ValidatingPolicies {
    registry: Weak<Registry>,
    current: ArcSwap<Configured>,
}

/// A write with what lies around it.
struct Write<'a> {
    registry: &'a Registry,
    a: &'a Attributes<'a>,
    object: Option<&'a Value>,
    namespace: Option<Value>,
    equivalents: Vec<Gvr>,
}

/// What all policies together found.
#[derive(Default)]
struct Verdict {
    /// The first refusal: its message and the reason of the Status.
    refused: Option<(String, Option<String>)>,
    warnings: Vec<String>,
    /// For the audit log.
    failures: Vec<Value>,
    /// Of the policy at hand, by key.
    annotations: BTreeMap<String, Vec<String>>,
}

impl ValidatingPolicies {
    pub fn new(registry: &Arc<Registry>) -> Self {
        Self { registry: Arc::downgrade(registry), current: ArcSwap::default() }
    }

    fn load(&self, registry: &Registry) -> Arc<Configured> {
        let tables = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"]
            .map(|resource| ResourceKey::new(GROUP, resource));
        let revisions = tables.each_ref().map(|table| registry.store.last_change(table));
        let current = self.current.load_full();
        if current.revisions == Some(revisions) {
            return current;
        }
        let objects = |table: &ResourceKey| -> Vec<Value> {
            let listing = registry.store.list(table, "", None, None, usize::MAX);
            let records = listing.map(|listing| listing.records).unwrap_or_default();
            records.iter().filter_map(|record| record.body.value(record.revision).ok()).collect()
        };
        let [policies, bindings] = tables.each_ref().map(objects);
        let mut bound: BTreeMap<String, Vec<Binding>> = BTreeMap::new();
        for binding in bindings.iter().map(Binding::parse) {
            bound.entry(binding.policy.clone()).or_default().push(binding);
        }
        let policies = policies.iter().filter_map(|policy| {
            let bindings = bound.remove(policy.name())?;
            Some((Policy::parse(policy), bindings))
        });
        let next = Arc::new(Configured { revisions: Some(revisions), policies: policies.collect() });
        self.current.store(next.clone());
        next
    }
}

#[async_trait]
impl Admission for ValidatingPolicies {
    async fn validate(&self, a: &Attributes<'_>, object: Option<&Value>, warnings: &mut Vec<String>) -> ApiResult<()> {
        if matching::exempt(&a.resource.gvr) {
            return Ok(());
        }
        let Some(registry) = self.registry.upgrade() else { return Ok(()) };
        let configured = self.load(&registry);
        if configured.policies.is_empty() {
            return Ok(());
        }
        let write = Write {
            registry: &registry,
            a,
            object,
            namespace: surroundings::namespace(&registry, a),
            equivalents: surroundings::equivalents(&registry, a),
        };
        let mut verdict = Verdict::default();
        for (policy, bindings) in &configured.policies {
            write.judge(policy, bindings, &mut verdict).await;
            verdict.publish_annotations(&policy.name, a);
        }
        verdict.publish_failures(a);
        warnings.append(&mut verdict.warnings);
        match verdict.refused {
            None => Ok(()),
            Some((message, reason)) => Err(refusal(a, message, reason)),
        }
    }
}

impl Write<'_> {
    async fn judge(&self, policy: &Policy, bindings: &[Binding], verdict: &mut Verdict) {
        let Some(matching) = &policy.matching else {
            return verdict.misconfigured(policy, None, "policy contained no match constraints, a required field");
        };
        let (a, namespace) = (self.a, self.namespace.as_ref());
        let Some(matched) = matching.find(a, self.object, namespace, &self.equivalents) else { return };
        if let Some((api_version, kind)) = &policy.param_kind
            && self.registry.catalog.served().by_kind(api_version, kind).is_none()
        {
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            let why = format!("failed to find resource referenced by paramKind: '{group}/{version}, Kind={kind}'");
            return verdict.misconfigured(policy, None, &why);
        }
        // Objects and request in the version that the policy names, once somebody needs them.
        let mut versioned = None;
        for binding in bindings {
            let means = |m: &config::Matching| m.find(a, self.object, namespace, &self.equivalents).is_some();
            if !binding.matching.as_ref().is_none_or(means) {
                continue;
            }
            let params = match self.params(policy, binding).await {
                Ok(params) if params.is_empty() => continue,
                Ok(params) => params,
                Err(why) => {
                    verdict.misconfigured(policy, Some(binding), &why);
                    continue;
                }
            };
            if versioned.is_none() {
                versioned = Some(self.versioned(&matched.gvr).await);
            }
            let (object, old, request) = match &versioned {
                Some(Ok(versioned)) => versioned,
                Some(Err(why)) => {
                    let why = format!("failed to convert object version: {why}");
                    verdict.misconfigured(policy, Some(binding), &why);
                    continue;
                }
                None => continue,
            };
            for params in &params {
                let (object, old, params) = (object.as_ref(), old.as_ref(), params.as_ref());
                let inputs = Inputs { object, old, request, namespace, params };
                verdict.take(policy, binding, evaluate(policy, &inputs));
            }
        }
    }

    /// The object, the old one, and the request.
    async fn versioned(&self, gvr: &Gvr) -> Result<(Option<Value>, Option<Value>, Value), String> {
        let object = in_version(gvr, self.a, self.object).await?;
        let old = in_version(gvr, self.a, self.a.old).await?;
        Ok((object, old, review::request(self.a, gvr, "", None, None)))
    }

    /// The parameters of a binding; one `None` where policy or binding have no use for any. None at all: nothing is judged.
    async fn params(&self, policy: &Policy, binding: &Binding) -> Result<Vec<Option<Value>>, String> {
        let (Some((api_version, kind)), Some(wanted)) = (&policy.param_kind, &binding.param_ref) else {
            return Ok(vec![None]);
        };
        let served = self.registry.catalog.served();
        let Some(resource) = served.by_kind(api_version, kind) else {
            return Err(format!("paramKind kind `{kind}` not known"));
        };
        let own = if self.a.resource.namespaced { self.a.ctx.namespace.as_str() } else { "" };
        let namespace = match (resource.namespaced, wanted.namespace.as_str()) {
            (false, "") => "",
            (false, _) => return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".into()),
            (true, "") if own.is_empty() => {
                let why = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources";
                return Err(why.into());
            }
            (true, "") => own,
            (true, named) => named,
        };
        let found: Vec<Option<Value>> = match (&wanted.selector, wanted.name.as_str()) {
            (None, "") => return Err("one of name or selector must be provided".into()),
            (None, name) => match self.registry.get(resource, namespace, name).await {
                Ok(params) => vec![Some(params)],
                Err(error) if error.is(crate::status::Reason::NotFound) => Vec::new(),
                Err(error) => return Err(error.message),
            },
            (Some(selector), "") => {
                let all = self.registry.list_all(resource).await.map_err(|error| error.message)?;
                let meant = |one: &Value| one.namespace() == namespace && selector.matches(one.labels());
                all.into_iter().filter(meant).map(Some).collect()
            }
            (Some(_), _) => return Err("paramRef.name and paramRef.selector are mutually exclusive".into()),
        };
        if found.is_empty() && wanted.required {
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".into());
        }
        Ok(found)
    }
}

impl Verdict {
    fn refuse(&mut self, policy: &Policy, binding: Option<&Binding>, message: &str, reason: Option<String>) {
        let by = binding.map(|binding| format!(" with binding '{}'", binding.name)).unwrap_or_default();
        let message = format!("ValidatingAdmissionPolicy '{}'{by} denied request: {message}", policy.name);
        self.refused.get_or_insert((message, reason));
    }

    /// A policy or a binding that can't be applied as it is.
    fn misconfigured(&mut self, policy: &Policy, binding: Option<&Binding>, why: &str) {
        if policy.ignore_failure {
            tracing::debug!(policy = policy.name, why, "a policy that can't be applied is ignored");
            return;
        }
        let what = if binding.is_some() { "binding" } else { "policy" };
        self.refuse(policy, binding, &format!("failed to configure {what}: {why}"), None);
    }

    fn take(&mut self, policy: &Policy, binding: &Binding, findings: Findings) {
        for violation in findings.violations {
            for action in &binding.actions {
                match action.as_str() {
                    "Deny" => self.refuse(policy, Some(binding), &violation.message, violation.reason.clone()),
                    "Audit" => self.failures.push(json!({
                        "message": violation.message, "policy": policy.name, "binding": binding.name,
                        "expressionIndex": violation.index, "validationActions": binding.actions,
                    })),
                    _ => self.warnings.push(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                        policy.name, binding.name, violation.message
                    )),
                }
            }
        }
        for message in findings.failed_annotations {
            self.refuse(policy, Some(binding), &message, None);
        }
        for (key, mut value) in findings.annotations {
            if value.len() > MAX_ANNOTATION {
                let end = (0..=MAX_ANNOTATION).rev().find(|end| value.is_char_boundary(*end)).unwrap_or(0);
                value.truncate(end);
            }
            let values = self.annotations.entry(key).or_default();
            if !values.contains(&value) {
                values.push(value);
            }
        }
    }

    /// Tells the audit log what a policy has to say.
    fn publish_annotations(&mut self, policy: &str, a: &Attributes<'_>) {
        for (key, values) in std::mem::take(&mut self.annotations) {
            if let Some(record) = &a.ctx.record {
                record.note(&format!("{policy}/{key}"), &values.join(", "));
            }
        }
    }

    /// Tells the audit log of violations whose binding says `Audit`.
    fn publish_failures(&mut self, a: &Attributes<'_>) {
        self.failures.truncate(MAX_FAILURES);
        if let Some(record) = a.ctx.record.as_ref().filter(|_| !self.failures.is_empty()) {
            let failures = Value::Array(std::mem::take(&mut self.failures));
            record.note("validation.policy.admission.k8s.io/validation_failure", &failures.to_string());
        }
    }
}

/// The Status of a refusal.
fn refusal(a: &Attributes<'_>, message: String, reason: Option<String>) -> ApiError {
    let mut error = ApiError::forbidden(&a.resource.gvr.group, &a.resource.gvr.resource, a.name, &message);
    let reason = reason.filter(|reason| !reason.is_empty()).unwrap_or_else(|| "Invalid".to_owned());
    error.code = match reason.as_str() {
        "Forbidden" => 403,
        "Unauthorized" => 401,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    };
    error.reason = reason;
    if let Some(details) = &mut error.details {
        details.causes.push(Cause { message, ..Cause::default() });
    }
    error
}
