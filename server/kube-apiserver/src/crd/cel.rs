//! `x-kubernetes-validations`: rules compiled once per schema and evaluated on new and old objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind, printed};
use crowsnest_cel::json::to_cel;
use crowsnest_cel::{Budget, Failure, Kind, Program, with_base};
use kube::core::cel::cel::objects::OptionalValue;
use kube::core::cel::cel::{Context, Value as Cel};
use serde_json::Value;

use super::field_paths;

/// Longest result of a `messageExpression` in bytes.
const MAX_MESSAGE: usize = 5 * 1024;

/// One compiled rule.
#[derive(Debug)]
struct Rule {
    source: String,
    program: Program,
    message: String,
    /// Source and program of the `messageExpression`.
    message_program: Option<(String, Program)>,
    reason: String,
    /// Path relative to the value that the rule validates.
    field_path: String,
    uses_old: bool,
    optional_old: bool,
}

/// The rules of a schema in its structure, without branches that have no rules.
#[derive(Debug, Default)]
pub struct Rules {
    own: Vec<Rule>,
    properties: BTreeMap<String, Rules>,
    items: Option<Box<Rules>>,
    additional: Option<Box<Rules>>,
}

/// Errors so far, and the remaining cost budget.
struct Found {
    errors: Vec<FieldError>,
    /// Violations in unchanged values, which are returned as warnings.
    stored: Vec<FieldError>,
    budget: Budget,
    /// True if the budget is exhausted and no further rules are evaluated.
    over: bool,
}

impl Rules {
    /// Compiles all rules in `schema`; `None` if there are none. Rules that do not compile are skipped: validation
    /// of the CRD has rejected them.
    pub fn compile(schema: &Value) -> Option<Self> {
        let own: Vec<Rule> = schema
            .get("x-kubernetes-validations")
            .and_then(Value::as_array)
            .filter(|rules| !rules.is_empty())
            .map(|rules| {
                let kind = Kind::of_schema(schema);
                rules.iter().filter_map(|rule| compile_rule(schema, rule, &kind)).collect()
            })
            .unwrap_or_default();
        let mut properties = BTreeMap::new();
        if let Some(all) = schema.get("properties").and_then(Value::as_object) {
            for (name, property) in all {
                if let Some(rules) = Self::compile(property) {
                    properties.insert(name.clone(), rules);
                }
            }
        }
        let below = |key: &str| schema.get(key).filter(|s| s.is_object()).and_then(Self::compile).map(Box::new);
        let (items, additional) = (below("items"), below("additionalProperties"));
        let empty = own.is_empty() && properties.is_empty() && items.is_none() && additional.is_none();
        (!empty).then_some(Self { own, properties, items, additional })
    }

    /// Evaluates the rules on `new` and returns errors and warnings. `old` is set for an update: transition rules
    /// are evaluated, and violations in unchanged values are only warnings.
    pub fn check(
        &self,
        schema: &Value,
        new: &Value,
        old: Option<&Value>,
        name: &str,
    ) -> (Vec<FieldError>, Vec<FieldError>) {
        let mut found = Found { errors: Vec::new(), stored: Vec::new(), budget: Budget::rules(), over: false };
        with_base(|base| self.walk(base, schema, (new, old), name, false, &mut found));
        (found.errors, found.stored)
    }

