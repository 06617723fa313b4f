//! Evaluation of a validating policy's validations, variables and audit annotations for one write and set of
//! parameters.

use std::collections::HashMap;
use std::sync::Arc;

use crowsnest_cel::{Budget, with_base_scope};
use crowsnest_registry::admission::expression::{Inputs, error_prefix, evaluate_conditions};
use kube::core::cel::cel::objects::{Key, Map};
use kube::core::cel::cel::{Context, Value as Cel};

use super::config::{Policy, Validation};

/// Maximum size of a `messageExpression`'s result; a longer one is ignored.
const MAX_MESSAGE_BYTES: usize = 5 * 1024;

/// A failed validation, or an expression that could not be evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Index of the validation.
    pub index: usize,
    pub message: String,
    /// Reason for the Status; `None` means `Invalid`.
    pub reason: Option<String>,
}

/// Result of a policy.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub violations: Vec<Violation>,
    /// Audit annotations: key without the name of the policy, and value.
    pub audit_annotations: Vec<(String, String)>,
    /// Errors of audit annotations that could not be evaluated, each of which denies the write.
    pub failed_audit_annotations: Vec<String>,
}

/// Evaluates a policy. There are no findings if its match conditions are not met.
pub fn evaluate(policy: &Policy, inputs: &Inputs<'_>) -> Findings {
    with_base_scope(|base| {
        let mut findings = Findings::default();
        match conditions_hold(policy, inputs, base) {
            Ok(true) => {}
            Ok(false) => return findings,
            Err(message) => {
                if !policy.ignores_failure {
                    findings.violations.push(Violation { index: 0, message, reason: None });
                }
                return findings;
            }
        }
        let mut scope = inputs.scope(base);
        let mut budget = Budget::for_rules();
        let failed = bind_variables(policy, &mut scope, &mut budget);
        for (index, validation) in policy.validations.iter().enumerate() {
            match validation.expression.evaluate(&scope, &mut budget) {
                Ok(Cel::Bool(true)) => {}
                Ok(_) => {
                    let message = violation_message(validation, &scope, &mut budget);
                    findings.violations.push(Violation { index, message, reason: validation.reason.clone() });
                }
                Err(_) if policy.ignores_failure => {}
                Err(error) => {
                    let message = failed.expression_error(&validation.expression.source, error);
                    findings.violations.push(Violation { index, message, reason: None });
                }
            }
        }
        evaluate_audit_annotations(policy, &scope, &failed, &mut findings);
        findings
    })
}

/// True if all match conditions are met; they cannot access the namespace.
pub(super) fn conditions_hold(policy: &Policy, inputs: &Inputs<'_>, base: &Context<'_>) -> Result<bool, String> {
    match policy.conditions.is_empty() {
        true => Ok(true),
        false => evaluate_conditions(&policy.conditions, &Inputs { namespace: None, ..*inputs }.scope(base)),
    }
}

/// Names and errors of variables that could not be evaluated. Only expressions that use them fail.
pub(super) struct FailedVariables(Vec<(String, String)>);

impl FailedVariables {
    /// Error of a failed expression: that of the failed variable that it uses, otherwise its own, `reason`.
    pub(super) fn expression_error(&self, source: &str, reason: String) -> String {
        self.variable_error(source).map_or(reason, |error| format!("{}{error}", error_prefix(source)))
    }

    /// Error of the first failed variable that an expression uses.
    fn variable_error(&self, source: &str) -> Option<String> {
        let is_used = |name: &str| {
            let path = format!("variables.{name}");
            source.match_indices(&path).any(|(offset, _)| {
                !source[offset + path.len()..].starts_with(|next: char| next.is_alphanumeric() || next == '_')
            })
        };
        let (name, cause) = self.0.iter().find(|(name, _)| is_used(name))?;
        Some(format!("composited variable {name:?} fails to evaluate: {cause}"))
    }
}

/// Evaluates the variables in order, since each can use the preceding ones, and adds them to the scope.
pub(super) fn bind_variables(policy: &Policy, scope: &mut Context<'_>, budget: &mut Budget) -> FailedVariables {
    let (mut values, mut failed) = (HashMap::new(), FailedVariables(Vec::new()));
    let map = |values: &HashMap<Key, Cel>| Cel::Map(Map { map: Arc::new(values.clone()) });
    scope.add_variable_from_value("variables", map(&values));
    for (name, expression) in &policy.variables {
        match expression.evaluate(scope, budget) {
            Ok(value) => {
                values.insert(Key::String(Arc::new(name.clone())), value);
                scope.add_variable_from_value("variables", map(&values));
            }
            Err(reason) => {
                let own_error = || reason.strip_prefix(&error_prefix(&expression.source)).unwrap_or(&reason).to_owned();
                let reason = failed.variable_error(&expression.source).unwrap_or_else(own_error);
                failed.0.push((name.clone(), reason));
            }
        }
    }
    failed
}

