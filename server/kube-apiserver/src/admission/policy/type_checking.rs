//! Type checking of a ValidatingAdmissionPolicy's expressions against the matched kinds: warnings for its status,
//! with kube-apiserver's wording. They do not affect admission. Has no side effects.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_apimachinery::names::{Gvk, Gvr};
use crowsnest_cel::json::escape_field;
use crowsnest_cel::typing::{Declarations, ObjectTypes, Type, check};
use crowsnest_registry::admission::expression::{AvailableVariables, declarations};
use crowsnest_registry::catalog::CatalogSnapshot;
use crowsnest_schema::{Schema, Type as SchemaType};
use serde_json::{Value, json};

/// Number of kinds of one rule after which no further kinds are checked.
const MAX_KINDS_PER_RULE: usize = 10;

/// Kinds in the order in which warnings name them.
type Kinds = BTreeSet<Gvk>;

/// Checks the validations of a policy; returns `status.typeChecking.expressionWarnings`.
pub(super) fn expression_warnings(policy: &Value, served: &CatalogSnapshot) -> Vec<Value> {
    let spec = &policy["spec"];
    let kinds = matched_kinds(spec, served);
    let param_kind = spec.get("paramKind").filter(|kind| kind.is_object());
    let params = param_kind.and_then(|kind| {
        let (version, kind) = (kind["apiVersion"].as_str()?, kind["kind"].as_str()?);
        Some((kind.to_owned(), served.by_kind(version, kind)?.strategy.schema()?))
    });
    let declarations_by_kind: Vec<(Gvk, Declarations)> = kinds
        .into_iter()
        .filter_map(|gvk| {
            let schema = served.by_kind(&gvk.api_version(), &gvk.kind)?.strategy.schema()?;
            let mut declarations = declarations(
                AvailableVariables { has_params: param_kind.is_some(), has_authorizer: true, variables: None },
                false,
            );
            declarations.variables.remove("authorizer.requestResource");
            let object = declare_kind(&schema, &gvk.kind, &mut declarations.objects);
            for variable in ["object", "oldObject"] {
                declarations.variables.insert(variable.to_owned(), object.clone());
            }
            if let Some((kind, schema)) = &params {
                let params = declare_kind(schema, kind, &mut declarations.objects);
                declarations.variables.insert("params".to_owned(), params);
            }
            declare_variables(spec, &mut declarations);
            Some((gvk, declarations))
        })
        .collect();
    let mut warnings = Vec::new();
    for (index, validation) in spec["validations"].as_array().into_iter().flatten().enumerate() {
        for key in ["expression", "messageExpression"] {
            let source = validation[key].as_str().unwrap_or("");
            if source.is_empty() && key == "messageExpression" {
                continue;
            }
            let issues = declarations_by_kind
                .iter()
                .filter_map(|(kind, declarations)| check_expression(source, kind, declarations))
                .collect::<Vec<String>>();
            if !issues.is_empty() {
                let field = format!("spec.validations[{index}].{key}");
                warnings.push(json!({"fieldRef": field, "warning": issues.join("\n")}));
            }
        }
    }
    warnings
}

/// Checks an expression for objects of one kind; `None` if there are no issues.
fn check_expression(source: &str, gvk: &Gvk, declarations: &Declarations) -> Option<String> {
    let issues = check(source, declarations).err()?;
    let Gvk { group, version, kind } = gvk;
    Some(format!("{group}/{version}, Kind={kind}: {issues}\n"))
}

/// Declares the policy's variables with the types of their expressions, where known.
fn declare_variables(spec: &Value, declarations: &mut Declarations) {
    const VARIABLES: &str = "kubernetes.variables";
    declarations.variables.insert("variables".to_owned(), Type::object(VARIABLES));
    declarations.objects.insert(VARIABLES.into(), BTreeMap::new());
    for variable in spec["variables"].as_array().into_iter().flatten() {
        let variable_type = check(variable["expression"].as_str().unwrap_or(""), declarations)
            .map_or(Type::Dyn, |checked| checked.result_type().clone());
        if let Some(fields) = declarations.objects.get_mut(VARIABLES) {
            fields.insert(variable["name"].as_str().unwrap_or("").to_owned(), variable_type);
        }
    }
}

