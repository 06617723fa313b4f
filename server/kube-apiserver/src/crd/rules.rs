//! Validation of `x-kubernetes-validations` in a CRD: fields, compilation and estimated cost. Has no side effects.

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_cel::instantiate;
use crowsnest_cel::typing::{CheckedExpression, DeclType, Declarations, Type, check};
use serde_json::Value;

use super::keywords::SchemaContext;
use super::rule_costs::RuleCosts;
use super::structural::{get, is_true, string};
use super::{field_paths, internal_types};

const REASONS: &[&str] = &["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"];
/// Name of the type of `self`. kube-apiserver appends a number that differs on each validation.
const SELF_TYPE: &str = "selfType0";

fn rules_of(schema: &Value) -> impl Iterator<Item = (usize, &Value)> {
    get(schema, "x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten().enumerate()
}

/// Validates the fields of rules without compiling expressions.
pub(super) fn check_fields(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (index, rule) in rules_of(schema) {
        let at = |field: &str| format!("{path}.x-kubernetes-validations[{index}].{field}");
        let (source, message) = (string(rule, "rule").trim(), string(rule, "message"));
        let has_line_break = |text: &str| text.contains(['\n', '\r']);
        if source.is_empty() {
            errors.push(FieldError::required(at("rule"), "rule is not specified"));
        } else if !message.is_empty() && message.trim().is_empty() {
            errors.push(FieldError::invalid(at("message"), message, "must be non-empty if specified"));
        } else if has_line_break(message.trim()) {
            errors.push(FieldError::invalid(at("message"), message, "must not contain line breaks"));
        } else if has_line_break(source) && message.trim().is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(at("message"), detail));
        }
        let expression = string(rule, "messageExpression");
        if !expression.is_empty() && expression.trim().is_empty() {
            let detail = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(at("messageExpression"), detail));
        }
        if let Some(reason) = get(rule, "reason").filter(|reason| !REASONS.iter().any(|supported| reason == supported))
        {
            errors.push(FieldError::not_supported_sorted(at("reason"), reason, REASONS));
        }
        let field = string(rule, "fieldPath");
        if !field.is_empty() {
            check_field_path(schema, field, &at("fieldPath"), errors);
        }
    }
}

/// Validates a rule's `fieldPath`, which must name declared fields.
fn check_field_path(schema: &Value, field_path: &str, at: &str, errors: &mut Vec<FieldError>) {
    if field_path.trim().is_empty() {
        errors.push(FieldError::invalid(at, field_path, "must be non-empty if specified"));
    }
    if field_path.contains(['\n', '\r']) {
        errors.push(FieldError::invalid(at, field_path, "must not contain line breaks"));
    }
    if field_paths::resolve(field_path, schema, true).is_err() {
        errors.push(FieldError::invalid(at, field_path, "must be a valid path"));
    }
}

/// Compiles the rules of a valid schema and adds their costs.
pub(super) fn check_expressions(
    schema: &Value,
    path: &str,
    context: &SchemaContext,
    costs: &mut RuleCosts,
    errors: &mut Vec<FieldError>,
) {
    if rules_of(schema).next().is_none() {
        return;
    }
    let is_resource = context.is_root || is_true(schema, "x-kubernetes-embedded-resource");
    let Some(declared) = DeclType::from_schema(schema, is_resource, SELF_TYPE) else {
        let detail = "internal error: failed to construct type information for x-kubernetes-validations rules: \
                   unable to convert structural schema to CEL declarations";
        let field = format!("{path}.x-kubernetes-validations");
        errors.push(FieldError::new(FieldErrorKind::Internal, field, None, detail));
        return;
    };
    for (index, rule) in rules_of(schema) {
        check_rule(rule, &format!("{path}.x-kubernetes-validations[{index}]"), &declared, context, costs, errors);
    }
}

/// Declares `self` and `oldSelf`, whose type is `declared`.
fn declare_variables(declared: &DeclType, is_old_self_optional: bool) -> Declarations {
    let mut declarations = Declarations::default();
    declarations.add("self", declared);
    let old = if is_old_self_optional { Type::optional(declared.cel_type.clone()) } else { declared.cel_type.clone() };
    declarations.variables.insert("oldSelf".to_owned(), old);
    declarations
}

fn check_rule(
    rule: &Value,
    at: &str,
    declared: &DeclType,
    context: &SchemaContext,
    costs: &mut RuleCosts,
    errors: &mut Vec<FieldError>,
) {
    let declarations = declare_variables(declared, is_true(rule, "optionalOldSelf"));
    let invalid = |field: &str, detail: String| {
        FieldError::new(
            FieldErrorKind::Invalid,
            format!("{at}.{field}"),
            Some(internal_types::print_rule(rule)),
            detail,
        )
    };
    let compiled = match check(string(rule, "rule"), &declarations) {
        Err(issues) => Err(format!("compilation failed: {issues}")),
        Ok(checked) if *checked.result_type() == Type::Bool => {
            let result = instantiate(string(rule, "rule")).map(|()| checked);
            result.map_err(|reason| format!("program instantiation failed: {reason}"))
        }
        Ok(_) => Err("cel expression must evaluate to a bool".to_owned()),
    };
    // Without an explicit limit, the request size limits the number of values.
    let max_values = context.max_values.unwrap_or_else(|| declared.max_count_per_request());
    let cost = compiled.as_ref().map_or(0, |checked| checked.cost(declared).saturating_mul(max_values));
    errors.extend(costs.add("estimated rule cost", format!("{at}.rule"), cost));
    match &compiled {
        Err(reason) => errors.push(invalid("rule", reason.clone())),
        Ok(_) => match check_message_expression(rule, &declarations) {
            Some(Err(reason)) => errors.push(invalid("messageExpression", reason)),
            Some(Ok(message)) => {
                let field = format!("{at}.messageExpression");
                errors.extend(costs.add("estimated messageExpression cost", field, message.cost(declared)));
            }
            None => {}
        },
    }
    if compiled.is_ok_and(|checked| checked.reads("oldSelf")) {
        if let Some(list) = &context.uncorrelated_list {
            let detail = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}");
            errors.push(FieldError::invalid(format!("{at}.rule"), &rule["rule"], detail));
        }
    } else if let Some(value) = get(rule, "optionalOldSelf") {
        let detail = "may not be set if oldSelf is not used in rule";
        errors.push(FieldError::invalid(format!("{at}.optionalOldSelf"), value, detail));
    }
}

/// Compiles the `messageExpression` of a rule; `None` if there is none.
fn check_message_expression(rule: &Value, declarations: &Declarations) -> Option<Result<CheckedExpression, String>> {
    let expression = string(rule, "messageExpression");
    if expression.is_empty() {
        return None;
    }
    Some(match check(expression, declarations) {
        Err(issues) => Err(format!("messageExpression compilation failed: {issues}")),
        Ok(checked) if *checked.result_type() == Type::String => {
            let result = instantiate(expression).map(|()| checked);
            result.map_err(|reason| format!("messageExpression instantiation failed: {reason}"))
        }
        Ok(_) => Err("messageExpression must evaluate to a string".to_owned()),
    })
}