/// The message of a failed validation: the result of `messageExpression` if it is usable, `message`, or the expression.
fn violation_message(validation: &Validation, scope: &Context<'_>, budget: &mut Budget) -> String {
    if let Some(Ok(Cel::String(text))) = validation.message_expression.as_ref().map(|e| e.evaluate(scope, budget)) {
        let text = text.trim();
        if !text.is_empty() && !text.contains('\n') && text.len() <= MAX_MESSAGE_BYTES {
            return text.to_owned();
        }
    }
    match validation.message.trim() {
        "" => format!("failed expression: {}", validation.expression.source.trim()),
        message => message.to_owned(),
    }
}

fn evaluate_audit_annotations(policy: &Policy, scope: &Context<'_>, failed: &FailedVariables, findings: &mut Findings) {
    let mut budget = Budget::for_rules();
    for (key, expression) in &policy.audit_annotations {
        match expression.evaluate(scope, &mut budget) {
            Ok(Cel::Null) => {}
            Ok(Cel::String(value)) => match value.trim() {
                "" => {}
                value => findings.audit_annotations.push((key.clone(), value.to_owned())),
            },
            Ok(other) => findings.failed_audit_annotations.push(format!(
                "valueExpression '{}' resulted in unsupported return type: {}. Return type must be either string or null.",
                expression.source,
                other.type_of()
            )),
            Err(_) if policy.ignores_failure => {}
            Err(reason) => findings.failed_audit_annotations.push(failed.expression_error(&expression.source, reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crowsnest_apimachinery::rbac::{Action, Decision};
    use crowsnest_apimachinery::user::UserInfo;
    use rstest::rstest;
    use serde_json::{Value, json};

    use crowsnest_cel::authorizer::{AccessChecker, UserAuthorizer};

    use super::*;

    /// Allows all users to read deployments and `/healthz`, and service accounts everything.
    struct ReadOnlyAccess;

    impl AccessChecker for ReadOnlyAccess {
        fn decide(&self, user: &UserInfo, action: &Action) -> Decision {
            let is_allowed = user.name.starts_with("system:serviceaccount:")
                || match action {
                    Action::Resource { verb, resource, .. } => verb == "get" && resource == "deployments",
                    Action::Path { verb, path } => verb == "get" && path == "/healthz",
                };
            match is_allowed {
                true => Decision::Allowed { reason: "allowed by the test".into() },
                false => Decision::NoOpinion { reason: String::new() },
            }
        }
    }

    fn policy(spec: Value) -> Policy {
        Policy::parse(&json!({"metadata": {"name": "p"}, "spec": spec}))
    }

    /// Evaluates a policy on an update of a Deployment from 1 to 9 replicas by user `eve`.
    fn findings_of(spec: Value) -> Findings {
        let object = json!({
            "metadata": {"name": "d", "labels": {"example.com/team-name": "a"}},
            "spec": {"replicas": 9, "namespace": "x"},
        });
        let (request, params) = (json!({"operation": "UPDATE", "userInfo": {"username": "eve"}}), json!({"max": 5}));
        let namespace = json!({"metadata": {"name": "ns"}});
        let old = json!({"spec": {"replicas": 1}});
        let request_action = Action::Resource {
            verb: String::new(),
            group: "apps".into(),
            resource: "deployments".into(),
            subresource: String::new(),
            namespace: "ns".into(),
            name: "d".into(),
        };
        let user_authorizer =
            UserAuthorizer::new(Arc::new(ReadOnlyAccess), UserInfo::new("eve", ["system:authenticated"]));
        evaluate(
            &policy(spec),
            &Inputs {
                object: Some(&object),
                old: Some(&old),
                request: &request,
                namespace: Some(&namespace),
                params: Some(&params),
                authorizer: Some((&user_authorizer, &request_action)),
            },
        )
    }

    #[rstest]
    #[case::old_object("object.spec.replicas <= 9 && oldObject.spec.replicas == 1", None)]
    #[case::label_with_special_characters("object.metadata.labels['example.com/team-name'] == 'a'", None)]
    #[case::parameters(
        "object.spec.replicas <= params.max",
        Some("failed expression: object.spec.replicas <= params.max")
    )]
    #[case::variables("variables.many == false", Some("failed expression: variables.many == false"))]
    #[case::variable_that_uses_a_variable("variables.both", None)]
    #[case::request(
        "request.userInfo.username != 'eve'",
        Some("failed expression: request.userInfo.username != 'eve'")
    )]
    #[case::namespace("namespaceObject.metadata.name == 'ns'", None)]
    #[case::failed_variable(
        "variables.broken == 1",
        Some(
            "expression 'variables.broken == 1' resulted in error: composited variable \"broken\" fails to evaluate: no such key: none"
        )
    )]
    #[case::unused_failed_variable("has(object.spec.none) ? variables.broken == 1 : true", None)]
    #[case::authorized_request("authorizer.requestResource.check('get').allowed()", None)]
    #[case::unauthorized_request(
        "authorizer.group('').resource('pods').namespace('ns').check('get').allowed()",
        Some("failed expression: authorizer.group('').resource('pods').namespace('ns').check('get').allowed()")
    )]
    #[case::authorization_reason("authorizer.path('/healthz').check('get').reason() == 'allowed by the test'", None)]
    #[case::authorized_service_account(
        "authorizer.serviceAccount('ns', 'a').group('').resource('pods').subresource('log').name('p').check('get').allowed()",
        None
    )]
    #[case::invalid_service_account_namespace(
        "authorizer.serviceAccount('no name', 'a').path('/').check('get').allowed()",
        Some(
            "expression 'authorizer.serviceAccount('no name', 'a').path('/').check('get').allowed()' resulted in error: Invalid service account namespace"
        )
    )]
    #[case::exceeded_cost_limit(
        "[1, 2, 3].all(x, authorizer.requestResource.check('get').allowed())",
        Some(
            "expression '[1, 2, 3].all(x, authorizer.requestResource.check('get').allowed())' resulted in error: operation cancelled: actual cost limit exceeded"
        )
    )]
    fn expressions_are_evaluated(#[case] expression: &str, #[case] message: Option<&str>) {
        let findings = findings_of(json!({
            "variables": [
                {"name": "many", "expression": "object.spec.replicas > 3"},
                {"name": "both", "expression": "variables.many && true"},
                {"name": "broken", "expression": "object.spec.none"},
            ],
            "validations": [{"expression": expression}],
        }));
        let messages: Vec<&str> = findings.violations.iter().map(|violation| violation.message.as_str()).collect();
        assert_eq!(messages, message.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn usable_message_expressions_take_precedence() {
        let expression = "object.spec.replicas < 5";
        let cases = [
            (json!({}), "failed expression: object.spec.replicas < 5"),
            (json!({"message": " too many "}), "too many"),
            (json!({"message": "m", "messageExpression": "'has ' + string(object.spec.replicas)"}), "has 9"),
            (json!({"message": "m", "messageExpression": "'a\\nb'"}), "m"),
            (json!({"message": "m", "messageExpression": "object.none"}), "m"),
        ];
        for (mut validation, message) in cases {
            validation["expression"] = expression.into();
            validation["reason"] = "Forbidden".into();
            let violation = Violation { index: 0, message: message.into(), reason: Some("Forbidden".into()) };
            assert_eq!(findings_of(json!({"validations": [validation]})).violations, [violation]);
        }
    }

    #[test]
    fn failures_deny_unless_ignored() {
        let failing = json!([{"name": "c", "expression": "object.none == 1"}]);
        let cases = [
            (json!({"matchConditions": failing, "validations": [{"expression": "false"}]}), 1),
            (
                json!({"matchConditions": failing, "validations": [{"expression": "false"}], "failurePolicy": "Ignore"}),
                0,
            ),
            (
                json!({"matchConditions": [{"name": "c", "expression": "false"}], "validations": [{"expression": "false"}]}),
                0,
            ),
            (json!({"validations": [{"expression": "object.none == 1"}]}), 1),
            (json!({"validations": [{"expression": "object.none == 1"}], "failurePolicy": "Ignore"}), 0),
            (json!({"validations": [{"expression": "1 +"}]}), 1),
        ];
        for (spec, count) in cases {
            assert_eq!(findings_of(spec.clone()).violations.len(), count, "{spec}");
        }
    }

    #[test]
    fn audit_annotations_must_be_strings() {
        let findings = findings_of(json!({"auditAnnotations": [
            {"key": "a", "valueExpression": "'replicas: ' + string(object.spec.replicas)"},
            {"key": "b", "valueExpression": "object.spec.replicas > 99 ? 'many' : null"},
            {"key": "c", "valueExpression": "' '"},
            {"key": "d", "valueExpression": "object.none"},
        ]}));
        assert_eq!(findings.audit_annotations, [("a".to_owned(), "replicas: 9".to_owned())]);
        assert_eq!(
            findings.failed_audit_annotations,
            ["expression 'object.none' resulted in error: no such key: none"]
        );
    }
}