/// The kinds that the policy's rules name without wildcards and subresources.
fn matched_kinds(spec: &Value, served: &CatalogSnapshot) -> Kinds {
    let mut kinds = Kinds::new();
    for rule in spec.pointer("/matchConstraints/resourceRules").and_then(Value::as_array).into_iter().flatten() {
        let sorted = |key: &str| -> Vec<&str> {
            let mut values: Vec<&str> = rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            values.sort_unstable();
            values
        };
        let (groups, versions, mut resources) = (sorted("apiGroups"), sorted("apiVersions"), sorted("resources"));
        if groups.iter().chain(&versions).any(|value| value.contains('*')) {
            continue;
        }
        resources.retain(|resource| !resource.contains(['*', '/']));
        let mut count = 0;
        for (group, version) in groups.iter().flat_map(|group| versions.iter().map(move |version| (*group, *version))) {
            for resource in &resources {
                let Some(resource) = served.get(&Gvr::new(group, version, resource)) else { continue };
                kinds.insert(Gvk::new(group, version, &resource.kind));
                count += 1;
                if count == MAX_KINDS_PER_RULE {
                    return kinds;
                }
            }
        }
    }
    kinds
}

/// Declares the type of a kind. kube-apiserver appends a number to the type name that differs on each check.
fn declare_kind(schema: &Schema, kind: &str, objects: &mut ObjectTypes) -> Type {
    let name = format!("{kind}0");
    declare_type(schema, &name, &mut Vec::new(), objects).unwrap_or(Type::Dyn)
}

/// Declares the type of a schema; `None` if expressions cannot access its values. `enclosing` are the enclosing
/// definitions, at which recursion ends.
fn declare_type<'a>(
    schema: &'a Schema,
    name: &str,
    enclosing: &mut Vec<&'a str>,
    objects: &mut ObjectTypes,
) -> Option<Type> {
    let definition = schema.name.as_deref();
    if let Some(definition) = definition
        && enclosing.contains(&definition)
    {
        objects.insert(name.into(), BTreeMap::new());
        return Some(Type::object(name));
    }
    enclosing.extend(definition);
    let declared = match schema.ty {
        // A quantity is an int or a string, which expressions cannot access.
        SchemaType::Any | SchemaType::Quantity => None,
        SchemaType::String => Some(match schema.format.as_deref() {
            Some("byte") => Type::Bytes,
            Some("duration") => Type::Duration,
            Some("date" | "date-time") => Type::Timestamp,
            _ => Type::String,
        }),
        SchemaType::Integer => Some(Type::Int),
        SchemaType::Number => Some(Type::Double),
        SchemaType::Boolean => Some(Type::Bool),
        SchemaType::IntOrString => Some(Type::Dyn),
        SchemaType::Time | SchemaType::MicroTime => Some(Type::Timestamp),
        SchemaType::Bytes => Some(Type::Bytes),
        SchemaType::Array => schema
            .items
            .as_deref()
            .and_then(|items| declare_type(items, &format!("{name}.@idx"), enclosing, objects))
            .map(Type::list),
        SchemaType::Object => match schema.additional_properties.as_deref() {
            Some(values) => declare_type(values, &format!("{name}.@elem"), enclosing, objects)
                .map(|value| Type::map(Type::String, value)),
            None => {
                let mut fields = BTreeMap::new();
                for (key, field) in &schema.properties {
                    let Some(escaped) = escape_field(key) else { continue };
                    let field_type = declare_type(&field.node, &format!("{name}.{escaped}"), enclosing, objects);
                    fields.extend(field_type.map(|field_type| (escaped, field_type)));
                }
                objects.insert(name.into(), fields);
                Some(Type::object(name))
            }
        },
    };
    if definition.is_some() {
        enclosing.pop();
    }
    declared
}
