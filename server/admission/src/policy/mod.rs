//! Admission policies in CEL: ValidatingAdmissionPolicy and MutatingAdmissionPolicy, applied through their bindings.
//!
//! This module has the parts common to both kinds: the cache of policies and bindings, matching, and parameters. Error
//! messages are those of kube-apiserver.

mod config;
mod evaluation;
mod mutating;
mod patches;
mod validating;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_cel::authorizer::AccessChecker;
use crowsnest_registry::admission::Attributes;
use crowsnest_registry::object::Object;
use crowsnest_registry::storage::Revision;
use serde_json::Value;

use self::config::{Binding, MatchResources, Policy};
use crate::environment::{Environment, convert_to_version, namespace_of};
use crate::webhook::{matching, review};

pub use mutating::MutatingPolicies;
pub use validating::ValidatingPolicies;

/// Parsed policies that have bindings, and the revisions of policies and bindings from which they were parsed.
#[derive(Debug, Default)]
struct ParsedPolicies {
    /// `None` before the first load.
    revisions: Option<[Revision; 2]>,
    policies: Vec<(Policy, Vec<Binding>)>,
}

/// Cache of the policies of one kind with their bindings; parses all of them again when one has changed.
struct PolicyCache {
    /// Plurals of the policies and of the bindings.
    resources: [&'static str; 2],
    current: ArcSwap<ParsedPolicies>,
}

impl PolicyCache {
    fn load(&self, environment: &dyn Environment) -> Arc<ParsedPolicies> {
        let revisions = self.resources.map(|resource| environment.revision(resource));
        let current = self.current.load_full();
        if current.revisions == Some(revisions) {
            return current;
        }
        let [policies, bindings] = self.resources.map(|resource| environment.configurations(resource));
        let mut bindings_by_policy: BTreeMap<String, Vec<Binding>> = BTreeMap::new();
        for binding in bindings.iter().map(Binding::parse) {
            bindings_by_policy.entry(binding.policy.clone()).or_default().push(binding);
        }
        let policies = policies.iter().filter_map(|policy| {
            let bindings = bindings_by_policy.remove(policy.name())?;
            Some((Policy::parse(policy), bindings))
        });
        let next = Arc::new(ParsedPolicies { revisions: Some(revisions), policies: policies.collect() });
        self.current.store(next.clone());
        next
    }
}

/// Part that the admission plugins of both kinds share: access to the policies of one kind.
struct Policies {
    environment: Arc<dyn Environment>,
    access_checker: Arc<dyn AccessChecker>,
    cache: PolicyCache,
}

impl Policies {
    fn new(
        environment: Arc<dyn Environment>,
        access_checker: Arc<dyn AccessChecker>,
        resources: [&'static str; 2],
    ) -> Self {
        Self { environment, access_checker, cache: PolicyCache { resources, current: ArcSwap::default() } }
    }

    /// All policies that have bindings; `None` if there are none or the write is exempt from policies.
    fn policies_unless_exempt(&self, a: &Attributes<'_>) -> Option<Arc<ParsedPolicies>> {
        if matching::is_exempt(&a.resource.gvr) {
            return None;
        }
        let configured = self.cache.load(&*self.environment);
        (!configured.policies.is_empty()).then_some(configured)
    }

    /// True if a bound policy has rules for this write. A policy without match constraints has rules for each write,
    /// because it is misconfigured and can deny it.
    fn has_rules_for(&self, a: &Attributes<'_>) -> bool {
        let Some(configured) = self.policies_unless_exempt(a) else { return false };
        let equivalents = self.environment.equivalents(a);
        let covers =
            |policy: &Policy| policy.match_constraints.as_ref().is_none_or(|rules| rules.covers(a, &equivalents));
        configured.policies.iter().any(|(policy, _)| covers(policy))
    }
}

/// A write with its namespace and equivalent resources.
struct Write<'a> {
    environment: &'a dyn Environment,
    attributes: &'a Attributes<'a>,
    namespace: Option<&'a Value>,
    equivalents: Vec<Gvr>,
}

/// Result of matching a policy and one of its bindings with a write.
enum PolicyMatch<'p> {
    /// Evaluate the policy in this version, once for each set of parameters.
    Applies { binding: &'p Binding, gvr: Gvr, params: Vec<Option<Value>> },
    /// The policy or binding is misconfigured.
    Misconfigured { binding: Option<&'p Binding>, reason: String },
}

impl<'a> Write<'a> {
    async fn new(environment: &'a dyn Environment, a: &'a Attributes<'a>) -> ApiResult<Self> {
        let (namespace, equivalents) = (namespace_of(environment, a).await?, environment.equivalents(a));
        Ok(Self { environment, attributes: a, namespace, equivalents })
    }

    /// Matches a policy and its bindings with this write. Returns no element for a binding that does not match.
    async fn match_bindings<'p>(
        &self,
        policy: &Policy,
        bindings: &'p [Binding],
        object: Option<&Value>,
    ) -> Vec<PolicyMatch<'p>> {
        let misconfigured = |reason: String| vec![PolicyMatch::Misconfigured { binding: None, reason }];
        let Some(constraints) = &policy.match_constraints else {
            return misconfigured("policy contained no match constraints, a required field".into());
        };
        let (a, namespace) = (self.attributes, self.namespace);
        let Some(gvr) = constraints.find_matching_version(a, object, namespace, &self.equivalents) else {
            return Vec::new();
        };
        if let Some((api_version, kind)) = &policy.param_kind {
            match self.environment.param_resource(api_version, kind).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
                    let kind = format!("'{group}/{version}, Kind={kind}'");
                    return misconfigured(format!("failed to find resource referenced by paramKind: {kind}"));
                }
                Err(reason) => return misconfigured(reason),
            }
        }
        let mut matches = Vec::new();
        for binding in bindings {
            let is_match = |resources: &MatchResources| {
                resources.find_matching_version(a, object, namespace, &self.equivalents).is_some()
            };
            if !binding.match_resources.as_ref().is_none_or(is_match) {
                continue;
            }
            match self.params(policy, binding).await {
                Ok(params) if params.is_empty() => {}
                Ok(params) => matches.push(PolicyMatch::Applies { binding, gvr: gvr.clone(), params }),
                Err(reason) => matches.push(PolicyMatch::Misconfigured { binding: Some(binding), reason }),
            }
        }
        matches
    }

    /// Converts the object and the old object to a version, and builds the `request` variable in that version.
    async fn convert(
        &self,
        gvr: &Gvr,
        object: Option<&Value>,
    ) -> Result<(Option<Value>, Option<Value>, Value), String> {
        let object = convert_to_version(gvr, self.attributes, object).await?;
        let old = convert_to_version(gvr, self.attributes, self.attributes.old).await?;
        Ok((object, old, review::build_request(self.attributes, gvr, "", None, None)))
    }

    /// The parameters of a binding, one element for each evaluation. A single `None` if the policy or the binding has no
    /// parameters; empty if none are found and the binding is therefore skipped.
    async fn params(&self, policy: &Policy, binding: &Binding) -> Result<Vec<Option<Value>>, String> {
        let (Some((api_version, kind)), Some(param_ref)) = (&policy.param_kind, &binding.param_ref) else {
            return Ok(vec![None]);
        };
        let Some(resource) = self.environment.param_resource(api_version, kind).await? else {
            return Err(format!("paramKind kind `{kind}` not known"));
        };
        let a = self.attributes;
        let write_namespace = if a.resource.namespaced { a.ctx.namespace.as_str() } else { "" };
        let namespace = match (resource.namespaced, param_ref.namespace.as_str()) {
            (false, "") => "",
            (false, _) => return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".into()),
            (true, "") if write_namespace.is_empty() => {
                let reason = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources";
                return Err(reason.into());
            }
            (true, "") => write_namespace,
            (true, namespace) => namespace,
        };
        let params: Vec<Option<Value>> = match (&param_ref.selector, param_ref.name.as_str()) {
            (None, "") => return Err("one of name or selector must be provided".into()),
            (None, name) => {
                let param = self.environment.param(&resource, namespace, name).await?;
                param.map(Some).into_iter().collect()
            }
            (Some(selector), "") => {
                let all = self.environment.params(&resource, namespace).await?;
                all.into_iter().filter(|param| selector.matches_json(param.labels())).map(Some).collect()
            }
            (Some(_), _) => return Err("paramRef.name and paramRef.selector are mutually exclusive".into()),
        };
        if params.is_empty() && param_ref.is_required {
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".into());
        }
        Ok(params)
    }
}
