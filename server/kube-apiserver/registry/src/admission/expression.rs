//! CEL expressions evaluated during admission: match conditions of webhooks and policies, validations, mutations,
//! messages and audit annotations of policies. Has no side effects except for the checks that `authorizer` makes.

use std::sync::Arc;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::rbac::Action;
use crowsnest_cel::authorizer::{AccessChecker, UserAuthorizer};
use crowsnest_cel::json::untyped_to_cel;
use crowsnest_cel::typing::{Declarations, Type, check};
use crowsnest_cel::{Budget, Failure, Program, instantiate};
use kube::core::cel::cel::{Context, Value as Cel};
use serde_json::Value;

use super::Attributes;

/// Variables available to an expression in addition to `object`, `oldObject`, `request` and `namespaceObject`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AvailableVariables<'a> {
    pub has_params: bool,
    pub has_authorizer: bool,
    /// Names and types of `variables`; `None` if the expression cannot use `variables`.
    pub variables: Option<&'a [(String, Type)]>,
}

/// Result type that an expression must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedResult {
    Bool,
    Text,
    TextOrNull,
    Anything,
    ApplyConfiguration,
    JsonPatch,
}

/// Compiles an expression for validation. Returns its type, or the error in kube-apiserver's wording.
pub fn check_expression(
    source: &str,
    available: AvailableVariables<'_>,
    expected: ExpectedResult,
) -> Result<Type, String> {
    let allows_patches = matches!(expected, ExpectedResult::ApplyConfiguration | ExpectedResult::JsonPatch);
    let compilation_error = |reason: String| format!("compilation failed: {reason}");
    let result_type =
        check(source, &declarations(available, allows_patches)).map_err(compilation_error)?.result_type().clone();
    let expected_names = match expected {
        ExpectedResult::Anything => return Ok(result_type),
        ExpectedResult::Bool => &["bool"][..],
        ExpectedResult::Text => &["string"],
        ExpectedResult::TextOrNull => &["string", "null_type"],
        ExpectedResult::ApplyConfiguration => &["Object"],
        ExpectedResult::JsonPatch => &["list(JSONPatch)"],
    };
    let name = result_type.full_name();
    if !expected_names.contains(&name.as_str()) {
        return Err(match expected_names {
            [one] => format!("must evaluate to {one} but got {name}"),
            several => format!("must evaluate to one of [{}] but got {name}", several.join(" ")),
        });
    }
    let compiled = if allows_patches { Program::compile_patch(source) } else { Program::compile(source) };
    compiled.map_err(compilation_error).map(|_| result_type)
}

/// Returns an error if a type-correct expression cannot be instantiated as a program.
pub fn check_instantiation(source: &str, field: &str) -> Option<FieldError> {
    let reason = instantiate(source).err()?;
    Some(FieldError::new(FieldErrorKind::Internal, field, None, format!("program instantiation failed: {reason}")))
}

/// Declarations for expressions of a policy. The objects are of type `dyn` here.
pub fn declarations(available: AvailableVariables<'_>, allows_patches: bool) -> Declarations {
    let mut declarations = Declarations { allows_patches, ..Declarations::default() };
    for (name, fields) in OBJECTS {
        declarations.add_object(name, fields);
    }
    let mut add = |name: &str, value_type: Type| declarations.variables.insert(name.to_owned(), value_type);
    for name in ["object", "oldObject"].into_iter().chain(available.has_params.then_some("params")) {
        add(name, Type::Dyn);
    }
    add("request", Type::object("kubernetes.AdmissionRequest"));
    add("namespaceObject", Type::object("kubernetes.Namespace"));
    if available.has_authorizer {
        add("authorizer", Type::object("kubernetes.authorization.Authorizer"));
        add("authorizer.requestResource", Type::object("kubernetes.authorization.ResourceCheck"));
    }
    if allows_patches {
        let fields = [("op", "string"), ("path", "string"), ("from", "string"), ("value", "dyn")];
        declarations.add_object("JSONPatch", &fields);
    }
    if let Some(variables) = available.variables {
        declarations.variables.insert("variables".to_owned(), Type::object(VARIABLES));
        declarations.objects.insert(VARIABLES.into(), variables.iter().cloned().collect());
    }
    declarations
}

const VARIABLES: &str = "kubernetes.variables";

type Fields = &'static [(&'static str, &'static str)];