    /// `same` is true if the enclosing value is unchanged.
    fn walk(
        &self,
        base: &Context<'_>,
        schema: &Value,
        (new, old): (&Value, Option<&Value>),
        name: &str,
        same: bool,
        found: &mut Found,
    ) {
        if new.is_null() || found.over {
            return;
        }
        let old = old.filter(|old| !old.is_null());
        let same = same || old.is_some_and(|old| old == new);
        if !self.own.is_empty() {
            let mut scope = base.new_inner_scope();
            scope.add_variable_from_value("self", to_cel(schema, new));
            if let Some(old) = old {
                scope.add_variable_from_value("oldSelf", to_cel(schema, old));
            }
            for rule in &self.own {
                rule.check(&scope, schema, (new, old), name, same, found);
                if found.over {
                    return;
                }
            }
        }
        match new {
            Value::Object(members) => {
                for (key, member) in members {
                    let old = old.and_then(|o| o.get(key));
                    if let Some((rules, sub)) =
                        self.properties.get(key).zip(schema.pointer("/properties").and_then(|p| p.get(key)))
                    {
                        rules.walk(base, sub, (member, old), &join(name, key), same, found);
                    } else if let Some((rules, sub)) =
                        self.additional.as_deref().zip(schema.get("additionalProperties"))
                    {
                        rules.walk(base, sub, (member, old), &format!("{name}[{key}]"), same, found);
                    }
                }
            }
            Value::Array(items) => {
                if let Some((rules, sub)) = self.items.as_deref().zip(schema.get("items")) {
                    for (index, item) in items.iter().enumerate() {
                        let old = old.and_then(|o| correlated(schema, item, o));
                        rules.walk(base, sub, (item, old), &format!("{name}[{index}]"), same, found);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The old item with the same keys, for lists of type map; items of other lists have no identity.
fn correlated<'a>(schema: &Value, item: &Value, old: &'a Value) -> Option<&'a Value> {
    if schema.get("x-kubernetes-list-type").and_then(Value::as_str) != Some("map") {
        return None;
    }
    let keys: Vec<&str> =
        schema.get("x-kubernetes-list-map-keys")?.as_array()?.iter().filter_map(Value::as_str).collect();
    old.as_array()?.iter().find(|candidate| keys.iter().all(|key| candidate.get(key) == item.get(key)))
}

fn join(name: &str, key: &str) -> String {
    if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") }
}

fn compile_rule(schema: &Value, rule: &Value, kind: &Kind) -> Option<Rule> {
    let text = |key: &str| rule.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    let source = text("rule");
    let optional_old = rule.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or(false);
    let old = if optional_old { kind.clone().optional() } else { kind.clone() };
    let variables = [("self", kind.clone()), ("oldSelf", old)];
    let program = Program::compile_over(&source, &variables).ok()?;
    let uses_old = program.references().has_variable("oldSelf");
    let message_expression = text("messageExpression");
    Some(Rule {
        uses_old,
        program,
        message: text("message").trim().to_owned(),
        message_program: Program::compile_over(&message_expression, &variables)
            .ok()
            .filter(|_| !message_expression.is_empty())
            .map(|program| (message_expression, program)),
        reason: text("reason"),
        field_path: field_paths::find(&text("fieldPath"), schema, true).map(|found| found.shown).unwrap_or_default(),
        optional_old,
        source,
    })
}

impl Rule {
    fn check(
        &self,
        scope: &Context<'_>,
        schema: &Value,
        (value, old): (&Value, Option<&Value>),
        name: &str,
        same: bool,
        found: &mut Found,
    ) {
        if self.uses_old && old.is_none() && !self.optional_old {
            return;
        }
        let mut inner;
        let with_old = if self.optional_old {
            inner = scope.new_inner_scope();
            // With `optionalOldSelf`, `oldSelf` is an optional.
            let optional = old.map_or_else(OptionalValue::none, |old| OptionalValue::of(to_cel(schema, old)));
            inner.add_variable_from_value("oldSelf", Cel::Opaque(Arc::new(optional)));
            &inner
        } else {
            scope
        };
        // Evaluation errors show the type of the value.
        let kind = printed(schema.get("type").and_then(Value::as_str).unwrap_or(""));
        let failed =
            |path: &str, detail: String| FieldError::new(FieldErrorKind::Invalid, path, Some(kind.clone()), detail);
        match self.program.execute(with_old, &mut found.budget) {
            Ok(Cel::Bool(true)) => {}
            Ok(_) => match self.explain(scope, &mut found.budget) {
                Ok(detail) => {
                    let error = self.error(value, name, detail);
                    let errors = if same && !self.uses_old { &mut found.stored } else { &mut found.errors };
                    errors.push(error);
                }
                Err(why) => {
                    found.over = true;
                    found.errors.push(failed(&self.path_of(name), why));
                }
            },
            Err(failure) => {
                found.over = !matches!(failure, Failure::Evaluation(_));
                found.errors.push(failed(&shown(name), self.failure(&failure)));
            }
        }
    }

    /// Message for a rule that could not be evaluated.
    fn failure(&self, failure: &Failure) -> String {
        let rule = if self.message.is_empty() { self.source.trim() } else { &self.message };
        match failure {
            Failure::Evaluation(text) if text.starts_with("no such overload") => format!(
                "'{text}': call arguments did not match a supported operator, function or macro signature for rule: {rule}"
            ),
            Failure::Evaluation(text) => format!("{text} evaluating rule: {rule}"),
            Failure::Budget => failure.to_string(),
            Failure::Call => {
                format!(
                    "'{failure}': no further validation rules will be run due to call cost exceeds limit for rule: {rule}"
                )
            }
        }
    }

    /// Message of a violated rule; an error if the budget is exhausted.
    fn explain(&self, scope: &Context<'_>, budget: &mut Budget) -> Result<String, String> {
        match self.message_program.as_ref().map(|(source, program)| (source, program.execute(scope, budget))) {
            Some((_, Ok(Cel::String(text)))) => {
                let trimmed = text.trim();
                if !trimmed.is_empty() && !trimmed.contains('\n') && trimmed.len() <= MAX_MESSAGE {
                    return Ok(trimmed.to_owned());
                }
            }
            Some((_, Err(Failure::Budget))) => {
                const SPENT: &str = "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run";
                return Err(SPENT.to_owned());
            }
            Some((source, Err(Failure::Call))) => {
                return Err(format!(
                    "no further validation rules will be run due to call cost exceeds limit for messageExpression: {source:?}"
                ));
            }
            _ => {}
        }
        Ok(if self.message.is_empty() { format!("failed rule: {}", self.source.trim()) } else { self.message.clone() })
    }

    /// The path that a rule reports.
    fn path_of(&self, name: &str) -> String {
        let joins = name.is_empty() || self.field_path.is_empty() || self.field_path.starts_with('[');
        shown(&format!("{name}{}{}", if joins { "" } else { "." }, self.field_path))
    }

    fn error(&self, value: &Value, name: &str, detail: String) -> FieldError {
        let field = self.path_of(name);
        // Objects and lists are not repeated in the message.
        let shown = (!value.is_object() && !value.is_array()).then(|| printed(value));
        match self.reason.as_str() {
            "FieldValueForbidden" => FieldError::forbidden(field, detail),
            "FieldValueRequired" => FieldError::required(field, detail),
            "FieldValueDuplicate" => FieldError::new(FieldErrorKind::Duplicate, field, shown, ""),
            _ => FieldError::new(FieldErrorKind::Invalid, field, shown, detail),
        }
    }
}

/// A path as errors print it.
fn shown(path: &str) -> String {
    if path.is_empty() { "<nil>".to_owned() } else { path.to_owned() }
}
