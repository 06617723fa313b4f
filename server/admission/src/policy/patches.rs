//! Applies the mutations of policies to objects. Has no side effects.

use crowsnest_apimachinery::json_patch::CopiedBytes;
use crowsnest_cel::{Budget, to_json};
use crowsnest_registry::admission::expression::Expression;
use crowsnest_schema::apply::{typed, validate};
use crowsnest_schema::{ListType, Schema, Type};
use kube::core::cel::cel::{Context, Value as Cel};
use serde_json::Value;

use super::config::Mutation;
use super::evaluation::FailedVariables;
use crate::webhook::patching;

/// Evaluates the expression of a mutation and applies its result to `object`. `scope` has the policy's variables,
/// `failed` those that could not be evaluated.
pub fn apply_mutation(
    mutation: &Mutation,
    object: &Value,
    schema: Option<&Schema>,
    scope: &Context<'_>,
    failed: &FailedVariables,
) -> Result<Value, String> {
    let mut budget = Budget::for_rules();
    let mut evaluate = |expression: &Expression| -> Result<Value, String> {
        let value = expression.evaluate(scope, &mut budget);
        let value = value.map_err(|reason| failed.expression_error(&expression.source, reason))?;
        match (mutation, &value) {
            (Mutation::ApplyConfiguration(_), Cel::Map(_)) | (Mutation::JsonPatch(_), Cel::List(_)) => to_json(&value),
            (Mutation::ApplyConfiguration(_), other) => {
                Err(format!("unsupported return type from ApplyConfiguration expression: {}", other.type_of()))
            }
            (Mutation::JsonPatch(_), _) => {
                Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned())
            }
        }
    };
    match mutation {
        Mutation::ApplyConfiguration(expression) => merge_configuration(object, evaluate(expression)?, schema),
        Mutation::JsonPatch(expression) => {
            let patched = apply_json_patch(object, &evaluate(expression)?)?;
            let is_built_in = schema.is_some_and(|schema| schema.name.is_some());
            match is_built_in {
                true => patching::decode_patched(object, patched)
                    .map_err(|reason| format!("Internal error occurred: {reason}")),
                false => Ok(patched),
            }
        }
    }
}

/// Merges an apply configuration into an object without changing field ownership.
fn merge_configuration(object: &Value, mut configuration: Value, schema: Option<&Schema>) -> Result<Value, String> {
    for key in ["apiVersion", "kind"] {
        configuration[key] = object[key].clone();
    }
    let errors = validate::validation_errors(schema, &configuration);
    if !errors.is_empty() {
        let reason = errors.join("\n");
        return Err(format!("error applying patch: failed to convert patch object to typed object: {reason}"));
    }
    let mut atomic_paths = Vec::new();
    if let Some(schema) = schema {
        find_atomic_fields(schema, &configuration, "", &mut atomic_paths);
    }
    if !atomic_paths.is_empty() {
        let paths = atomic_paths.join(", ");
        return Err(format!(
            "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {paths}"
        ));
    }
    Ok(typed::merge(schema, object, &configuration))
}

/// Finds the paths of atomic fields, which a configuration must not set: it would remove their other contents.
fn find_atomic_fields(schema: &Schema, value: &Value, path: &str, found: &mut Vec<String>) {
    match (value, schema.ty) {
        (Value::Object(fields), Type::Object) => {
            if schema.is_atomic {
                found.push(path.to_owned());
            }
            for (key, value) in fields {
                if let Some(field) = schema.field(key) {
                    find_atomic_fields(&field.node, value, &format!("{path}.{key}"), found);
                }
            }
        }
        (Value::Array(items), Type::Array) => {
            if matches!(schema.list_type, ListType::Atomic) {
                found.push(path.to_owned());
            }
            for (index, item) in items.iter().enumerate() {
                if let Some(schema) = schema.items.as_deref() {
                    find_atomic_fields(schema, item, &format!("{path}[{index}]"), found);
                }
            }
        }
        _ => {}
    }
}

