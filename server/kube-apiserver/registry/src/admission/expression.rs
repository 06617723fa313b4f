//! CEL expressions evaluated during admission: match conditions of webhooks and policies, validations, mutations,
//! messages and audit annotations of policies. Pure except for the checks that `authorizer` makes.

use std::sync::Arc;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::rbac::Action;
use crowsnest_cel::authorizer::{AccessChecker, Asker};
use crowsnest_cel::json::untyped_to_cel;
use crowsnest_cel::typing::{Names, Type, check};
use crowsnest_cel::{Budget, Failure, Program, instantiate};
use kube::core::cel::cel::{Context, Value as Cel};
use serde_json::Value;

use super::Attributes;

/// Variables available to an expression in addition to `object`, `oldObject`, `request` and `namespaceObject`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reads<'a> {
    pub params: bool,
    pub authorizer: bool,
    /// Names and types of `variables`; `None` if the expression cannot use `variables`.
    pub variables: Option<&'a [(String, Type)]>,
}

/// Result type that an expression must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Bool,
    Text,
    TextOrNull,
    Anything,
    ApplyConfiguration,
    JsonPatch,
}

/// Compiles an expression for validation. Returns its type, or the error in kube-apiserver's wording.
pub fn checked(source: &str, reads: Reads<'_>, wanted: Wanted) -> Result<Type, String> {
    let patches = matches!(wanted, Wanted::ApplyConfiguration | Wanted::JsonPatch);
    let failed = |why: String| format!("compilation failed: {why}");
    let given = check(source, &names(reads, patches)).map_err(failed)?.gives().clone();
    let wanted = match wanted {
        Wanted::Anything => return Ok(given),
        Wanted::Bool => &["bool"][..],
        Wanted::Text => &["string"],
        Wanted::TextOrNull => &["string", "null_type"],
        Wanted::ApplyConfiguration => &["Object"],
        Wanted::JsonPatch => &["list(JSONPatch)"],
    };
    let named = given.full_name();
    if !wanted.contains(&named.as_str()) {
        return Err(match wanted {
            [one] => format!("must evaluate to {one} but got {named}"),
            several => format!("must evaluate to one of [{}] but got {named}", several.join(" ")),
        });
    }
    let compiled = if patches { Program::compile_patch(source) } else { Program::compile(source) };
    compiled.map_err(failed).map(|_| given)
}

/// Error if a type-correct expression cannot be instantiated as a program.
pub fn instantiated(source: &str, field: &str) -> Option<FieldError> {
    let why = instantiate(source).err()?;
    Some(FieldError::new(FieldErrorKind::Internal, field, None, format!("program instantiation failed: {why}")))
}

/// Declarations for expressions of a policy. The objects are of type `dyn` here.
pub fn names(reads: Reads<'_>, patches: bool) -> Names {
    let mut names = Names { patches, ..Names::default() };
    for (name, fields) in OBJECTS {
        names.add_object(name, fields);
    }
    let mut add = |name: &str, of: Type| names.variables.insert(name.to_owned(), of);
    for name in ["object", "oldObject"].into_iter().chain(reads.params.then_some("params")) {
        add(name, Type::Dyn);
    }
    add("request", Type::object("kubernetes.AdmissionRequest"));
    add("namespaceObject", Type::object("kubernetes.Namespace"));
    if reads.authorizer {
        add("authorizer", Type::object("kubernetes.authorization.Authorizer"));
        add("authorizer.requestResource", Type::object("kubernetes.authorization.ResourceCheck"));
    }
    if patches {
        let fields = [("op", "string"), ("path", "string"), ("from", "string"), ("value", "dyn")];
        names.add_object("JSONPatch", &fields);
    }
    if let Some(variables) = reads.variables {
        names.variables.insert("variables".to_owned(), Type::object(VARIABLES));
        names.objects.insert(VARIABLES.into(), variables.iter().cloned().collect());
    }
    names
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
        Self::of(source, Program::compile(source))
    }

    /// Compiles an expression whose result is a patch.
    pub fn compile_patch(source: &str) -> Self {
        Self::of(source, Program::compile_patch(source))
    }

    fn of(source: &str, program: Result<Program, String>) -> Self {
        Self { source: source.to_owned(), program: program.map_err(|why| format!("compilation failed: {why}")) }
    }

    pub fn evaluate(&self, scope: &Context<'_>, budget: &mut Budget) -> Result<Cel, String> {
        let because = |why: &dyn std::fmt::Display| format!("{}{why}", failed(&self.source));
        let program = self.program.as_ref().map_err(|why| format!("compilation error: {why}"))?;
        program.execute(scope, budget).map_err(|failure| match failure {
            Failure::Budget => failure.to_string(),
            other => because(&other),
        })
    }
}

/// Prefix of an expression's error message.
pub fn failed(source: &str) -> String {
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
    pub authorizer: Option<(&'a Asker, &'a Action)>,
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
        if let Some((asker, request)) = self.authorizer {
            asker.clone().bind(request, &mut scope);
        }
        scope
    }
}

/// The user of a write and the write as an authorization check, whose verb is still empty, for `authorizer` in
/// expressions.
pub fn asker(access_checker: &Arc<dyn AccessChecker>, a: &Attributes<'_>) -> (Asker, Action) {
    let action = Action::Resource {
        verb: String::new(),
        group: a.resource.gvr.group.to_string(),
        resource: a.resource.gvr.resource.to_string(),
        subresource: a.ctx.subresource.clone(),
        namespace: if a.resource.namespaced { a.ctx.namespace.clone() } else { String::new() },
        name: a.name.to_owned(),
    };
    (Asker::new(access_checker.clone(), a.ctx.user.clone()), action)
}

/// True if all conditions are true. An error names the conditions that could not be evaluated.
pub fn hold(conditions: &[Expression], scope: &Context<'_>) -> Result<bool, String> {
    let (mut failures, mut budget) = (Vec::new(), Budget::conditions());
    for condition in conditions {
        match condition.evaluate(scope, &mut budget) {
            Ok(Cel::Bool(true)) => {}
            // One false condition decides, even if others fail.
            Ok(Cel::Bool(false)) => return Ok(false),
            Ok(_) => failures.push("match condition must evaluate to bool".to_owned()),
            Err(why) => failures.push(why),
        }
    }
    match failures.len() {
        0 => Ok(true),
        1 => Err(failures.remove(0)),
        _ => Err(format!("[{}]", failures.join(", "))),
    }
}