/// Object types that expressions can read, with their fields.
const OBJECTS: &[(&str, Fields)] = &[
    (
        "kubernetes.AdmissionRequest",
        &[
            ("kind", "kubernetes.GroupVersionKind"),
            ("resource", "kubernetes.GroupVersionResource"),
            ("subResource", "string"),
            ("requestKind", "kubernetes.GroupVersionKind"),
            ("requestResource", "kubernetes.GroupVersionResource"),
            ("requestSubResource", "string"),
            ("name", "string"),
            ("namespace", "string"),
            ("operation", "string"),
            ("userInfo", "kubernetes.UserInfo"),
            ("dryRun", "bool"),
            ("options", "dyn"),
        ],
    ),
    ("kubernetes.GroupVersionKind", &[("group", "string"), ("version", "string"), ("kind", "string")]),
    ("kubernetes.GroupVersionResource", &[("group", "string"), ("version", "string"), ("resource", "string")]),
    (
        "kubernetes.UserInfo",
        &[
            ("username", "string"),
            ("uid", "string"),
            ("groups", "list(string)"),
            ("extra", "map(string, list(string))"),
        ],
    ),
    (
        "kubernetes.Namespace",
        &[
            ("metadata", "kubernetes.NamespaceMetadata"),
            ("spec", "kubernetes.NamespaceSpec"),
            ("status", "kubernetes.NamespaceStatus"),
        ],
    ),
    (
        "kubernetes.NamespaceMetadata",
        &[
            ("name", "string"),
            ("generateName", "string"),
            ("namespace", "string"),
            ("labels", "map(string, string)"),
            ("annotations", "map(string, string)"),
            ("UID", "string"),
            ("creationTimestamp", "timestamp"),
            ("deletionGracePeriodSeconds", "int"),
            ("deletionTimestamp", "timestamp"),
            ("generation", "int"),
            ("resourceVersion", "string"),
            ("finalizers", "list(string)"),
        ],
    ),
    ("kubernetes.NamespaceSpec", &[("finalizers", "list(string)")]),
    ("kubernetes.NamespaceStatus", &[("conditions", "list(kubernetes.NamespaceCondition)"), ("phase", "string")]),
    (
        "kubernetes.NamespaceCondition",
        &[
            ("status", "string"),
            ("type", "string"),
            ("lastTransitionTime", "timestamp"),
            ("message", "string"),
            ("reason", "string"),
        ],
    ),
];

/// An expression, compiled once.
#[derive(Debug)]
pub struct Expression {
    pub source: String,
    program: Result<Program, String>,
}

impl Expression {
    /// An expression that does not compile fails on each evaluation.
    pub fn compile(source: &str) -> Self {
        Self::from_result(source, Program::compile(source))
    }

    /// Compiles an expression whose result is a patch.
    pub fn compile_patch(source: &str) -> Self {
        Self::from_result(source, Program::compile_patch(source))
    }

    fn from_result(source: &str, program: Result<Program, String>) -> Self {
        Self { source: source.to_owned(), program: program.map_err(|reason| format!("compilation failed: {reason}")) }
    }

    pub fn evaluate(&self, scope: &Context<'_>, budget: &mut Budget) -> Result<Cel, String> {
        let evaluation_error = |reason: &dyn std::fmt::Display| format!("{}{reason}", error_prefix(&self.source));
        let program = self.program.as_ref().map_err(|reason| format!("compilation error: {reason}"))?;
        program.execute(scope, budget).map_err(|failure| match failure {
            Failure::Budget => failure.to_string(),
            other => evaluation_error(&other),
        })
    }
}

/// Prefix of an expression's error message.
pub fn error_prefix(source: &str) -> String {
    format!("expression '{source}' resulted in error: ")
}

/// Values that expressions can read.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub object: Option<&'a Value>,
    pub old: Option<&'a Value>,
    /// The request as an `AdmissionRequest` without its objects.
    pub request: &'a Value,
    pub namespace: Option<&'a Value>,
    pub params: Option<&'a Value>,
    /// The user who makes the request, and the request as an authorization check.
    pub authorizer: Option<(&'a UserAuthorizer, &'a Action)>,
}

impl Inputs<'_> {
    /// Creates a scope with these values inside `base`, which has the functions.
    pub fn scope<'b>(&self, base: &'b Context<'b>) -> Context<'b> {
        let bind = |value: Option<&Value>| value.map_or(Cel::Null, untyped_to_cel);
        let mut scope = base.new_inner_scope();
        scope.add_variable_from_value("object", bind(self.object));
        scope.add_variable_from_value("oldObject", bind(self.old));
        scope.add_variable_from_value("request", untyped_to_cel(self.request));
        scope.add_variable_from_value("namespaceObject", bind(self.namespace));
        scope.add_variable_from_value("params", bind(self.params));
        if let Some((user_authorizer, request)) = self.authorizer {
            user_authorizer.clone().bind(request, &mut scope);
        }
        scope
    }
}

/// The user of a write, and the write as an authorization check, for `authorizer` in expressions. The verb of the check is
/// empty, because each expression supplies its own.
pub fn user_authorizer(access_checker: &Arc<dyn AccessChecker>, a: &Attributes<'_>) -> (UserAuthorizer, Action) {
    let action = Action::Resource {
        verb: String::new(),
        group: a.resource.gvr.group.to_string(),
        resource: a.resource.gvr.resource.to_string(),
        subresource: a.ctx.subresource.clone(),
        namespace: if a.resource.namespaced { a.ctx.namespace.clone() } else { String::new() },
        name: a.name.to_owned(),
    };
    (UserAuthorizer::new(access_checker.clone(), a.ctx.user.clone()), action)
}

/// Returns true if all conditions are true. An error names the conditions that could not be evaluated.
pub fn evaluate_conditions(conditions: &[Expression], scope: &Context<'_>) -> Result<bool, String> {
    let (mut failures, mut budget) = (Vec::new(), Budget::for_conditions());
    for condition in conditions {
        match condition.evaluate(scope, &mut budget) {
            Ok(Cel::Bool(true)) => {}
            // One false condition decides, even if others fail.
            Ok(Cel::Bool(false)) => return Ok(false),
            Ok(_) => failures.push("match condition must evaluate to bool".to_owned()),
            Err(reason) => failures.push(reason),
        }
    }
    match failures.len() {
        0 => Ok(true),
        1 => Err(failures.remove(0)),
        _ => Err(format!("[{}]", failures.join(", "))),
    }
}