/// Applies a JSON patch; returns the original object if one of its tests fails.
fn apply_json_patch(object: &Value, operations: &Value) -> Result<Value, String> {
    let (mut current, mut copied) = (object.clone(), CopiedBytes::default());
    for operation in operations.as_array().into_iter().flatten() {
        match patching::apply_operation(&mut current, operation, &mut copied) {
            Ok(()) => {}
            Err(_) if operation["op"] == "test" => return Ok(object.clone()),
            Err(reason) => return Err(format!("JSON Patch: {reason}")),
        }
    }
    Ok(current)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::config::Policy;
    use super::super::evaluation::bind_variables;
    use super::*;
    use crowsnest_cel::with_base_scope;
    use crowsnest_registry::admission::expression::Inputs;
    use crowsnest_schema::schema_set::SchemaSet;

    /// Applies a mutation to a Deployment.
    fn mutate(mutation: Value) -> Result<Value, String> {
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "d", "labels": {"a": "1"}},
            "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}},
        });
        let spec = json!({
            "variables": [{"name": "n", "expression": "object.spec.replicas + 1"}],
            "mutations": [mutation],
        });
        let policy = Policy::parse(&json!({"metadata": {"name": "p"}, "spec": spec}));
        let schema = SchemaSet::builtin().kind("apps", "v1", "Deployment");
        let request = json!({"operation": "CREATE"});
        with_base_scope(|base| {
            let inputs = Inputs {
                object: Some(&object),
                old: None,
                request: &request,
                namespace: None,
                params: None,
                authorizer: None,
            };
            let mut scope = inputs.scope(base);
            let failed = bind_variables(&policy, &mut scope, &mut Budget::for_rules());
            apply_mutation(&policy.mutations[0], &object, schema.as_deref(), &scope, &failed)
        })
    }

    fn apply(expression: &str) -> Value {
        json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
    }

    fn patch(expression: &str) -> Value {
        json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
    }

    #[rstest]
    #[case::fields(apply("Object{spec: Object.spec{replicas: variables.n}}"), "/spec/replicas", json!(3))]
    #[case::maps(
        apply("Object{metadata: Object.metadata{labels: {'b/c': '2'}}}"),
        "/metadata/labels",
        json!({"a": "1", "b/c": "2"})
    )]
    #[case::added_list_element(
        apply(
            "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
               containers: [Object.spec.template.spec.containers{name: 'side', image: 's'}]}}}}"
        ),
        "/spec/template/spec/containers",
        json!([{"name": "c", "image": "i"}, {"name": "side", "image": "s"}])
    )]
    #[case::existing_list_element(
        apply(
            "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
               containers: object.spec.template.spec.containers.map(c,
                 Object.spec.template.spec.containers{name: c.name, imagePullPolicy: 'Always'})}}}}"
        ),
        "/spec/template/spec/containers",
        json!([{"name": "c", "image": "i", "imagePullPolicy": "Always"}])
    )]
    #[case::optional_fields(
        apply("Object{spec: Object.spec{?replicas: object.spec.?none, ?paused: optional.of(true)}}"),
        "/spec",
        json!({"replicas": 2, "paused": true, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}})
    )]
    #[case::operations(
        patch(
            "[JSONPatch{op: 'test', path: '/spec/replicas', value: 2},
              JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('b/c'), value: 'x'}]"
        ),
        "/metadata/labels",
        json!({"a": "1", "b/c": "x"})
    )]
    #[case::objects_as_values(
        patch("[JSONPatch{op: 'replace', path: '/spec/template/spec', value: Object.spec.template.spec{nodeName: 'n'}}]"),
        "/spec/template/spec",
        json!({"containers": null, "nodeName": "n"})
    )]
    #[case::unknown_field_is_dropped(
        patch("[JSONPatch{op: 'add', path: '/spec/nothing', value: 1}]"),
        "/spec/replicas",
        json!(2)
    )]
    #[case::failed_test_keeps_the_object(
        patch(
            "[JSONPatch{op: 'add', path: '/spec/replicas', value: 9},
              JSONPatch{op: 'test', path: '/spec/replicas', value: 1}]"
        ),
        "/spec/replicas",
        json!(2)
    )]
    fn mutations_are_applied(#[case] mutation: Value, #[case] pointer: &str, #[case] expected: Value) {
        let object = mutate(mutation).unwrap();
        assert_eq!(object.pointer(pointer), Some(&expected));
    }

    #[rstest]
    #[case::atomic(
        apply(
            "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{tolerations: []}}}}"
        ),
        "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.template.spec.tolerations"
    )]
    #[case::wrong_object_type(
        apply("Object{spec: Object.status{replicas: 1}}"),
        "compilation error: compilation failed: type mismatch: unexpected type name \"Object.status\", expected \"Object.spec\""
    )]
    #[case::missing_path(
        patch("[JSONPatch{op: 'remove', path: '/spec/none'}]"),
        "JSON Patch: error in remove for path: '/spec/none': Unable to remove nonexistent key: none: missing value"
    )]
    #[case::failed_evaluation(
        apply("Object{spec: Object.spec{replicas: object.spec.none}}"),
        "expression 'Object{spec: Object.spec{replicas: object.spec.none}}' resulted in error: no such key: none"
    )]
    fn errors_match_kube_apiserver(#[case] mutation: Value, #[case] expected: &str) {
        assert_eq!(mutate(mutation).unwrap_err(), expected);
    }
}
