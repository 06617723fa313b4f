//! CEL expressions over a write: match conditions of webhooks and policies, what policies demand, make and say. Pure but for
//! what `authorizer` asks.

use std::sync::{Arc, LazyLock};

use crowsnest_api::rbac::Action;
use kube::core::cel::cel::{Context, Value as Cel};
use serde_json::{Value, json};

use super::Attributes;
use crate::cel::authorizer::{Asker, Judge};
use crate::cel::{Budget, Failure, Program};
use crate::crd::{check_cel, untyped_cel};

/// What an expression may read besides the object, the old one, the request and its namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reads<'a> {
    pub params: bool,
    pub authorizer: bool,
    /// Names of the variables that it may use, if there are any at all.
    pub variables: Option<&'a [String]>,
}

/// What an expression is for, which is what it may give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Bool,
    Text,
    TextOrNull,
    Anything,
    ApplyConfiguration,
    JsonPatch,
}

/// The fields of `request`.
static REQUEST: LazyLock<Value> = LazyLock::new(|| {
    let object = |properties: Value| json!({"type": "object", "properties": properties});
    let text = || json!({"type": "string"});
    let texts = |names: &[&str]| -> Value { names.iter().map(|name| ((*name).to_owned(), text())).collect() };
    let (kind, resource) =
        (object(texts(&["group", "version", "kind"])), object(texts(&["group", "version", "resource"])));
    let list = json!({"type": "array", "items": text()});
    let user = json!({
        "username": text(), "uid": text(), "groups": list,
        "extra": {"type": "object", "additionalProperties": list},
    });
    object(json!({
        "kind": kind, "resource": resource, "subResource": text(), "requestKind": kind, "requestResource": resource,
        "requestSubResource": text(), "name": text(), "namespace": text(), "operation": text(), "userInfo": object(user),
        "dryRun": {"type": "boolean"}, "options": {},
    }))
});

/// What is wrong with an expression that somebody writes, in kube-apiserver's words.
pub fn problem(source: &str, reads: Reads<'_>, wanted: Wanted) -> Option<String> {
    let patches = matches!(wanted, Wanted::ApplyConfiguration | Wanted::JsonPatch);
    let compiled = match patches {
        true => Program::compile_patch(source),
        false => Program::compile(source),
    };
    if let Err(why) = compiled {
        return Some(format!("compilation failed: {why}"));
    }
    let mut known = vec!["object", "oldObject", "namespaceObject"];
    for (name, may) in [("params", reads.params), ("authorizer", reads.authorizer)] {
        known.extend(may.then_some(name));
    }
    let fields = |names: &[String]| -> Value { names.iter().map(|name| (name.clone(), json!({}))).collect() };
    let variables = reads.variables.map(|names| json!({"properties": fields(names)}));
    let mut typed: Vec<(&str, &Value)> = vec![("request", &REQUEST)];
    typed.extend(variables.as_ref().map(|variables| ("variables", variables)));
    match check_cel(source, &known, &typed) {
        Err(why) => Some(format!("compilation failed: {why}")),
        Ok(given) => unwanted(&given, wanted),
    }
}

/// Why a type that is known is not what is wanted.
fn unwanted(given: &str, wanted: Wanted) -> Option<String> {
    let (fits, named): (&[&str], &str) = match wanted {
        Wanted::Anything => return None,
        Wanted::Bool => (&["bool"], "bool"),
        Wanted::Text => (&["string"], "string"),
        Wanted::TextOrNull => (&["string", "null_type"], "one of [string null_type]"),
        Wanted::ApplyConfiguration => (&["Object"], "Object"),
        Wanted::JsonPatch => (&["list(JSONPatch)", "list(dyn)"], "list(JSONPatch)"),
    };
    // What types can't tell, evaluating does.
    let fits = fits.contains(&given) || given == "dyn";
    (!fits).then(|| format!("must evaluate to {named} but got {given}"))
}

/// One expression, compiled once.
#[derive(Debug)]
pub struct Expression {
    pub source: String,
    program: Result<Program, String>,
}

impl Expression {
    /// One that does not compile fails whenever it is evaluated.
    pub fn compile(source: &str) -> Self {
        Self::of(source, Program::compile(source))
    }

    /// One that makes a patch.
    pub fn compile_patch(source: &str) -> Self {
        Self::of(source, Program::compile_patch(source))
    }

    fn of(source: &str, program: Result<Program, String>) -> Self {
        Self { source: source.to_owned(), program: program.map_err(|why| format!("compilation failed: {why}")) }
    }

    pub fn evaluate(&self, scope: &Context<'_>, budget: &mut Budget) -> Result<Cel, String> {
        let because = |why: &dyn std::fmt::Display| format!("expression '{}' resulted in error: {why}", self.source);
        let program = self.program.as_ref().map_err(|why| format!("compilation error: {why}"))?;
        program.execute(scope, budget).map_err(|failure| match failure {
            Failure::Budget => failure.to_string(),
            other => because(&other),
        })
    }
}

/// What expressions can read.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub object: Option<&'a Value>,
    pub old: Option<&'a Value>,
    /// The request as an AdmissionRequest without its objects.
    pub request: &'a Value,
    pub namespace: Option<&'a Value>,
    pub params: Option<&'a Value>,
    /// Who asks, and the request as a question.
    pub authorizer: Option<(&'a Asker, &'a Action)>,
}

impl Inputs<'_> {
    /// A scope with them, within one that has the functions.
    pub fn scope<'b>(&self, base: &'b Context<'b>) -> Context<'b> {
        let bind = |value: Option<&Value>| value.map_or(Cel::Null, untyped_cel);
        let mut scope = base.new_inner_scope();
        scope.add_variable_from_value("object", bind(self.object));
        scope.add_variable_from_value("oldObject", bind(self.old));
        scope.add_variable_from_value("request", untyped_cel(self.request));
        scope.add_variable_from_value("namespaceObject", bind(self.namespace));
        scope.add_variable_from_value("params", bind(self.params));
        if let Some((asker, request)) = self.authorizer {
            asker.clone().bind(request, &mut scope);
        }
        scope
    }
}

/// Who asks in expressions over a write, and that write as a question still without a verb.
pub fn asker(judge: &Arc<dyn Judge>, a: &Attributes<'_>) -> (Asker, Action) {
    let action = Action::Resource {
        verb: String::new(),
        group: a.resource.gvr.group.clone(),
        resource: a.resource.gvr.resource.clone(),
        subresource: a.ctx.subresource.clone(),
        namespace: if a.resource.namespaced { a.ctx.namespace.clone() } else { String::new() },
        name: a.name.to_owned(),
    };
    (Asker::new(judge.clone(), a.ctx.user.clone()), action)
}

/// Whether all conditions hold; an error names the condition that could not be evaluated.
pub fn hold(conditions: &[Expression], scope: &Context<'_>) -> Result<bool, String> {
    let (mut failures, mut budget) = (Vec::new(), Budget::conditions());
    for condition in conditions {
        match condition.evaluate(scope, &mut budget) {
            Ok(Cel::Bool(true)) => {}
            // One false condition decides, whatever the others would fail with.
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
