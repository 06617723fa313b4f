//! CEL expressions over a write: match conditions of webhooks and policies, what policies demand and say. Pure.

use kube::core::cel::cel::{Context, Program, Value as Cel};
use serde_json::Value;

use crate::crd::untyped_cel;

/// Asks for rights of the caller in kube-apiserver; the CEL library of this server has no such functions.
const AUTHORIZER: &str = "authorizer";

/// One expression, compiled once.
#[derive(Debug)]
pub struct Expression {
    pub source: String,
    program: Result<Program, String>,
}

impl Expression {
    /// One that does not compile fails whenever it is evaluated.
    pub fn compile(source: &str) -> Self {
        let compiled =
            Program::compile(source).map_err(|e| format!("compilation failed: {e}")).and_then(|program| match program
                .references()
                .has_variable(AUTHORIZER)
            {
                true => Err(format!("expressions with '{AUTHORIZER}' are not supported by this server")),
                false => Ok(program),
            });
        Self { source: source.to_owned(), program: compiled }
    }

    /// Why it can't be evaluated at all.
    pub fn problem(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }

    pub fn evaluate(&self, scope: &Context<'_>) -> Result<Cel, String> {
        let because = |why: &dyn std::fmt::Display| format!("expression '{}' resulted in error: {why}", self.source);
        let program = self.program.as_ref().map_err(|why| because(why))?;
        program.execute(scope).map_err(|error| because(&error))
    }
}

/// What expressions can read.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    pub object: Option<&'a Value>,
    pub old: Option<&'a Value>,
    /// The request as an AdmissionRequest without its objects.
    pub request: &'a Value,
    pub namespace: Option<&'a Value>,
    pub params: Option<&'a Value>,
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
        scope
    }
}

/// Whether all conditions hold; an error names the condition that could not be evaluated.
pub fn hold(conditions: &[Expression], scope: &Context<'_>) -> Result<bool, String> {
    let mut failure = None;
    for condition in conditions {
        match condition.evaluate(scope) {
            Ok(Cel::Bool(true)) => {}
            // One false condition decides, whatever the others would fail with.
            Ok(Cel::Bool(false)) => return Ok(false),
            Ok(_) => failure = Some("match condition must evaluate to bool".to_owned()),
            Err(why) => failure = Some(why),
        }
    }
    failure.map_or(Ok(true), Err)
}
