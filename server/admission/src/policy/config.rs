//! Parsed admission policies and bindings.

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::selector::Selector;
use crowsnest_registry::admission::Attributes;
use crowsnest_registry::admission::expression::Expression;
use serde_json::Value;

use crate::webhook::config::{RuleWithOperations, parse_conditions, parse_rule, parse_selectors};
use crate::webhook::matching::{self, Selectors};

/// `matchConstraints` of a policy, or `matchResources` of a binding.
#[derive(Debug, Default)]
pub struct MatchResources {
    rules: Vec<RuleWithOperations>,
    exclude_rules: Vec<RuleWithOperations>,
    /// True for `matchPolicy: Equivalent`.
    matches_equivalents: bool,
    selectors: Selectors,
}

impl MatchResources {
    fn parse(resources: &Value) -> Self {
        let rules = |key: &str| resources[key].as_array().into_iter().flatten().map(parse_rule).collect();
        Self {
            rules: rules("resourceRules"),
            exclude_rules: rules("excludeResourceRules"),
            matches_equivalents: resources["matchPolicy"] != "Exact",
            selectors: parse_selectors(resources),
        }
    }

    /// True if the rules match this write in the version of the request or an equivalent one. Exclusions and selectors
    /// are not checked.
    pub fn covers(&self, a: &Attributes<'_>, equivalents: &[Gvr]) -> bool {
        self.rules.is_empty() || self.find_version(&self.rules, a, equivalents).is_some()
    }

    /// The version of the resource in which this write matches; `None` if it does not match or is excluded.
    pub fn find_matching_version(
        &self,
        a: &Attributes<'_>,
        object: Option<&Value>,
        namespace: Option<&Value>,
        equivalents: &[Gvr],
    ) -> Option<Gvr> {
        if self.find_version(&self.exclude_rules, a, equivalents).is_some()
            || !matching::selectors_match(&self.selectors, a, object, namespace)
        {
            return None;
        }
        match self.rules.is_empty() {
            true => Some(a.resource.gvr.clone()),
            false => self.find_version(&self.rules, a, equivalents),
        }
    }

    fn find_version(&self, rules: &[RuleWithOperations], a: &Attributes<'_>, equivalents: &[Gvr]) -> Option<Gvr> {
        matching::find_matching_version(rules, self.matches_equivalents, a, equivalents)
    }
}

/// A validation of a policy.
#[derive(Debug)]
pub struct Validation {
    pub expression: Expression,
    pub message: String,
    pub message_expression: Option<Expression>,
    /// Reason of the Status; `None` means `Invalid`.
    pub reason: Option<String>,
}

/// A mutation of a policy: the expression of its patch.
#[derive(Debug)]
pub enum Mutation {
    ApplyConfiguration(Expression),
    JsonPatch(Expression),
}

/// A ValidatingAdmissionPolicy or MutatingAdmissionPolicy.
#[derive(Debug)]
pub struct Policy {
    pub name: String,
    /// `None` if `matchConstraints` is missing, which makes the policy misconfigured.
    pub match_constraints: Option<MatchResources>,
    /// `apiVersion` and `kind` of the parameters.
    pub param_kind: Option<(String, String)>,
    /// True for `failurePolicy: Ignore`.
    pub ignores_failure: bool,
    /// `matchConditions`.
    pub conditions: Vec<Expression>,
    /// Names and expressions, in order: an expression can use preceding variables.
    pub variables: Vec<(String, Expression)>,
    pub validations: Vec<Validation>,
    /// Keys and value expressions of the audit annotations.
    pub audit_annotations: Vec<(String, Expression)>,
    pub mutations: Vec<Mutation>,
    /// True for `reinvocationPolicy: IfNeeded`: the policy runs again after later changes of the object.
    pub can_reinvoke: bool,
}

/// Reference to the parameters of a binding, by name or by selector.
#[derive(Debug)]
pub struct ParamRef {
    /// Empty if the parameters are selected by labels.
    pub name: String,
    /// Empty for cluster-scoped parameters and for those in the namespace of the write.
    pub namespace: String,
    pub selector: Option<Selector>,
    /// True for `parameterNotFoundAction: Deny`.
    pub is_required: bool,
}

/// A ValidatingAdmissionPolicyBinding or MutatingAdmissionPolicyBinding.
#[derive(Debug)]
pub struct Binding {
    pub name: String,
    /// Name of the policy.
    pub policy: String,
    /// `None` applies the binding to all writes that the policy matches.
    pub match_resources: Option<MatchResources>,
    pub param_ref: Option<ParamRef>,
    /// `validationActions`: `Deny`, `Warn` and `Audit`.
    pub actions: Vec<String>,
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or("").to_owned()
}

/// Compiles an expression; `None` if it is missing or blank.
fn compile(value: &Value, key: &str) -> Option<Expression> {
    value[key].as_str().filter(|source| !source.trim().is_empty()).map(Expression::compile)
}

fn entries<'a>(spec: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    spec[key].as_array().into_iter().flatten()
}

impl Mutation {
    fn parse(entry: &Value) -> Option<Self> {
        let compile = |key: &str| entry[key]["expression"].as_str().map(Expression::compile_patch);
        match entry["patchType"].as_str()? {
            "ApplyConfiguration" => compile("applyConfiguration").map(Self::ApplyConfiguration),
            "JSONPatch" => compile("jsonPatch").map(Self::JsonPatch),
            _ => None,
        }
    }
}

impl Policy {
    pub fn parse(object: &Value) -> Self {
        let spec = &object["spec"];
        let named_expressions = |list: &str, name: &str, source: &str| -> Vec<(String, Expression)> {
            entries(spec, list).filter_map(|entry| Some((text(entry, name), compile(entry, source)?))).collect()
        };
        let validation = |entry: &Value| {
            Some(Validation {
                expression: compile(entry, "expression")?,
                message: text(entry, "message"),
                message_expression: compile(entry, "messageExpression"),
                reason: entry["reason"].as_str().map(str::to_owned),
            })
        };
        let kind = &spec["paramKind"];
        Self {
            name: text(&object["metadata"], "name"),
            match_constraints: spec.get("matchConstraints").filter(|m| m.is_object()).map(MatchResources::parse),
            param_kind: kind.is_object().then(|| (text(kind, "apiVersion"), text(kind, "kind"))),
            ignores_failure: spec["failurePolicy"] == "Ignore",
            conditions: parse_conditions(spec),
            variables: named_expressions("variables", "name", "expression"),
            validations: entries(spec, "validations").filter_map(validation).collect(),
            audit_annotations: named_expressions("auditAnnotations", "key", "valueExpression"),
            mutations: entries(spec, "mutations").filter_map(Mutation::parse).collect(),
            can_reinvoke: spec["reinvocationPolicy"] == "IfNeeded",
        }
    }
}

impl Binding {
    pub fn parse(object: &Value) -> Self {
        let spec = &object["spec"];
        let param_ref = spec.get("paramRef").filter(|p| p.is_object()).map(|param| ParamRef {
            name: text(param, "name"),
            namespace: text(param, "namespace"),
            selector: param
                .get("selector")
                .filter(|s| s.is_object())
                .map(|s| Selector::from_json(Some(s)).unwrap_or_default()),
            is_required: param["parameterNotFoundAction"] == "Deny",
        });
        Self {
            name: text(&object["metadata"], "name"),
            policy: text(spec, "policyName"),
            match_resources: spec.get("matchResources").filter(|m| m.is_object()).map(MatchResources::parse),
            param_ref,
            actions: entries(spec, "validationActions").filter_map(|a| a.as_str().map(str::to_owned)).collect(),
        }
    }
}
