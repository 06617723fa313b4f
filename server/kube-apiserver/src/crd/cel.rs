//! `x-kubernetes-validations`: rules compiled once per schema and evaluated on new and old objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind, go_json, go_value};
use crowsnest_cel::json::to_cel;
use crowsnest_cel::{Budget, Failure, Program, ValueKind, with_base_scope};
use crowsnest_schema::patch::go_type;
use kube::core::cel::cel::objects::OptionalValue;
use kube::core::cel::cel::{Context, Value as Cel};
use serde_json::Value;

use super::{field_paths, values};

/// Maximum length of the result of a `messageExpression` in bytes.
const MAX_MESSAGE_BYTES: usize = 5 * 1024;

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
    uses_old_self: bool,
    is_old_self_optional: bool,
}

/// The rules of a schema in the structure of its properties and items. Parts without rules are omitted.
#[derive(Debug, Default)]
pub struct Rules {
    own_rules: Vec<Rule>,
    properties: BTreeMap<String, Rules>,
    items: Option<Box<Rules>>,
    additional: Option<Box<Rules>>,
}

/// State of an evaluation: errors so far, and the remaining cost budget.
struct Evaluation {
    errors: Vec<FieldError>,
    /// Violations in unchanged values, which are returned as warnings.
    unchanged_violations: Vec<FieldError>,
    budget: Budget,
    /// True if the budget is exhausted and no further rules are evaluated.
    is_budget_exhausted: bool,
}

/// A value to check, and the value that it replaces.
#[derive(Clone, Copy)]
struct CheckedValue<'v> {
    schema: &'v Value,
    new: &'v Value,
    /// None for a new object, and if the replaced object has no such value.
    old: Option<&'v Value>,
    /// Path of the value.
    name: &'v str,
    /// True if an enclosing value is unchanged.
    is_unchanged: bool,
}

impl Rules {
    /// Compiles all rules in `schema`; `None` if there are none. Rules that do not compile are skipped: validation
    /// of the CRD has rejected them.
    pub fn compile(schema: &Value) -> Option<Self> {
        let own_rules: Vec<Rule> = schema
            .get("x-kubernetes-validations")
            .and_then(Value::as_array)
            .filter(|rules| !rules.is_empty())
            .map(|rules| {
                let kind = ValueKind::from_schema(schema);
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
        let compile_nested =
            |key: &str| schema.get(key).filter(|s| s.is_object()).and_then(Self::compile).map(Box::new);
        let (items, additional) = (compile_nested("items"), compile_nested("additionalProperties"));
        let is_empty = own_rules.is_empty() && properties.is_empty() && items.is_none() && additional.is_none();
        (!is_empty).then_some(Self { own_rules, properties, items, additional })
    }

    /// Evaluates the rules on `new`, whose path is `name`, and returns errors and warnings. `old` is set for an update:
    /// transition rules are evaluated, and violations in unchanged values are only warnings.
    pub fn check(
        &self,
        schema: &Value,
        new: &Value,
        old: Option<&Value>,
        name: &str,
    ) -> (Vec<FieldError>, Vec<FieldError>) {
        let mut evaluation = Evaluation {
            errors: Vec::new(),
            unchanged_violations: Vec::new(),
            budget: Budget::for_rules(),
            is_budget_exhausted: false,
        };
        let checked = CheckedValue { schema, new, old, name, is_unchanged: false };
        with_base_scope(|base| self.walk(base, checked, &mut evaluation));
        (evaluation.errors, evaluation.unchanged_violations)
    }

    fn walk(&self, base: &Context<'_>, checked: CheckedValue<'_>, evaluation: &mut Evaluation) {
        let CheckedValue { schema, new, old, name, is_unchanged } = checked;
        if new.is_null() || evaluation.is_budget_exhausted {
            return;
        }
        let old = old.filter(|old| !old.is_null());
        let is_unchanged = is_unchanged || old.is_some_and(|old| values::is_unchanged(schema, old, new));
        if !self.own_rules.is_empty() {
            let mut scope = base.new_inner_scope();
            scope.add_variable_from_value("self", to_cel(schema, new));
            if let Some(old) = old {
                scope.add_variable_from_value("oldSelf", to_cel(schema, old));
            }
            for rule in &self.own_rules {
                rule.check(&scope, CheckedValue { schema, new, old, name, is_unchanged }, evaluation);
                if evaluation.is_budget_exhausted {
                    return;
                }
            }
        }
        match new {
            Value::Object(members) => {
                for (key, member) in members {
                    let old = old.and_then(|o| o.get(key));
                    if let Some((rules, schema)) =
                        self.properties.get(key).zip(schema.pointer("/properties").and_then(|p| p.get(key)))
                    {
                        let name = &child_path(name, key);
                        rules.walk(base, CheckedValue { schema, new: member, old, name, is_unchanged }, evaluation);
                    } else if let Some((rules, schema)) =
                        self.additional.as_deref().zip(schema.get("additionalProperties"))
                    {
                        let name = &format!("{name}[{key}]");
                        rules.walk(base, CheckedValue { schema, new: member, old, name, is_unchanged }, evaluation);
                    }
                }
            }
            Value::Array(items) => {
                if let Some((rules, item_schema)) = self.items.as_deref().zip(schema.get("items")) {
                    for (index, item) in items.iter().enumerate() {
                        let old = old.and_then(|old| values::find_correlated_item(schema, old, item));
                        let name = &format!("{name}[{index}]");
                        let checked = CheckedValue { schema: item_schema, new: item, old, name, is_unchanged };
                        rules.walk(base, checked, evaluation);
                    }
                }
            }
            _ => {}
        }
    }
}

fn child_path(name: &str, key: &str) -> String {
    if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") }
}

fn compile_rule(schema: &Value, rule: &Value, kind: &ValueKind) -> Option<Rule> {
    let text = |key: &str| rule.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    let source = text("rule");
    let is_old_self_optional = rule.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or(false);
    let old = if is_old_self_optional { kind.clone().optional() } else { kind.clone() };
    let variables = [("self", kind.clone()), ("oldSelf", old)];
    let program = Program::compile_with_kinds(&source, &variables).ok()?;
    let uses_old_self = program.references().has_variable("oldSelf");
    let message_expression = text("messageExpression");
    Some(Rule {
        uses_old_self,
        program,
        message: text("message").trim().to_owned(),
        message_program: Program::compile_with_kinds(&message_expression, &variables)
            .ok()
            .filter(|_| !message_expression.is_empty())
            .map(|program| (message_expression, program)),
        reason: text("reason"),
        field_path: field_paths::resolve(&text("fieldPath"), schema, true)
            .map(|found| found.display)
            .unwrap_or_default(),
        is_old_self_optional,
        source,
    })
}

impl Rule {
    /// Evaluates the rule. `checked.is_unchanged` is true if the value or an enclosing one is unchanged.
    fn check(&self, scope: &Context<'_>, checked: CheckedValue<'_>, evaluation: &mut Evaluation) {
        let CheckedValue { schema, new: value, old, name, is_unchanged } = checked;
        if self.uses_old_self && old.is_none() && !self.is_old_self_optional {
            return;
        }
        let mut inner;
        let with_old = if self.is_old_self_optional {
            inner = scope.new_inner_scope();
            // With `optionalOldSelf`, `oldSelf` is an optional.
            let optional = old.map_or_else(OptionalValue::none, |old| OptionalValue::of(to_cel(schema, old)));
            inner.add_variable_from_value("oldSelf", Cel::Opaque(Arc::new(optional)));
            &inner
        } else {
            scope
        };
        // Evaluation errors show the type of the value.
        let kind = go_json(schema.get("type").and_then(Value::as_str).unwrap_or(""));
        let invalid =
            |path: &str, detail: String| FieldError::new(FieldErrorKind::Invalid, path, Some(kind.clone()), detail);
        if let Some(reason) = conversion_error(schema, value) {
            let detail = format!("{reason} evaluating rule: {}", self.displayed_rule());
            evaluation.errors.push(invalid(&format_path(name), detail));
            return;
        }
        match self.program.execute(with_old, &mut evaluation.budget) {
            Ok(Cel::Bool(true)) => {}
            Ok(_) => match self.violation_message(scope, &mut evaluation.budget) {
                Ok(detail) => {
                    let error = self.error(value, name, detail);
                    let errors = if is_unchanged && !self.uses_old_self {
                        &mut evaluation.unchanged_violations
                    } else {
                        &mut evaluation.errors
                    };
                    errors.push(error);
                }
                Err(reason) => {
                    evaluation.is_budget_exhausted = true;
                    evaluation.errors.push(invalid(&self.error_path(name), reason));
                }
            },
            Err(failure) => {
                evaluation.is_budget_exhausted = !matches!(failure, Failure::Evaluation(_));
                evaluation.errors.push(invalid(&format_path(name), self.failure_message(&failure)));
            }
        }
    }

    /// The rule as errors of its evaluation name it.
    fn displayed_rule(&self) -> &str {
        if self.message.is_empty() { self.source.trim() } else { &self.message }
    }

    /// Message for a rule that could not be evaluated.
    fn failure_message(&self, failure: &Failure) -> String {
        let rule = self.displayed_rule();
        match failure {
            Failure::Evaluation(text) if text.starts_with("no such overload") => format!(
                "'{text}': call arguments did not match a supported operator, function or macro signature for rule: {rule}"
            ),
            Failure::Evaluation(text) => format!("{text} evaluating rule: {rule}"),
            Failure::Budget => failure.to_string(),
            Failure::CostLimit => {
                format!(
                    "'{failure}': no further validation rules will be run due to call cost exceeds limit for rule: {rule}"
                )
            }
        }
    }

    /// Message of a violated rule; an error if the budget is exhausted.
    fn violation_message(&self, scope: &Context<'_>, budget: &mut Budget) -> Result<String, String> {
        match self.message_program.as_ref().map(|(source, program)| (source, program.execute(scope, budget))) {
            Some((_, Ok(Cel::String(text)))) => {
                let trimmed = text.trim();
                if !trimmed.is_empty() && !trimmed.contains('\n') && trimmed.len() <= MAX_MESSAGE_BYTES {
                    return Ok(trimmed.to_owned());
                }
            }
            Some((_, Err(Failure::Budget))) => {
                const BUDGET_EXHAUSTED: &str = "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run";
                return Err(BUDGET_EXHAUSTED.to_owned());
            }
            Some((source, Err(Failure::CostLimit))) => {
                return Err(format!(
                    "no further validation rules will be run due to call cost exceeds limit for messageExpression: {source:?}"
                ));
            }
            _ => {}
        }
        Ok(if self.message.is_empty() { format!("failed rule: {}", self.source.trim()) } else { self.message.clone() })
    }

    /// The path that a rule reports.
    fn error_path(&self, name: &str) -> String {
        let needs_no_dot = name.is_empty() || self.field_path.is_empty() || self.field_path.starts_with('[');
        format_path(&format!("{name}{}{}", if needs_no_dot { "" } else { "." }, self.field_path))
    }

    fn error(&self, value: &Value, name: &str, detail: String) -> FieldError {
        let field = self.error_path(name);
        // Objects and lists are not repeated in the message.
        let printed_value = (!value.is_object() && !value.is_array()).then(|| go_value(value));
        match self.reason.as_str() {
            "FieldValueForbidden" => FieldError::forbidden(field, detail),
            "FieldValueRequired" => FieldError::required(field, detail),
            "FieldValueDuplicate" => FieldError::new(FieldErrorKind::Duplicate, field, printed_value, ""),
            _ => FieldError::new(FieldErrorKind::Invalid, field, printed_value, detail),
        }
    }
}

/// Error of each rule of a value that does not have the scalar type of its schema: kube-apiserver cannot convert such a
/// value for CEL.
fn conversion_error(schema: &Value, value: &Value) -> Option<String> {
    let expected = match schema.get("type").and_then(Value::as_str)? {
        "string" if !value.is_string() => "string",
        "integer" if !value.is_number() => "int",
        "boolean" if !value.is_boolean() => "bool",
        _ => return None,
    };
    Some(format!("invalid data, expected {expected}, got {}", go_type(value)))
}

/// A path as errors print it.
fn format_path(path: &str) -> String {
    if path.is_empty() { "<nil>".to_owned() } else { path.to_owned() }
}
